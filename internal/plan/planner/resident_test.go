package planner

import (
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// born is a process that no rule claims in a directory of a group, in every hierarchy: a child of a member
// that has run another program, or a member that now looks otherwise.
func born(pid, ppid int, comm, group string, f *host.Facts) procfs.Process {
	p := proc(pid, ppid, comm, f)
	for h := range p.Cgroups {
		p.Cgroups[h] = "/bulkhead/" + group
	}
	return p
}

// A member does not get out of its group by running another program.
func TestNoEscapeByExec(t *testing.T) {
	f := factsWith(v1("cpu"), v1("memory"))
	two := []any{"cpu.weight", policy.Weight(10), "memory.max", policy.Bytes(1 << 30)}
	in := input(f, group("bk", settings("group", two...)))
	member(&in, proc(10, 1, "bhbackup", f), "bk")
	in.Observed.Processes = append(in.Observed.Processes, born(11, 10, "gzip", "bk", f), born(12, 1, "orphan", "bk", f))
	inPlace(&in)
	wantSteps(t, Make(in))

	t.Run("the group changes shape", func(t *testing.T) {
		in := in
		in.Classified.Groups = groupsOf(group("bk", settings("group", two...)), group("bk/x", nil)).Groups
		text := strings.Join(brief(Make(in)), "\n")
		for _, want := range []string{"move cpu:/bulkhead/bk/db gzip", "move memory:/bulkhead/bk/db gzip",
			"move memory:/bulkhead/bk/db orphan"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q among\n%s", want, text)
			}
		}
		if strings.Contains(text, "move cpu:/ ") {
			t.Errorf("somebody is let out:\n%s", text)
		}
	})
	t.Run("the group goes", func(t *testing.T) {
		in := in
		in.Classified = groupsOf()
		text := strings.Join(brief(Make(in)), "\n")
		if !strings.Contains(text, "move cpu:/ gzip\nmove memory:/ gzip") {
			t.Errorf("gzip stays:\n%s", text)
		}
	})
	t.Run("the group is released", func(t *testing.T) {
		in := in
		in.Released = map[string]bool{"bk": true}
		wantSteps(t, Make(in)) // left alone, members and all, until apply
	})
}

func TestResidents(t *testing.T) {
	f := factsWith(v1("cpu"), v1("memory"))
	both := settings("group", "cpu.weight", policy.Weight(10), "memory.max", policy.Bytes(1<<30))
	at := func(cpu, memory string) procfs.Process {
		p := proc(10, 1, "p", f)
		p.Cgroups = map[string]string{"cpu": cpu, "memory": memory}
		return p
	}
	child := proc(11, 10, "child", f)
	child.Cgroups = map[string]string{"cpu": "/bulkhead/a", "memory": "/bulkhead/a"}
	theirs := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a/theirs"}
	for name, test := range map[string]struct {
		p       procfs.Process
		prepare func(*plan.Input)
		want    []string
	}{
		"stays":                  {at("/bulkhead/a", "/bulkhead/a"), nil, nil},
		"born between two moves": {at("/bulkhead/a", "/"), nil, []string{"move memory:/bulkhead/a p"}},
		"taken away by somebody": {at("/bulkhead/a", "/other"), nil, nil},
		"from one group to other": {at("/bulkhead/b/db", "/bulkhead/a"), nil,
			[]string{"move memory:/bulkhead/b/db p"}},
		"the innermost group": {at("/bulkhead/b/db", "/bulkhead/b/x"), nil, []string{"move cpu:/bulkhead/b/x p"}},
		"beside the leaf": {at("/bulkhead/b", "/bulkhead/b"), nil,
			[]string{"move cpu:/bulkhead/b/db p", "move memory:/bulkhead/b/db p"}},
		"in the root group itself": {at("/bulkhead", "/"), nil, []string{"move cpu:/ p"}},
		"of a group that is gone": {at("/bulkhead/old", "/"), nil,
			[]string{"move cpu:/ p", "rmdir cpu:/bulkhead/old"}},
		"below, in a group made by others": {at("/bulkhead/a/theirs", "/bulkhead/a"), func(in *plan.Input) {
			in.Observed.Foreign = map[cgroup.Dir]bool{theirs: true}
		}, nil},
		"in a container's group elsewhere": {at("/bulkhead/a", "/docker/4f5e"), nil, nil},
		"in a pid namespace of its own": {at("/bulkhead/a", "/"), func(in *plan.Input) {
			in.Observed.Processes[0].ForeignNamespace = true
		}, []string{"move memory:/bulkhead/a p"}},
		"sent back by hand": {at("/bulkhead/a", "/bulkhead/a"), func(in *plan.Input) {
			in.Expel = map[procfs.ID]bool{{PID: 10, Start: 10}: true}
			in.Observed.Processes = append(in.Observed.Processes, child)
		}, []string{"move cpu:/ p", "move memory:/ p", "move cpu:/ child", "move memory:/ child"}},
		"sent back, but a child is claimed": {at("/bulkhead/a", "/bulkhead/a"), func(in *plan.Input) {
			in.Expel = map[procfs.ID]bool{{PID: 10, Start: 10}: true}
			member(in, child, "a")
		}, []string{"move cpu:/ p", "move memory:/ p"}},
		"expelled, and claimed by a rule": {at("/bulkhead/a", "/bulkhead/a"), func(in *plan.Input) {
			in.Expel = map[procfs.ID]bool{{PID: 10, Start: 10}: true}
			in.Classified.Placements = []classify.Placement{{Process: in.Observed.Processes[0], Group: "a"}}
		}, nil},
		"claimed by two rules": {at("/bulkhead/a", "/"), func(in *plan.Input) {
			in.Classified.Skips = []classify.Skip{{Process: in.Observed.Processes[0], Group: "b", Ambiguous: true}}
		}, []string{"move memory:/bulkhead/a p"}},
		"limits only": {at("/bulkhead/a", "/"), func(in *plan.Input) { in.NoMoves = true }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(f, group("a", both), group("b", both), group("b/x", nil))
			inPlace(&in)
			for _, dir := range []cgroup.Dir{{Hierarchy: "cpu", Path: "/bulkhead/old"}, theirs} {
				if test.p.Cgroups["cpu"] == dir.Path {
					in.Observed.Dirs[dir] = map[string]string{}
				}
			}
			in.Observed.Processes = []procfs.Process{test.p}
			if test.prepare != nil {
				test.prepare(&in)
			}
			wantSteps(t, Make(in), test.want...)
		})
	}
}

// The group's oom_score_adj holds who has run another program, too.
func TestResidentsKeepTheScore(t *testing.T) {
	in := input(cpuOnly(), group("a", settings("group", "oom_score_adj", policy.Count(500))))
	p := born(10, 1, "p", "a", in.Facts)
	inPlace(&in)
	in.Observed.Processes = []procfs.Process{p}
	in.Observed.OOMScoreAdj = map[procfs.ID]int{p.ID: 500}
	in.Observed.Originals.OOMScoreAdj = map[procfs.ID]int{p.ID: 0}
	wantSteps(t, Make(in))
}

// Children got their score from a parent that bulkhead had scored: it is taken from them as well, unless they
// have set one of their own since.
func TestInheritedScoresGoBack(t *testing.T) {
	scored := group("a", settings("group", "oom_score_adj", policy.Count(500)))
	in := input(cpuOnly(), scored)
	member(&in, proc(10, 1, "main", in.Facts), "a")
	member(&in, proc(11, 10, "child", in.Facts), "a")
	member(&in, proc(12, 11, "grandchild", in.Facts), "a")
	member(&in, proc(13, 10, "own", in.Facts), "a")
	inPlace(&in)
	id := func(pid int) procfs.ID { return procfs.ID{PID: pid, Start: uint64(pid)} }
	in.Observed.OOMScoreAdj = map[procfs.ID]int{id(10): 500, id(11): 500, id(12): 500, id(13): -17}
	in.Observed.Originals.OOMScoreAdj = map[procfs.ID]int{id(10): 3}
	want := []string{"oom_score_adj main 3", "oom_score_adj child 3", "oom_score_adj grandchild 3"}

	release := in
	release.Release = []string{"a"}
	var got []string
	for _, line := range brief(Make(release)) {
		if strings.HasPrefix(line, "oom_score_adj") {
			got = append(got, line)
		}
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("a release gives back %v, want %v", got, want)
	}
	in.Classified.Groups = groupsOf(group("a", nil)).Groups
	wantSteps(t, Make(in), want...)
}

// Who sits in a group that others made below ours is not pulled out of it by a release.
func TestReleaseLeavesForeignMembers(t *testing.T) {
	in := input(factsWith(v1("cpu"), v1("memory")), group("a", settings("group", "memory.max", policy.Bytes(1<<30))))
	theirs := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a/theirs"}
	inPlace(&in)
	in.Observed.Dirs[theirs] = map[string]string{}
	in.Observed.Foreign = map[cgroup.Dir]bool{theirs: true}
	p := proc(10, 1, "p", in.Facts)
	p.Cgroups = map[string]string{"cpu": theirs.Path, "memory": "/bulkhead/a"}
	in.Observed.Processes = []procfs.Process{p}
	in.Release = []string{layout.RootGroup}
	made := Make(in)
	var moves []string
	for _, line := range brief(made) {
		if strings.HasPrefix(line, "move") || strings.HasPrefix(line, "rmdir cpu") {
			moves = append(moves, line)
		}
	}
	if strings.Join(moves, ", ") != "move memory:/ p" {
		t.Errorf("moves and removals %v", moves)
	}
	if len(made.Notes) != 1 || !strings.Contains(made.Notes[0].Text, "cpu:/bulkhead/a/theirs is kept") ||
		!strings.Contains(made.Notes[0].Text, "process 10 (p)") {
		t.Errorf("notes %+v", made.Notes)
	}
}
