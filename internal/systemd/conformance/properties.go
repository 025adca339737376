package conformance

import (
	"reflect"
	"strings"
	"time"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

var propertyCases = []testCase{
	{"the table of properties", theTable}, {"values out of range", outOfRange}, {"all or none", allOrNone},
	{"lists are replaced", lists},
	{"a limit reaches its file", reaches},
}

var fileCases = []testCase{
	{"a reload undoes what was written behind its back", reloadUndoes}, {"runtime over persistent", lifetimes},
	{"a drop-in over a property", dropInWins},
	{"a slice that waits for the restart", sliceWaits}, {"no override is left", overridesGo},
}

var watchCases = []testCase{{"the watch", watch}}

// samples are values for each form, none of them a default.
var samples = map[systemd.Form]string{
	systemd.FormFlag: "yes", systemd.FormNumber: "4096", systemd.FormBytes: "134217728", systemd.FormMicros: "250000",
	systemd.FormWeight: "321", systemd.FormSet: "0", systemd.FormDevices: "/dev/null 1000\n/dev/zero 2000",
}

func theTable(b *bench) {
	service := b.service(b.Name + ".service")
	for unit, kind := range map[string]string{b.slice("a"): "slice", service: "service"} {
		for _, r := range systemd.Table() {
			text := samples[r.Form]
			if r.Form == systemd.FormWord {
				text = r.Words[0]
			}
			p, err := r.Encode(text)
			b.must(err)
			err = b.SetProperties(b.ctx, unit, systemd.Runtime, p)
			if !r.Known(b.Version(), kind) || r.StartOnly {
				b.fails(err, systemd.ErrNoProperty)
				continue
			}
			b.must(err)
			got, err := b.Properties(b.ctx, unit, r.Name)
			b.must(err)
			back, err := r.Decode(got[r.Name])
			if b.must(err); !same(r, back, text) {
				b.Errorf("%s of a %s reads as %q, was set to %q", r.Name, kind, back, text)
			}
		}
	}
	// What is kept in files reads the same after a reload.
	before := b.unit(service)
	b.must(b.Reload(b.ctx))
	after := b.unit(service)
	for _, r := range systemd.Table() {
		one, err1 := r.Decode(before.Properties[r.Name])
		other, err2 := r.Decode(after.Properties[r.Name])
		if r.Known(b.Version(), "service") && (err1 != nil || err2 != nil || one != other) {
			b.Errorf("%s was %q, after a reload %q (%v, %v)", r.Name, one, other, err1, err2)
		}
	}
	if len(after.Accounting) != 4 {
		b.Errorf("accounting %v", after.Accounting)
	}
}

func outOfRange(b *bench) {
	name := b.slice("a")
	for _, p := range []systemd.Property{
		{Name: "MemoryMax", Value: uint64(0)}, {Name: "MemoryHigh", Value: uint64(0)},
		{Name: "CPUWeight", Value: uint64(10001)}, {Name: "IOWeight", Value: uint64(0)},
		{Name: "CPUQuotaPerSecUSec", Value: uint64(0)}, {Name: "TasksMax", Value: uint64(0)},
		{Name: "MemoryMax", Value: "64M"}, {Name: "CPUAccounting", Value: "yes"},
	} {
		b.fails(b.SetProperties(b.ctx, name, systemd.Runtime, p), systemd.ErrInvalid)
	}
	b.fails(b.SetProperties(b.ctx, name, systemd.Runtime, systemd.Property{Name: "NoSuchThing", Value: uint64(1)}),
		systemd.ErrNoProperty)
}

func allOrNone(b *bench) {
	name := b.slice("a")
	err := b.SetProperties(b.ctx, name, systemd.Runtime, systemd.Property{Name: "MemoryMax", Value: mib(64)},
		systemd.Property{Name: "NoSuchThing", Value: uint64(1)})
	b.fails(err, systemd.ErrNoProperty)
	got, err := b.Properties(b.ctx, name, "MemoryMax", "NoSuchThing")
	if b.must(err); len(got) != 1 || got["MemoryMax"] != systemd.Infinity {
		b.Errorf("half of it was set: %v", got)
	}
}

func lists(b *bench) {
	name := b.slice("a")
	r, _ := systemd.RowOf("IOReadBandwidthMax")
	for _, text := range []string{"/dev/null 1000000\n/dev/zero 2000", "/dev/zero 3000", ""} {
		p, err := r.Encode(text)
		b.must(err, b.SetProperties(b.ctx, name, systemd.Runtime, p), b.Reload(b.ctx))
		got, err := b.Properties(b.ctx, name, r.Name)
		b.must(err)
		back, err := r.Decode(got[r.Name])
		if b.must(err); !same(r, back, text) {
			b.Errorf("set to %q, reads as %q", text, back)
		}
	}
}

func reaches(b *bench) {
	name := b.slice("a", systemd.Property{Name: "MemoryMax", Value: mib(128)},
		systemd.Property{Name: "CPUWeight", Value: uint64(321)})
	dir := b.unit(name).ControlGroup
	b.holds(dir, b.memory(), "134217728")
	if b.Cgroups == 2 {
		b.holds(dir, "cpu.weight", "321")
	} else {
		b.holds(dir, "cpu.shares", "3287") // weight × 1024/100
	}
	b.must(b.SetProperties(b.ctx, name, systemd.Runtime, systemd.Property{Name: "MemoryMax", Value: mib(64)}))
	b.holds(dir, b.memory(), "67108864")
	b.must(b.SetProperties(b.ctx, name, systemd.Runtime, systemd.Property{Name: "MemoryMax", Value: systemd.Infinity}))
	b.holds(dir, b.memory(), b.noLimit())
}

func reloadUndoes(b *bench) {
	name := b.slice("a", systemd.Property{Name: "MemoryMax", Value: mib(128)})
	dir := b.unit(name).ControlGroup
	b.must(b.Host.Write(dir, b.memory(), "67108864"))
	b.holds(dir, b.memory(), "67108864")
	b.must(b.Reload(b.ctx))
	b.reloaded(name, "67108864", "134217728")
}

func lifetimes(b *bench) {
	name := b.service(b.Name + ".service")
	dir := b.unit(name).ControlGroup
	b.must(b.SetProperties(b.ctx, name, systemd.Runtime, systemd.Property{Name: "MemoryMax", Value: mib(128)}),
		b.Reload(b.ctx))
	b.holds(dir, b.memory(), "134217728") // alone, a runtime one outlives a reload
	b.must(b.SetProperties(b.ctx, name, systemd.Persistent, systemd.Property{Name: "MemoryMax", Value: mib(64)}))
	b.must(b.SetProperties(b.ctx, name, systemd.Runtime, systemd.Property{Name: "MemoryMax", Value: mib(32)}))
	b.holds(dir, b.memory(), "33554432")
	b.must(b.Reload(b.ctx))
	b.reloaded(name, "33554432", "67108864") // over a persistent one it does not
}

func dropInWins(b *bench) {
	name := b.service(b.Name + ".service")
	dir := b.unit(name).ControlGroup
	b.dropIn(systemd.DropIn{Unit: name, Lines: []string{"MemoryMax=64M"}})
	b.reloaded(name, b.noLimit(), "67108864")
	b.must(b.SetProperties(b.ctx, name, systemd.Persistent, systemd.Property{Name: "MemoryMax", Value: mib(128)}))
	b.holds(dir, b.memory(), "134217728")
	b.must(b.Reload(b.ctx))
	b.reloaded(name, "134217728", "67108864")
}

func sliceWaits(b *bench) {
	slice := b.slice("db")
	name := b.service(b.Name + ".service")
	want := systemd.DropIn{Unit: name, Lines: []string{"Slice=" + slice}}
	b.dropIn(want)
	if u := b.unit(name); u.Slice != slice || u.ControlGroup != "/system.slice/"+name || len(u.DropInPaths) != 1 ||
		u.NeedDaemonReload {
		b.Errorf("with the drop-in: %+v", u)
	}
	mine, err := b.DropIns()
	b.must(err)
	found := false
	for _, d := range mine {
		found = found || d.Unit == name && strings.Join(d.Lines, " ") == want.Lines[0]
	}
	if !found {
		b.Errorf("drop-ins %v lack %v", mine, want)
	}
	b.must(b.Stop(b.ctx, name), b.Start(b.ctx, name))
	dir, err := unitname.SliceDir(slice)
	if b.must(err); b.unit(name).ControlGroup != dir+"/"+name {
		b.Errorf("after the restart: %+v", b.unit(name))
	}
	b.fails(b.Stop(b.ctx, slice), systemd.ErrBusy)
	b.dropIn(systemd.DropIn{Unit: name})
	if u := b.unit(name); u.Slice != "system.slice" || u.ControlGroup != dir+"/"+name || len(u.DropInPaths) > 0 {
		b.Errorf("with the drop-in taken away: %+v", u)
	}
	b.must(b.Stop(b.ctx, name), b.Start(b.ctx, name), b.Stop(b.ctx, slice))
	if u := b.unit(name); u.ControlGroup != "/system.slice/"+name {
		b.Errorf("after the second restart: %+v", u)
	}
}

func overridesGo(b *bench) {
	name := b.service(b.Name + ".service")
	b.must(b.SetProperties(b.ctx, name, systemd.Persistent, systemd.Property{Name: "MemoryMax", Value: mib(64)}))
	original, err := b.Overrides(name)
	if b.must(err); len(original) != 1 {
		b.Fatalf("overrides %v", original)
	}
	b.must(b.SetProperties(b.ctx, name, systemd.Persistent,
		systemd.Property{Name: "MemoryMax", Value: systemd.Infinity},
		systemd.Property{Name: "CPUWeight", Value: uint64(10)}))
	b.must(b.SetProperties(b.ctx, name, systemd.Runtime, systemd.Property{Name: "TasksMax", Value: uint64(99)}))
	now, err := b.Overrides(name)
	if b.must(err); len(now) != 3 {
		b.Errorf("overrides %v: no limit is a file too", now)
	}
	b.must(b.RestoreOverrides(b.ctx, name, original))
	b.holds(b.unit(name).ControlGroup, b.memory(), "67108864")
	b.must(b.RestoreOverrides(b.ctx, name, nil))
	now, err = b.Overrides(name)
	if b.must(err); len(now) > 0 || len(b.unit(name).DropInPaths) > 0 {
		b.Errorf("overrides %v, drop-ins %v", now, b.unit(name).DropInPaths)
	}
	b.holds(b.unit(name).ControlGroup, b.memory(), b.noLimit())
}

func watch(b *bench) {
	reasons := systemd.Watch(b.ctx, systemd.WatchOptions{Options: b.Options,
		Units: func(name string) bool { return strings.HasPrefix(name, b.Name) }})
	expect := func(want ...systemd.Reason) {
		b.Helper()
		limit := time.NewTimer(20 * time.Second)
		defer limit.Stop()
		left := make(map[systemd.Reason]bool)
		for _, r := range want {
			left[r] = true
		}
		for len(left) > 0 {
			select {
			case r := <-reasons:
				delete(left, r)
				if r.Unit != "" && !strings.HasPrefix(r.Unit, b.Name) {
					b.Errorf("told of %q", r.Unit)
				}
			case <-limit.C:
				b.Fatalf("never told of %v", left)
			}
		}
	}
	expect(systemd.Reason{Kind: systemd.Missed})
	b.must(b.Reload(b.ctx))
	expect(systemd.Reason{Kind: systemd.ReloadBegins}, systemd.Reason{Kind: systemd.ReloadEnded})
	pid := b.Spawn(b.T)
	scope := b.Name + "-a.scope"
	b.must(b.StartTransient(b.ctx, systemd.Transient{Name: scope, PIDs: []int{pid}}))
	expect(systemd.Reason{Kind: systemd.JobRemoved, Unit: scope},
		systemd.Reason{Kind: systemd.UnitChanged, Unit: scope})
	b.Host.Kill(pid)
	expect(systemd.Reason{Kind: systemd.UnitRemoved, Unit: scope})
}

// same says whether two texts stand for the same value of a property.
func same(r *systemd.Row, a, b string) bool {
	one, err1 := r.Encode(a)
	other, err2 := r.Encode(b)
	return err1 == nil && err2 == nil && reflect.DeepEqual(one, other)
}

// dropIn has systemd read a drop-in of ours.
func (b *bench) dropIn(d systemd.DropIn) {
	b.Helper()
	_, err := b.WriteDropIn(d)
	b.must(err, b.Reload(b.ctx))
}
