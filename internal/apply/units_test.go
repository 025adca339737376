package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
)

// manager is a systemd over the model of the kernel: as much of one as plans see.
type manager struct {
	*world
	overrides map[string][]systemd.Override
	dropIns   map[string]string
	reloads   int
	fail      map[string]error // by the name of a method
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{world: newWorld(t, v2), overrides: map[string][]systemd.Override{}, dropIns: map[string]string{},
		fail: map[string]error{}}
	m.must(t, m.Enable(cgroup.Dir{Hierarchy: unified, Path: "/"}, []string{"memory", "pids"}))
	m.must(t, m.world.Make(at("/db.service")))
	m.must(t, m.Write(at("/db.service").File("pids.max"), "321"))
	m.overrides["db.service"] = []systemd.Override{{Path: "50-TasksMax.conf", Text: []byte("321")}}
	return m
}

func at(path string) cgroup.Dir { return cgroup.Dir{Hierarchy: unified, Path: path} }

// files are what a property is written to.
var files = map[string]string{"MemoryMax": "memory.max", "TasksMax": "pids.max"}

func (m *manager) dirOf(unit string) cgroup.Dir {
	if unit == "bulkhead-a.slice" {
		return at("/bulkhead.slice/" + unit)
	}
	return at("/" + unit)
}

func (m *manager) runner(t *testing.T) *Runner {
	t.Helper()
	r := m.world.runner(t)
	r.Units = managed{m}
	r.Actuators[unitfiles.KindDropIn] = unitfiles.DropIns{Files: managed{m}}
	r.Actuators[unitfiles.KindOverrides] = unitfiles.Overrides{Files: managed{m}}
	return r
}

// managed keeps the manager's methods apart from the model's of the same names.
type managed struct{ m *manager }

func (u managed) Make(_ context.Context, unit string, d cgroup.Dir) error {
	if err := u.m.fail["Make"]; err != nil {
		return err
	}
	if there, err := u.m.Exists(d); err != nil || there {
		return err
	}
	if parent := d.Parent(); parent.Path != "/" {
		if err := u.m.Enable(parent, []string{"memory", "pids"}); err != nil {
			return err
		}
	}
	return u.m.world.Make(d)
}

func (u managed) Stop(_ context.Context, unit string) error {
	if err := u.m.fail["Stop"]; err != nil {
		return err
	}
	err := u.m.Remove(u.m.dirOf(unit))
	if errors.Is(err, cgroup.ErrGone) {
		return nil
	}
	return err
}

func (u managed) Set(_ context.Context, unit string, set []systemd.Assignment) error {
	if err := u.m.fail["Set"]; err != nil {
		return err
	}
	for _, a := range set {
		name := "50-" + a.Name + ".conf"
		u.m.overrides[unit] = slices.DeleteFunc(slices.Clone(u.m.overrides[unit]),
			func(o systemd.Override) bool { return o.Path == name })
		u.m.overrides[unit] = append(u.m.overrides[unit], systemd.Override{Path: name, Text: []byte(a.Text)})
		if err := u.m.Write(u.m.dirOf(unit).File(files[a.Name]), a.Text); err != nil {
			return err
		}
	}
	return nil
}

func (u managed) Overrides(unit string) ([]systemd.Override, error) {
	return slices.Clone(u.m.overrides[unit]), u.m.fail["Overrides"]
}

func (u managed) WriteOverrides(unit string, want []systemd.Override) error {
	u.m.overrides[unit] = slices.Clone(want)
	return u.m.fail["WriteOverrides"]
}

func (u managed) DropInLines(unit string) (string, error) { return u.m.dropIns[unit], nil }

func (u managed) WriteDropIn(unit, line string) error {
	if err := u.m.fail["WriteDropIn"]; err != nil {
		return err
	}
	if u.m.dropIns[unit] = line; line == "" {
		delete(u.m.dropIns, unit)
	}
	return nil
}

// Reload writes every limit of the units anew, from the files.
func (u managed) Reload(_ context.Context, units ...string) error {
	if err := u.m.fail["Reload"]; err != nil {
		return err
	}
	u.m.reloads++
	for _, unit := range units {
		if there, err := u.m.Exists(u.m.dirOf(unit)); err != nil || !there {
			continue
		}
		for property, file := range files {
			value := "max"
			for _, o := range u.m.overrides[unit] {
				if o.Path == "50-"+property+".conf" {
					value = string(o.Text)
				}
			}
			if err := u.m.Write(u.m.dirOf(unit).File(file), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// all is the kernel's state and systemd's, as text. That of units which are gone is nobody's.
func (m *manager) all() string {
	var b strings.Builder
	b.WriteString(m.dump())
	for _, unit := range slices.Sorted(maps.Keys(m.overrides)) {
		if there, _ := m.Exists(m.dirOf(unit)); there {
			list := slices.Clone(m.overrides[unit])
			slices.SortFunc(list, func(a, b systemd.Override) int { return strings.Compare(a.Path, b.Path) })
			fmt.Fprintf(&b, "%s: %s\n", unit, list)
		}
	}
	fmt.Fprintln(&b, m.dropIns)
	return b.String()
}

// govern is a plan that makes a slice, sets properties of it and of a service that is not ours, adopts that and moves a
// loose process.
func (m *manager) govern() plan.Plan {
	place := cgroup.Membership(m.procs[0], unified)
	write := func(dir, unit, file, from, to string) plan.Step {
		property := map[string]string{"memory.max": "MemoryMax", "pids.max": "TasksMax"}[file]
		return plan.Step{Group: "a", Unit: unit, Change: change.Change{
			Target: at(dir).File(file).Target(), Old: from, New: to,
			Do:   systemd.Assigned([]systemd.Assignment{{Name: property, Text: to}}),
			Undo: systemd.Assigned([]systemd.Assignment{{Name: property, Text: from}})}}
	}
	mkdir := func(dir string) plan.Step {
		return plan.Step{Change: change.Of(at(dir).Target(), "", cgroup.There), Group: "a", Unit: path.Base(dir)}
	}
	return plan.Plan{Steps: []plan.Step{
		mkdir("/bulkhead.slice"), mkdir("/bulkhead.slice/bulkhead-a.slice"),
		{Change: change.Change{Target: overrides}, Group: "a"},
		write("/db.service", "db.service", "memory.max", "max", "1048576"),
		write("/db.service", "db.service", "pids.max", "321", "50"),
		write("/bulkhead.slice/bulkhead-a.slice", "bulkhead-a.slice", "memory.max", "max", "2097152"),
		{Change: change.Of(dropIn, "", "Slice=bulkhead-a.slice"), Group: "a"},
		{Change: change.Of(place, "/user", "/bulkhead.slice/bulkhead-a.slice"), Group: "a"},
	}}
}

var (
	overrides = change.Target{Kind: unitfiles.KindOverrides, Addr: "db.service"}
	dropIn    = change.Target{Kind: unitfiles.KindDropIn, Addr: "db.service"}
)

// back is the release of what govern did.
func (m *manager) back() plan.Plan {
	place := cgroup.Membership(m.procs[0], unified)
	p := plan.Plan{Steps: []plan.Step{
		{Change: change.Of(overrides, "", unitfiles.HeldFiles{
			Files: []systemd.Override{{Path: "50-TasksMax.conf", Text: []byte("321")}}}.String()), Group: "a"},
		{Change: change.Of(dropIn, "Slice=bulkhead-a.slice", ""), Group: "a"},
		{Change: change.Of(place, "/bulkhead.slice/bulkhead-a.slice", "/user"), Group: "a"},
	}}
	for _, dir := range []string{"/bulkhead.slice/bulkhead-a.slice", "/bulkhead.slice"} {
		p.Steps = append(p.Steps, plan.Step{Change: change.Of(at(dir).Target(), cgroup.There, ""), Group: "a",
			Unit: path.Base(dir)})
	}
	return p
}

func TestUnitsThereAndBack(t *testing.T) {
	m := newManager(t)
	before := m.all()
	r := m.runner(t)
	if result, err := r.Run(soon(t), m.govern(), Options{Verb: "apply"}); err != nil ||
		result.Steps != 7 { // to keep changes nothing
		t.Fatalf("%+v, %v", result, err)
	}
	for file, want := range map[string]string{"memory.max": "1048576", "pids.max": "50"} {
		if got, err := m.Read(at("/db.service").File(file)); err != nil || got != want {
			t.Errorf("%s holds %q, %v; want %q", file, got, err, want)
		}
	}
	if m.dropIns["db.service"] != "Slice=bulkhead-a.slice" {
		t.Errorf("drop-ins %v", m.dropIns)
	}
	if _, err := r.Run(soon(t), m.back(), Options{Verb: "release"}); err != nil {
		t.Fatal(err)
	}
	if after := m.all(); after != before {
		t.Errorf("after release\n%s\nbefore\n%s", after, before)
	}
	if m.reloads != 2 { // for the drop-in of the way there, and for all of the way back
		t.Errorf("systemd read its files %d times", m.reloads)
	}
}

// overwriting is a systemd that writes a file of a unit once more behind its back.
type overwriting struct {
	change.Actuator
	times int
}

func (o *overwriting) Write(ctx context.Context, addr, value string) error {
	err := o.Actuator.Write(ctx, addr, value)
	if err == nil && value == "77" && o.times > 0 {
		o.times--
		err = o.Actuator.Write(ctx, addr, "max")
	}
	return err
}

// systemd writes files of a unit a moment after it has answered, also those that it has no setting for there.
func TestOverwrittenValueIsWrittenAgain(t *testing.T) {
	for _, tt := range []struct {
		times int
		units bool
		want  string
	}{{0, false, "77"}, {1, false, "321"}, {2, true, "77"}, {100, true, "321"}} {
		m := newManager(t)
		r := m.runner(t)
		if !tt.units {
			r.Units = nil
		}
		r.Actuators[cgroup.KindFile] = &overwriting{r.Actuators[cgroup.KindFile], tt.times}
		file := at("/db.service").File("pids.max")
		_, err := r.Run(soon(t), plan.Plan{Steps: []plan.Step{
			{Change: change.Of(file.Target(), "321", "77"), Group: "a"}}}, Options{Verb: "apply"})
		if (err == nil) != (tt.want == "77") || err != nil && !errors.Is(err, change.ErrDiffers) {
			t.Errorf("%+v: %v", tt, err)
		}
		if got, err := m.Read(file); err != nil || got != tt.want {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

// leaving is a systemd that writes the line of a disk, and leaves it when the property names the disk no more.
type leaving struct{ managed }

func (u leaving) Set(_ context.Context, unit string, set []systemd.Assignment) error {
	if set[0].Text == "" {
		return nil
	}
	return u.m.Write(cgroup.File{Dir: u.m.dirOf(unit), Name: "io.max", Key: "8:0"}, "riops=700")
}

// The line of a disk goes although systemd leaves it: when it is lifted, and when its making is undone.
func TestLineThatSystemdLeaves(t *testing.T) {
	m := newManager(t)
	m.must(t, m.Enable(cgroup.Dir{Hierarchy: unified, Path: "/"}, []string{"blkio"}))
	file := cgroup.File{Dir: at("/db.service"), Name: "io.max", Key: "8:0"}
	none := knob.RowOf(file).Default
	limited := strings.Replace(none, "riops=max", "riops=700", 1)
	const to, away = "/dev/block/8:0 700", ""
	step := func(from, to, do, undo string) plan.Step {
		assigned := func(text string) string {
			return systemd.Assigned([]systemd.Assignment{{Name: "IOReadIOPSMax", Text: text}})
		}
		s := plan.Step{Change: change.Of(file.Target(), from, to), Group: "a", Unit: "db.service"}
		s.Do, s.Undo = assigned(do), assigned(undo)
		return s
	}
	r := m.runner(t)
	r.Units = leaving{managed{m}}
	bad := plan.Step{Change: change.Of(at("/db.service").File("pids.max").Target(), "321", "many"), Group: "a"}
	for i, steps := range [][]plan.Step{
		{step(none, limited, to, away), bad},
		{step(none, limited, to, away)},
		{step(limited, none, away, to)},
	} {
		if _, err := r.Run(soon(t), plan.Plan{Steps: steps}, Options{Verb: "apply"}); (err == nil) != (i > 0) {
			t.Errorf("run %d: %v", i, err)
		}
		text, err := m.Read(cgroup.File{Dir: file.Dir, Name: file.Name})
		if has := strings.Contains(text, "8:0"); err != nil || has != (i == 1) {
			t.Errorf("after run %d the file holds %q, %v", i, text, err)
		}
	}
}

// counting is a systemd that makes the directory of a service for what it is told to count, and writes no file.
type counting struct{ managed }

func (u counting) Set(_ context.Context, unit string, set []systemd.Assignment) error {
	if set[0].Text == "no" {
		return u.m.Remove(u.m.dirOf(unit))
	}
	return u.m.Make(u.m.dirOf(unit))
}

// Where systemd has to make the directory first, the file is written after that, and nothing is left when it is undone.
func TestDirectoryThatSystemdMakesFirst(t *testing.T) {
	for name, more := range map[string][]plan.Step{
		"done":   nil,
		"undone": {{Change: change.Of(at("/db.service").File("pids.max").Target(), "321", "many"), Group: "a"}},
	} {
		m := newManager(t)
		r := m.runner(t)
		r.Units = counting{managed{m}}
		m.must(t, m.Enable(cgroup.Dir{Hierarchy: unified, Path: "/"}, []string{"blkio"}))
		file := cgroup.File{Dir: at("/io.service"), Name: "io.max", Key: "8:0"}
		none := knob.RowOf(file).Default
		limited := strings.Replace(none, "riops=max", "riops=700", 1)
		step := plan.Step{Change: change.Of(file.Target(), none, limited), Group: "a", Unit: "io.service"}
		step.Do = systemd.Assigned([]systemd.Assignment{{Name: "IOAccounting", Text: "yes"}})
		step.Undo = systemd.Assigned([]systemd.Assignment{{Name: "IOAccounting", Text: "no"}})
		_, err := r.Run(soon(t), plan.Plan{Steps: append([]plan.Step{step}, more...)}, Options{Verb: "apply"})
		var failed *StepError
		if errors.As(err, &failed) != (name == "undone") || failed != nil && len(failed.Left) > 0 {
			t.Errorf("%s: %v", name, err)
		}
		got, _ := m.Read(file)
		if there, err := m.Exists(file.Dir); err != nil || there != (name == "done") || there && got != limited {
			t.Errorf("%s: there %t, %q, %v", name, there, got, err)
		}
	}
}

// forgetting is a systemd that writes a file anew when another one is written.
type forgetting struct {
	change.Actuator
	addr string
}

func (f *forgetting) Write(ctx context.Context, addr, value string) error {
	err := f.Actuator.Write(ctx, addr, value)
	if addr != f.addr {
		err = errors.Join(err, f.Actuator.Write(ctx, f.addr, "max"))
	}
	return err
}

// What systemd has overwritten by the time that all steps are done is written again, but for what it was told itself.
func TestValueOverwrittenLaterIsWrittenAgain(t *testing.T) {
	for name, again := range map[string]bool{"file": true, "property": false, "no systemd": false} {
		m := newManager(t)
		r := m.runner(t)
		file, other := at("/db.service").File("pids.max"), at("/db.service").File("memory.high")
		step := plan.Step{Change: change.Of(file.Target(), "321", "77"), Group: "a"}
		switch name {
		case "property":
			step.Unit, step.Do = "db.service", systemd.Assigned([]systemd.Assignment{{Name: "TasksMax", Text: "77"}})
			step.Undo = systemd.Assigned([]systemd.Assignment{{Name: "TasksMax", Text: "321"}})
		case "no systemd":
			r.Units = nil
		}
		r.Actuators[cgroup.KindFile] = &forgetting{r.Actuators[cgroup.KindFile], file.Target().Addr}
		old, err := m.Read(other)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Run(soon(t), plan.Plan{Steps: []plan.Step{step,
			{Change: change.Of(other.Target(), old, "1048576"), Group: "a"}}}, Options{Verb: "apply"})
		if (err == nil) != again || err != nil && !errors.Is(err, change.ErrDiffers) {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := m.Read(file); again && (err != nil || got != "77") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestUnitsKilledAtEveryStep(t *testing.T) {
	for name, test := range map[string]struct{ before, killed func(*manager) plan.Plan }{
		"apply":   {nil, (*manager).govern},
		"release": {(*manager).govern, (*manager).back},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 0; ; n++ {
				m := newManager(t)
				r := m.runner(t)
				if test.before != nil {
					if _, err := r.Run(soon(t), test.before(m), Options{Verb: "apply"}); err != nil {
						t.Fatal(err)
					}
				}
				p := test.killed(m)
				if n >= len(p.Steps) {
					return
				}
				before := m.all()
				r.AfterStep = func(i int, _ plan.Step) {
					if i == n {
						panic(crash{})
					}
				}
				if !crashing(func() { r.Run(soon(t), p, Options{Verb: "apply"}) }) {
					t.Fatalf("step %d: not killed", n)
				}
				m.must(t, r.Journal.Close())
				r = m.runner(t)
				if _, done, err := r.Recover(soon(t)); err != nil || !done {
					t.Fatalf("step %d: %v, %v", n, done, err)
				}
				if after := m.all(); after != before {
					t.Fatalf("killed after step %d:\n%s\nbefore\n%s", n, after, before)
				}
				m.must(t, r.Journal.Close())
			}
		})
	}
}

// Whatever systemd refuses, the steps before it are undone.
func TestUnitsRefusedByThem(t *testing.T) {
	for _, method := range []string{"Make", "Set", "Overrides", "WriteDropIn"} {
		m := newManager(t)
		before := m.all()
		m.fail[method] = errors.New("no")
		if _, err := m.runner(t).Run(soon(t), m.govern(), Options{Verb: "apply"}); err == nil {
			t.Errorf("%s: no error", method)
		}
		if after := m.all(); after != before {
			t.Errorf("%s refused:\n%s\nbefore\n%s", method, after, before)
		}
	}
	m := newManager(t)
	before := m.all()
	r := m.world.runner(t) // systemd cannot be asked
	if _, err := r.Run(soon(t), m.govern(), Options{Verb: "apply"}); !errors.Is(err, errNoSystemd) {
		t.Errorf("without systemd: %v", err)
	}
	if after := m.all(); after != before {
		t.Errorf("without systemd:\n%s\nbefore\n%s", after, before)
	}
}
