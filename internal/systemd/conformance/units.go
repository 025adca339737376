package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

var unitCases = []testCase{
	{"a unit that is not there", notThere}, {"units that cannot be used", unusable}, {"a service", aService},
	{"names with odd characters", oddNames},
}

var jobCases = []testCase{
	{"starts that are refused", refusedStarts}, {"results of jobs", results}, {"a job that takes too long", tooLong},
	{"a job that another one overtakes", overtaken},
}

func notThere(b *bench) {
	u := b.unit(b.Name + ".service")
	if u.LoadState != systemd.LoadNotFound || u.ActiveState != "inactive" || u.Active() || u.ControlGroup != "" {
		b.Errorf("%+v", u)
	}
	b.fails(u.Usable(), systemd.ErrNoUnit)
	u = b.unit(b.Name + ".slice") // a slice needs no file
	if u.LoadState != systemd.LoadLoaded || u.FragmentPath != "" || u.Active() {
		b.Errorf("%+v", u)
	}
	for _, name := range []string{"", "bad name.service", "noext", "a@.service", "-a.slice", "a--b.slice"} {
		_, err := b.Unit(b.ctx, name)
		b.fails(err, systemd.ErrInvalid)
	}
}

func unusable(b *bench) {
	masked := b.Name + "masked.service"
	b.must(os.Symlink("/dev/null", filepath.Join("/", b.Options.Root, "/etc/systemd/system", masked)))
	bad := b.file(b.Name+"bad.service", "[Service]", "Type=oneshot2", "Type=simple")
	for name, want := range map[string]string{masked: systemd.LoadMasked, bad: systemd.LoadBadSetting} {
		u := b.unit(name)
		if u.LoadState != want {
			b.Errorf("%s is %q, want %q", name, u.LoadState, want)
		}
		if u.Usable() == nil || u.LoadError == "" {
			b.Errorf("%s counts as usable: %+v", name, u)
		}
	}
}

func aService(b *bench) {
	u := b.unit(b.service(b.Name + ".service"))
	for what, is := range map[string][2]string{
		"load state": {u.LoadState, systemd.LoadLoaded}, "sub-state": {u.SubState, "running"},
		"type": {u.Type, "simple"}, "KillMode": {u.KillMode, "control-group"},
		"slice": {u.Slice, "system.slice"}, "directory": {u.ControlGroup, "/system.slice/" + u.Name},
		"file":                          {u.FragmentPath, "/etc/systemd/system/" + u.Name},
		"directory of the main process": {b.Host.GroupOf(u.MainPID), u.ControlGroup},
	} {
		if is[0] != is[1] {
			b.Errorf("%s is %q, want %q", what, is[0], is[1])
		}
	}
	if !u.Active() || u.Delegate || u.Transient || u.NeedDaemonReload || len(u.DropInPaths) > 0 {
		b.Errorf("%+v", u)
	}
	b.must(b.Start(b.ctx, u.Name)) // what runs already is done
	units, err := b.Units(b.ctx)
	if b.must(err); !slices.ContainsFunc(units,
		func(s systemd.Status) bool { return s.Name == u.Name && s.ActiveState == "active" }) {
		b.Errorf("the list lacks %s", u.Name)
	}
	b.must(b.Stop(b.ctx, u.Name))
	if after := b.unit(u.Name); after.Active() || after.ControlGroup != "" || after.MainPID != 0 ||
		b.Host.Alive(u.MainPID) {
		b.Errorf("after stop: %+v", after)
	}
}

func oddNames(b *bench) {
	texts := []string{"odd name", "a-b/c", "ünïcode", "50%", `back\slash`, "at@home", "plus+minus"}
	for _, text := range texts {
		b.write(b.Name+unitname.Escape(text)+".service", "[Service]", "ExecStart="+strings.Join(b.Sleep, " "))
	}
	b.must(b.Reload(b.ctx))
	for _, text := range texts {
		name := b.Name + unitname.Escape(text) + ".service"
		b.must(b.Start(b.ctx, name))
		u := b.unit(name)
		if u.Name != name || !u.Active() {
			b.Errorf("%q: %+v", text, u)
		}
		if at := b.Host.GroupOf(u.MainPID); at != u.ControlGroup || !strings.HasSuffix(at, "/"+name) {
			b.Errorf("%q: its process is in %q", text, at)
		}
		b.must(b.SetProperties(b.ctx, name, systemd.Runtime, systemd.Property{Name: "MemoryMax", Value: mib(64)}))
		overrides, err := b.Overrides(name)
		if b.must(err); len(overrides) != 1 {
			b.Errorf("%q: overrides %v", text, overrides)
		}
		b.must(b.RestoreOverrides(b.ctx, name, nil), b.Stop(b.ctx, name))
	}
}

func refusedStarts(b *bench) {
	b.fails(b.Start(b.ctx, b.Name+".service"), systemd.ErrNoUnit)
	b.fails(b.Stop(b.ctx, b.Name+".service"), systemd.ErrNoUnit)
	b.fails(b.ResetFailed(b.ctx, b.Name+".service"), systemd.ErrNoUnit)
	masked := b.Name + "masked.service"
	b.must(os.Symlink("/dev/null", filepath.Join("/", b.Options.Root, "/etc/systemd/system", masked)))
	bad := b.file(b.Name+"bad.service", "[Service]", "Type=oneshot2", "Type=simple")
	b.fails(b.Start(b.ctx, masked), systemd.ErrMasked)
	b.fails(b.Start(b.ctx, bad), systemd.ErrBadSetting)
	set := systemd.Property{Name: "MemoryMax", Value: mib(64)}
	b.fails(b.SetProperties(b.ctx, masked, systemd.Runtime, set), systemd.ErrMasked)
	b.fails(b.SetProperties(b.ctx, b.Name+".service", systemd.Runtime, set), systemd.ErrNoUnit)
}

func results(b *bench) {
	fails := b.file(b.Name+"fails.service", "[Service]", "Type=oneshot", "ExecStart=/bin/false")
	needs := b.file(b.Name+"needs.service", "[Unit]", "Requires="+fails, "After="+fails, "[Service]",
		"ExecStart="+b.Sleep[0]+" "+b.Sleep[1])
	b.ended(b.Start(b.ctx, fails), systemd.ResultFailed)
	if u := b.unit(fails); u.ActiveState != "failed" || u.Result != "exit-code" {
		b.Errorf("%+v", u)
	}
	b.must(b.ResetFailed(b.ctx, fails))
	b.ended(b.Start(b.ctx, needs), systemd.ResultDependency)

	slow := b.file(b.Name+"slow.service", "[Service]", "Type=notify", "TimeoutStartSec=1",
		"ExecStart="+b.Sleep[0]+" "+b.Sleep[1])
	b.ended(b.Start(b.ctx, slow), systemd.ResultFailed) // of the unit it is a timeout, of the job a failure
	if u := b.unit(slow); u.ActiveState != "failed" || u.Result != "timeout" {
		b.Errorf("%+v", u)
	}
	limited := b.file(b.Name+"limited.service", "[Unit]", "JobTimeoutSec=1", "[Service]", "Type=notify",
		"TimeoutStartSec=60", "ExecStart="+b.Sleep[0]+" "+b.Sleep[1])
	b.ended(b.Start(b.ctx, limited), systemd.ResultTimeout)
	if u := b.unit(limited); u.ActiveState != "activating" {
		b.Errorf("%+v", u)
	}
	b.must(b.Stop(b.ctx, limited))
}

func tooLong(b *bench) {
	slow := b.file(b.Name+"slow.service", "[Service]", "Type=notify", "TimeoutStartSec=60",
		"ExecStart="+b.Sleep[0]+" "+b.Sleep[1])
	o := b.Options
	o.JobTimeout = 500 * time.Millisecond
	impatient, err := systemd.Connect(b.ctx, o)
	b.must(err)
	defer impatient.Close()
	b.ended(impatient.Start(b.ctx, slow), systemd.ResultTimeout)
	b.until("the job is taken back", func() bool {
		units, err := b.Units(b.ctx)
		b.must(err)
		return !slices.ContainsFunc(units, func(s systemd.Status) bool { return s.Name == slow && s.Job != "" })
	})
	b.must(b.Stop(b.ctx, slow))
}

func overtaken(b *bench) {
	slow := b.file(b.Name+"slow.service", "[Service]", "Type=notify", "TimeoutStartSec=60",
		"ExecStart="+b.Sleep[0]+" "+b.Sleep[1])
	started := make(chan error, 1)
	go func() { started <- b.Start(b.ctx, slow) }()
	b.until("the start is under way", func() bool { return b.unit(slow).ActiveState == "activating" })
	b.must(b.Stop(b.ctx, slow))
	b.ended(<-started, systemd.ResultCanceled)
}
