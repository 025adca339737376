package plan

import (
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
)

// Sessions of processes that match no rule are told together, but with every step.
func TestSessionsAreToldTogether(t *testing.T) {
	var p Plan
	dir := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead.a"}
	for _, group := range []string{"a", "others/12", "others/14"} {
		p.Steps = append(p.Steps,
			Step{Change: change.Of(dir.Target(), "", cgroup.There), Group: group, Reason: "the group's limits"},
			Step{Change: change.Of(dir.File("cpu.weight").Target(), "", "10"), Group: group, Setting: "cpu.weight",
				Reason: "cpu.weight 10, host.others"})
		p.Shares = append(p.Shares, Share{Group: group, Guaranteed: 0.5, Percent: 10, Against: "nobody"})
	}
	brief := Render(p, RenderOptions{Form: FormBrief})
	for _, want := range []string{"others/*\n  directories  2 made      the group's limits\n" +
		"  cpu.weight   none -> 10  host.others\n", "others/*  -      none         1.00       20.0\n"} {
		if !strings.Contains(brief, want) || strings.Contains(brief, "others/1") {
			t.Errorf("in brief it is\n%swant\n%s", brief, want)
		}
	}
	if long := Render(p, RenderOptions{}); strings.Count(long, "others/12") != 2 || strings.Contains(long, "*") {
		t.Errorf("in full it is\n%s", long)
	}
}
