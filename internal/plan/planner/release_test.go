package planner

import (
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// What somebody else made below our root stays, and so does what holds it.
func TestForeignBelowOurRoot(t *testing.T) {
	in := input(cpuOnly(), group("a", nil), group("b", nil))
	inPlace(&in)
	theirs := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/b/theirs"}
	in.Observed.Dirs[theirs] = map[string]string{"cpu.shares": "77"}
	in.Observed.Foreign = map[cgroup.Dir]bool{theirs: true}
	in.Classified = groupsOf(group("a", nil))
	wantSteps(t, Make(in))
	in.Release = []string{layout.RootGroup}
	wantSteps(t, Make(in), "write cpu:/bulkhead/cpu.shares 1024", "rmdir cpu:/bulkhead/a")
}

func TestReleasedGroups(t *testing.T) {
	in := input(cpuOnly(), group("a", settings("group", "cpu.limit", policy.Cores(1e6))), group("a/x", nil),
		group("b", nil))
	in.Released = map[string]bool{"a": true}
	member(&in, proc(10, 1, "p", in.Facts), "a/x")
	p := Make(in)
	wantSteps(t, p, "mkdir cpu:/bulkhead", "mkdir cpu:/bulkhead/b", "write cpu:/bulkhead/cpu.shares 102400")
	wantNote(t, p, plan.Note{Group: "a",
		Text: "released: its limits stay lifted, and nothing of it is changed, until the next apply"})
	if len(p.Shares) != 2 {
		t.Errorf("shares %+v", p.Shares)
	}
}

// A release lifts memory and CPU from the top before anything else, and needs no policy.
func TestReleaseOrder(t *testing.T) {
	f := factsWith(v1("cpu"), v1("memory"), v1("pids"))
	in := input(f, group("a", settings("group", "tasks", policy.Count(9), "memory.max", policy.Bytes(1<<30),
		"cpu.limit", policy.Cores(1e6))),
		group("a/x", settings("group", "memory.max", policy.Bytes(1<<29))))
	member(&in, proc(10, 1, "p", f), "a")
	inPlace(&in)
	in.Observed.Originals.OOMScoreAdj = map[procfs.ID]int{{PID: 10, Start: 10}: 7}
	in.Classified = classify.Result{}
	in.Release = []string{layout.RootGroup}
	p := Make(in)
	wantSteps(t, p,
		"write cpu:/bulkhead/a/cpu.cfs_quota_us -1",
		"write memory:/bulkhead/a/memory.limit_in_bytes -1", "write memory:/bulkhead/a/x/memory.limit_in_bytes -1",
		"write pids:/bulkhead/a/pids.max max",
		"move cpu:/ p", "move memory:/ p", "move pids:/ p",
		"write cpu:/bulkhead/cpu.shares 1024",
		"oom_score_adj p 7",
		"rmdir pids:/bulkhead/a/x", "rmdir pids:/bulkhead/a/db", "rmdir pids:/bulkhead/a", "rmdir pids:/bulkhead",
		"rmdir memory:/bulkhead/a/x", "rmdir memory:/bulkhead/a/db", "rmdir memory:/bulkhead/a",
		"rmdir memory:/bulkhead",
		"rmdir cpu:/bulkhead/a/x", "rmdir cpu:/bulkhead/a/db", "rmdir cpu:/bulkhead/a", "rmdir cpu:/bulkhead",
	)
	for _, s := range p.Steps {
		if !s.Optional {
			t.Errorf("a step of the emergency exit may fail the others: %+v", s)
		}
	}
}

// What others made in a released group keeps directories of ours, which is said once.
func TestReleaseTellsOfForeignGroups(t *testing.T) {
	in := input(cpuOnly(), group("a", nil), group("a/x", nil))
	inPlace(&in)
	theirs := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a/x/theirs"}
	in.Observed.Foreign = map[cgroup.Dir]bool{theirs: true, theirs.Child("deeper"): true}
	for dir := range in.Observed.Foreign {
		in.Observed.Dirs[dir] = map[string]string{}
	}
	in.Release = []string{layout.RootGroup}
	p := Make(in)
	for _, s := range p.Steps {
		if s.Removes() && s.Dir().Path != "/bulkhead/a/db" && s.Dir().Path != "/bulkhead/a/x/db" {
			t.Errorf("removes %s", s.Dir())
		}
	}
	if len(p.Notes) != 1 || !strings.Contains(p.Notes[0].Text,
		"cpu:/bulkhead/a/x/theirs is kept, and with it the directories above") {
		t.Errorf("notes %+v", p.Notes)
	}
}
