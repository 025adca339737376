package apply

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/plan/planner"
	"bulkhead/internal/policy"
)

// wish is a desired state that package plan finds the way to: the settings of each group, as in
// {"cpu.limit": …, "io.read.bandwidth@8:16": …}, and the group of each process by its index.
type wish struct {
	groups  map[string]map[string]policy.Value
	members map[int]string
}

// plan makes the plan from what the model says now to the wish.
func (wi wish) plan(w *world) plan.Plan {
	return planner.Make(w.input(wi))
}

// releaseOf makes the plan that gives a host back on which the wish is in force.
func (wi wish) releaseOf(w *world) plan.Plan {
	in := w.input(wi)
	in.Release = []string{layout.RootGroup}
	p := planner.Make(in)
	for i := range p.Steps {
		p.Steps[i].Optional = false // so that a fault undoes the whole of it
	}
	return p
}

func (w *world) input(wi wish) plan.Input {
	in := plan.Input{Facts: w.facts(), Host: policy.HostPart{Root: "bulkhead", Weight: 10000}, Observed: w.observe()}
	for _, name := range slices.Sorted(maps.Keys(wi.groups)) {
		parent := path.Dir(name)
		if parent == "." {
			parent = ""
		}
		g := classify.Group{Path: name, Parent: parent}
		for other := range wi.groups {
			g.Inner = g.Inner || strings.HasPrefix(other, name+"/")
		}
		for key, value := range wi.groups[name] {
			key, on, _ := strings.Cut(key, "@")
			g.Settings = g.Settings.With(policy.Setting{Key: policy.Key(key), On: on, Dev: on, Value: value,
				From: "group"})
		}
		in.Classified.Groups = append(in.Classified.Groups, g)
	}
	for _, i := range slices.Sorted(maps.Keys(wi.members)) {
		in.Classified.Placements = append(in.Classified.Placements, classify.Placement{
			Process: w.process(w.procs[i]), Group: wi.members[i], Rule: "a test",
		})
	}
	return in
}

// facts describes the modelled machine: two CPUs, one node.
func (w *world) facts() *host.Facts {
	f := &host.Facts{
		Kernel:   host.Version{Major: 6, Minor: 18, Text: "6.18.0"},
		MemTotal: 16 << 30, PageSize: 4096, CPUs: idset.New(0, 1),
		Nodes:       []host.Node{{ID: 0, CPUs: idset.New(0, 1), MemTotal: 16 << 30}},
		Hierarchies: w.Hierarchies(), PIDMax: 32768, ThreadsMax: 120000, SysResource: true,
		Devices: []blockdev.Device{
			{Number: "8:0", Name: "sda", Kind: blockdev.Disk, Disk: "8:0"},
			{Number: "8:16", Name: "sdb", Kind: blockdev.Disk, Disk: "8:16"},
		},
	}
	for _, h := range f.Hierarchies {
		for _, c := range h.Controllers {
			f.Controllers = append(f.Controllers, host.Controller{Name: c, Hierarchy: h.ID, Enabled: true})
		}
	}
	return f
}

func (w *world) process(id procfs.ID) procfs.Process {
	return procfs.Process{ID: id, PPID: 1, Comm: "mysqld", State: 'S', Threads: 1, Cgroups: w.Membership(id.PID)}
}

// observe reads the model as package control reads a host.
func (w *world) observe() plan.Observation {
	o := plan.Observation{
		Dirs: map[cgroup.Dir]map[string]string{}, Subtree: map[cgroup.Dir]plan.Subtree{}, OOMScoreAdj: w.scores,
		Homes:     plan.Homes{Process: map[procfs.ID]map[string]string{}},
		Originals: plan.Originals{OOMScoreAdj: map[procfs.ID]int{}, Subtree: map[cgroup.Dir][]string{}},
	}
	for i, id := range w.procs {
		o.Processes = append(o.Processes, w.process(id))
		o.Originals.OOMScoreAdj[id] = i
		o.Homes.Process[id] = map[string]string{}
	}
	for _, h := range w.Hierarchies() {
		top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
		for i, id := range w.procs {
			o.Homes.Process[id][h.ID] = "/user"
			if i == 3 {
				o.Homes.Process[id][h.ID] = "/"
			}
		}
		below, _ := w.Walk(top.Child("bulkhead"))
		for _, d := range append([]cgroup.Dir{top}, below...) {
			names, err := w.Files(d)
			if err != nil {
				panic(err)
			}
			names = slices.DeleteFunc(names,
				func(name string) bool { return knob.RowOf(cgroup.Dir{Hierarchy: h.ID}.File(name)) == nil })
			if o.Dirs[d], err = w.ReadMany(d, names); err != nil {
				panic(err)
			}
			if h.Version == 2 {
				available, enabled, err := w.Subtree(d)
				if err != nil {
					panic(err)
				}
				o.Subtree[d] = plan.Subtree{Available: available, Enabled: enabled}
			}
		}
		if h.Version == 2 {
			o.Originals.Subtree[top] = o.Subtree[top].Enabled
		}
	}
	return o
}

// The wishes of the scenes.
var (
	leaf = wish{
		groups:  map[string]map[string]policy.Value{"a": limits("cpu", "memory")},
		members: map[int]string{0: "a", 1: "a"},
	}
	inner = wish{
		groups:  map[string]map[string]policy.Value{"a": limits("cpu", "memory"), "a/x": limits("weight")},
		members: map[int]string{0: "a", 1: "a/x", 3: "a/x"},
	}
	cpuOnly = wish{
		groups:  map[string]map[string]policy.Value{"a": limits("cpu"), "b": {}, "b/y": limits("weight")},
		members: map[int]string{0: "a", 1: "b", 2: "b/y"},
	}
	everything = wish{
		groups: map[string]map[string]policy.Value{
			"a": limits("cpu", "memory", "io", "tasks", "cpus"), "b": limits("memory"),
			"b/y": limits("weight", "io", "memory", "idle"),
		},
		members: map[int]string{0: "a", 1: "b", 2: "b/y"},
	}
	memoryOnly = wish{
		groups:  map[string]map[string]policy.Value{"a": limits("memory"), "b": {}, "b/y": limits("io")},
		members: map[int]string{0: "a", 1: "b", 2: "b/y"},
	}
)

var kinds = []string{"cpu", "weight", "idle", "memory", "io", "tasks", "cpus"}

// limits gives settings of these kinds.
func limits(kinds ...string) map[string]policy.Value {
	all := map[string]policy.Value{}
	for _, kind := range kinds {
		maps.Copy(all, map[string]map[string]policy.Value{
			"cpu":    {"cpu.limit": policy.Cores(1500000), "cpu.burst": policy.Duration(10_000_000)},
			"weight": {"cpu.weight": policy.Weight(7)},
			"idle":   {"cpu.idle": policy.Flag(true)},
			"memory": {"memory.max": policy.Bytes(1 << 30), "memory.high": policy.Bytes(1 << 29)},
			"io":     {"io.read.bandwidth@8:16": policy.Rate(10 << 20), "io.write.iops@8:0": policy.IOPS(500)},
			"tasks":  {"tasks": policy.Count(100)},
			"cpus":   {"cpu.cpus": policy.IDs{Set: idset.New(0)}},
		}[kind])
	}
	return all
}

func init() {
	type change struct {
		name     string
		from, to wish
	}
	for _, c := range []change{
		{"leaf becomes inner", leaf, inner},
		{"inner becomes leaf", inner, leaf},
		{"limits need more controllers", cpuOnly, everything},
		{"limits need fewer controllers", everything, cpuOnly},
		{"limits need other controllers", memoryOnly, cpuOnly},
		{"other groups", everything, inner},
	} {
		addScene("v2 "+c.name, c.to.plan, c.from.plan)
	}
	addScene("v2 everything", everything.plan)
	addScene("v2 release of everything", everything.releaseOf, everything.plan)
	addScene("v2 release of inner", inner.releaseOf, inner.plan)
}

func addScene(name string, p func(*world) plan.Plan, before ...func(*world) plan.Plan) {
	scenes = append(scenes, scene{name, v2, before, p})
}

// The scenes are what their names say.
func TestWishes(t *testing.T) {
	w := stage(t, v2, []func(*world) plan.Plan{memoryOnly.plan})
	p := cpuOnly.plan(w)
	a := cgroup.Dir{Hierarchy: unified, Path: "/bulkhead/a"}
	restores, enabledAt, wroteAt := 0, -1, -1
	for i, s := range p.Steps {
		switch {
		case s.Kind == cgroup.KindControllers:
			restores += len(s.Restore)
			if s.Dir() == a.Parent() && strings.Contains(s.New, "+cpu") {
				enabledAt = i
			}
		case s.Target == a.File("cpu.max").Target():
			wroteAt = i
		}
	}
	if enabledAt < 0 || wroteAt < enabledAt || restores == 0 {
		t.Errorf("enabled in step %d, written in step %d, %d values to restore:\n%s", enabledAt, wroteAt, restores,
			plan.Render(p, plan.RenderOptions{}))
	}
	if rows := knob.RowsFor(w.facts()); !slices.ContainsFunc(rows,
		func(r *knob.Row) bool { return r.File == "cpu.max" }) {
		t.Error("the facts of the tests have no cpu.max")
	}
}

// drawWish draws groups with up to four kinds of limits each, and who belongs where.
func drawWish(t *rapid.T, label string) wish {
	wi := wish{groups: map[string]map[string]policy.Value{}, members: map[int]string{}}
	var names []string
	for _, name := range []string{"a", "a/x", "a/x/p", "b", "b/y"} {
		parent := path.Dir(name)
		if parent != "." && wi.groups[parent] == nil || !rapid.Bool().Draw(t, label+" has "+name) {
			continue
		}
		names = append(names, name)
		wi.groups[name] = limits(rapid.SliceOfNDistinct(rapid.SampledFrom(kinds), 0, 4, rapid.ID[string]).Draw(t,
			label+" limits of "+name)...)
	}
	for i := range 4 {
		if n := rapid.IntRange(0, len(names)).Draw(t, label+" place of process"); n > 0 {
			wi.members[i] = names[n-1]
		}
	}
	return wi
}

// From any state to any other, or on the way back: killed or failing at any change, the host is then as before.
func TestAnyWayBack(t *testing.T) {
	for name, hierarchies := range map[string][]host.Hierarchy{"v1": v1, "v2": v2} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { wayBack(t, rt, hierarchies) })
		})
	}
}

func wayBack(t *testing.T, rt *rapid.T, hierarchies []host.Hierarchy) {
	from, to := drawWish(rt, "before"), drawWish(rt, "after")
	w := stage(t, hierarchies, []func(*world) plan.Plan{from.plan})
	p := to.plan(w)
	if rapid.IntRange(0, 3).Draw(rt, "release") == 0 {
		p = from.releaseOf(w)
	}
	killed := rapid.Bool().Draw(rt, "killed")
	comesBack(t, rt.Fatalf, w, p, killed, rapid.IntRange(1, 3*len(p.Steps)+1).Draw(rt, "at change"))
}

// A cpuset that goes is narrowed first, with the one above it: made anew it takes nobody until both have their CPUs
// again.
func TestNarrowedCpusetTakesItsProcessesBack(t *testing.T) {
	from := wish{groups: map[string]map[string]policy.Value{"a": limits(), "a/x": limits(),
		"a/x/p": limits("memory", "cpus")}, members: map[int]string{0: "a", 2: "a", 3: "a"}}
	to := wish{groups: map[string]map[string]policy.Value{"a": limits("io", "cpus")}, members: map[int]string{1: "a"}}
	for _, killed := range []bool{false, true} {
		for at := 1; ; at++ {
			w := stage(t, v1, []func(*world) plan.Plan{from.plan})
			p := to.plan(w)
			if at > 3*len(p.Steps) {
				break
			}
			comesBack(t, t.Fatalf, w, p, killed, at)
		}
	}
}

// comesBack carries out a plan that is killed or fails at a change, the first being 1, and sees that the host is then
// as before.
func comesBack(t *testing.T, fail func(string, ...any), w *world, p plan.Plan, killed bool, at int) {
	t.Helper()
	before, hit := w.dump(), false
	at += len(w.Changes())
	w.Intercept(func(o cgroupfake.Operation) error {
		if o.N != at {
			return nil
		}
		hit = true
		if killed {
			panic(crash{})
		}
		return syscall.EIO
	})
	r := w.runner(t)
	var err error
	crashed := crashing(func() { _, err = r.Run(soon(t), p, Options{Verb: "apply"}) })
	w.Intercept(nil)
	w.must(t, r.Journal.Close())
	if !hit {
		if err != nil {
			fail("%v\n%s", err, plan.Render(p, plan.RenderOptions{}))
		}
		return
	}
	if crashed {
		r = w.runner(t)
		if _, done, err := r.Recover(soon(t)); err != nil || !done {
			fail("recover: %v, %v\n%s", done, err, plan.Render(p, plan.RenderOptions{}))
		}
		w.must(t, r.Journal.Close())
	} else if step := (*StepError)(nil); !errors.As(err, &step) || len(step.Left) > 0 {
		fail("%v\n%s", err, plan.Render(p, plan.RenderOptions{}))
	}
	if after := w.dump(); after != before {
		fail("killed %v: %v: the host changed:\n%s\n%s", killed, err, difference(before, after),
			plan.Render(p, plan.RenderOptions{}))
	}
}
