package render

import (
	"io"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
)

// Sessions of processes that match no rule are one line of status, with sums.
func TestSessionsAreOneLine(t *testing.T) {
	session := func(name string, used int64, procs int) api.GroupStatus {
		return api.GroupStatus{Group: name, Members: make([]api.Member, procs), Share: plan.Share{Guaranteed: 0.25},
			Usage: metrics.Usage{CPU: metrics.CPU{User: &used, System: new(int64), Total: &used},
				Memory: metrics.Memory{Current: new(used * 1024)}}}
	}
	before := &api.Status{Groups: []api.GroupStatus{session("a", 1e6, 1), session("others", 0, 0),
		session("others/12", 1e6, 0), session("others/14", 2e6, 0)}}
	now := &api.Status{Groups: []api.GroupStatus{session("a", 2e6, 1), session("others", 0, 0),
		session("others/12", 3e6, 2), session("others/14", 4e6, 3)}}
	for i := range now.Groups {
		for j := range now.Groups[i].Members {
			now.Groups[i].Members[j].Placed = true
		}
	}
	text := printed(func(out io.Writer) { printGroups(out, now, before, 2e9) })
	want := "others/* (2 sessions)  5      2.00  0.50   -      6.7 GiB  -      -      ok\n"
	if !strings.Contains(text, want) || strings.Contains(text, "others/12") || strings.Count(text, "\n") != 8 {
		t.Errorf("status says\n%swant in it\n%s", text, want)
	}
	if now.Groups[2].Group != "others/12" || *now.Groups[2].Usage.CPU.User != 3e6 {
		t.Error("what --json prints has changed")
	}
}
