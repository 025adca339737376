package planner

import (
	"slices"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Who is moved where: members, strays, real-time tasks, the dead, protected ones.
func TestWhoMoves(t *testing.T) {
	inside := func(p procfs.Process) procfs.Process {
		p.Cgroups = map[string]string{"cpu": "/bulkhead/a"}
		return p
	}
	f := cpuOnly()
	for name, test := range map[string]struct {
		prepare func(*plan.Input)
		want    []string
	}{
		"member": {func(in *plan.Input) { member(in, proc(10, 1, "p", f), "a") },
			[]string{"move cpu:/bulkhead/a p"}},
		"member in place": {func(in *plan.Input) { member(in, inside(proc(10, 1, "p", f)), "a") }, nil},
		"zombie": {func(in *plan.Input) { p := proc(10, 1, "p", f); p.State = 'Z'; member(in, p, "a") },
			nil},
		"dying with a live thread": {func(in *plan.Input) {
			p := proc(10, 1, "p", f)
			p.State, p.Threads = 'Z',
				2
			member(in, p, "a")
		}, []string{"move cpu:/bulkhead/a p"}},
		"real-time": {func(in *plan.Input) { p := proc(10, 1, "p", f); p.RT = true; member(in, p, "a") }, nil},
		"real-time goes home": {func(in *plan.Input) {
			p := inside(proc(10, 1, "p", f))
			p.RT = true
			in.Observed.Processes, in.Expel = append(in.Observed.Processes, p), map[procfs.ID]bool{p.ID: true}
		}, []string{"move cpu:/ p"}},
		"outsider": {func(in *plan.Input) {
			in.Observed.Processes = append(in.Observed.Processes,
				proc(10, 1, "p", f))
		},
			nil},
		"protected inside": {func(in *plan.Input) {
			in.Classified.Skips = []classify.Skip{{Process: inside(proc(10, 1, "sshd", f)), Group: "a"}}
		}, nil},
		"no moves": {func(in *plan.Input) { in.NoMoves = true; member(in, proc(10, 1, "p", f), "a") }, nil},
		"released": {func(in *plan.Input) {
			in.Released = map[string]bool{"a": true}
			member(in, inside(proc(10, 1, "p", f)),
				"a")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(f, group("a", nil), group("b", nil))
			inPlace(&in)
			test.prepare(&in)
			wantSteps(t, Make(in), test.want...)
		})
	}
}

func TestRealtimeNote(t *testing.T) {
	in := input(cpuOnly(), group("a", nil))
	inPlace(&in)
	p := proc(10, 1, "corosync", in.Facts)
	p.RT = true
	member(&in, p, "a")
	wantNote(t, Make(in), plan.Note{
		Group: "a", PID: 10,
		Text: "process 10 (corosync) is not moved: it is real-time, and the kernel lets no such task into a v1 cpu " +
			"group",
	})
}

// Home is the process's own, an ancestor's, the group's, the root; each the nearest directory that is there.
func TestHomes(t *testing.T) {
	id := func(pid int) procfs.ID { return procfs.ID{PID: pid, Start: uint64(pid)} }
	at := func(path string) map[string]string { return map[string]string{"cpu": path} }
	there := func(paths ...string) map[cgroup.Dir]bool {
		m := map[cgroup.Dir]bool{}
		for _, p := range paths {
			m[cgroup.Dir{Hierarchy: "cpu", Path: p}] = true
		}
		return m
	}
	for name, test := range map[string]struct {
		homes    plan.Homes
		existing map[cgroup.Dir]bool
		want     string
	}{
		"own": {plan.Homes{Process: map[procfs.ID]map[string]string{id(11): at("/user/1"),
			id(10): at("/parent")}}, nil, "/user/1"},
		"own, partly gone": {plan.Homes{Process: map[procfs.ID]map[string]string{id(11): at("/user/1/x")}},
			there("/user"),
			"/user"},
		"own, all gone": {plan.Homes{Process: map[procfs.ID]map[string]string{id(11): at("/user/1/x")}}, there(), "/"},
		"parent's":      {plan.Homes{Process: map[procfs.ID]map[string]string{id(10): at("/parent")}}, nil, "/parent"},
		"group's":       {plan.Homes{Group: map[string]map[string]string{"a": at("/system")}}, nil, "/system"},
		"group above's": {plan.Homes{Group: map[string]map[string]string{"": at("/no"), "a": at("/system")}}, nil,
			"/system"},
		"none": {plan.Homes{}, nil, "/"},
		"in our own tree": {plan.Homes{Process: map[procfs.ID]map[string]string{id(11): at("/bulkhead/b")},
			Group: map[string]map[string]string{"a": at("/system")}}, nil, "/system"},
		"other start time": {plan.Homes{Process: map[procfs.ID]map[string]string{{PID: 11, Start: 5}: at("/user/1")}},
			nil,
			"/"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(cpuOnly(), group("a", nil))
			inPlace(&in)
			p := proc(11, 10, "p", in.Facts)
			p.Cgroups["cpu"] = "/bulkhead/a"
			in.Observed.Processes = []procfs.Process{proc(10, 11, "parent", in.Facts),
				p} // a loop of parents, as pid reuse makes
			in.Expel = map[procfs.ID]bool{p.ID: true}
			in.Observed.Homes, in.Observed.Existing = test.homes, test.existing
			made := Make(in)
			if len(made.Steps) != 1 || made.Steps[0].Dir().Path != test.want {
				t.Errorf("steps %v, want a move to %s", brief(made), test.want)
			}
		})
	}
}

func TestOOMScore(t *testing.T) {
	scored := group("a", settings("group", "oom_score_adj", policy.Count(-500)))
	for name, test := range map[string]struct {
		group      classify.Group
		now        int
		known      bool
		original   int
		privileged bool
		want       []string
	}{
		"set":               {scored, 0, true, 0, true, []string{"oom_score_adj p -500"}},
		"set already":       {scored, -500, true, 0, true, nil},
		"unreadable":        {scored, 0, false, 0, true, nil},
		"not allowed":       {scored, 0, true, 0, false, nil},
		"asked for no more": {group("a", nil), -500, true, 100, true, []string{"oom_score_adj p 100"}},
		"as it was":         {group("a", nil), 100, true, 100, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(cpuOnly(), test.group)
			in.Facts.SysResource = test.privileged
			p := proc(10, 1, "p", in.Facts)
			member(&in, p, "a")
			inPlace(&in)
			if test.known {
				in.Observed.OOMScoreAdj = map[procfs.ID]int{p.ID: test.now}
			}
			in.Observed.Originals.OOMScoreAdj = map[procfs.ID]int{p.ID: test.original}
			made := Make(in)
			wantSteps(t, made, test.want...)
			if refused := slices.ContainsFunc(made.Notes,
				func(n plan.Note) bool { return n.NotEnforced }); refused != !test.privileged {
				t.Errorf("notes %+v", made.Notes)
			}
		})
	}
}

// NoMoves keeps a directory that still holds a process, and those above it.
func TestNoMovesKeepsFullDirectories(t *testing.T) {
	in := input(cpuOnly(), group("a", nil), group("b", nil), group("b/x", nil))
	p := proc(10, 1, "p", in.Facts)
	p.Cgroups["cpu"] = "/bulkhead/b/x"
	inPlace(&in)
	in.Observed.Processes = []procfs.Process{p}
	in.Classified, in.NoMoves = groupsOf(group("a", nil)), true
	made := Make(in)
	wantSteps(t, made, "rmdir cpu:/bulkhead/b/db")
	wantNote(t, made, plan.Note{Group: "b", Text: "cpu:/bulkhead/b is kept: a process or a group sits in it"})
}

// A process that somebody put beside the child groups of a v2 group makes it a threaded tree, which takes no
// process below: it leaves before anything else.
func TestThreadedByHand(t *testing.T) {
	f := factsWith(v2("pids"))
	in := input(f, group("a", nil), group("a/x", settings("group", "tasks", policy.Count(50))))
	member(&in, proc(10, 1, "mysqld", f), "a")
	inPlace(&in)
	for _, p := range []*procfs.Process{&in.Observed.Processes[0], &in.Classified.Placements[0].Process} {
		p.Cgroups = map[string]string{"unified": "/bulkhead/a"}
	}
	wantSteps(t, Make(in), "move unified:/ mysqld", "move unified:/bulkhead/a/db mysqld")
}

// The freezer is no hierarchy of a plan: who sits in a group of our name there was frozen, and stays.
func TestFreezerIsLeftAlone(t *testing.T) {
	in := input(factsWith(v1("cpu"), v1("freezer")), group("a", nil))
	member(&in, proc(10, 1, "mysqld", in.Facts), "a")
	inPlace(&in)
	in.Classified.Placements[0].Process.Cgroups["freezer"] = "/bulkhead/a"
	in.Observed.Processes[0].Cgroups["freezer"] = "/bulkhead/a"
	wantSteps(t, Make(in))
	in.Release = []string{layout.RootGroup}
	for _, s := range Make(in).Steps {
		if s.Dir().Hierarchy == "freezer" {
			t.Errorf("step in the freezer: %+v", s)
		}
	}
}
