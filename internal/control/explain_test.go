package control

import (
	"strings"
	"testing"

	"bulkhead/internal/inspect"
)

// A process of a group that was released is outside, and stays there: no limit reaches it, and neither the agent nor
// time brings it back.
func TestExplainAfterARelease(t *testing.T) {
	t.Parallel()
	for name, release := range map[string][]string{"a group": {"jobs"}, "everything": nil} {
		m := newMachine(t, "252.39")
		m.start("/usr/bin/httpd")
		job := m.start("/usr/bin/backup all")
		m.apply(fifty)
		explained := func() *inspect.Explanation {
			t.Helper()
			m.refresh()
			e, err := inspect.Explain(t.Context(), m.Reconciler.Controller, job.PID, inspect.ExplainOptions{})
			m.must(err)
			return e
		}
		if e := explained(); !e.Placed || len(e.Levels) == 0 {
			t.Fatalf("%s: before: %+v", name, e)
		}
		m.release(release...)
		e := explained()
		if e.Placed || len(e.Levels) > 0 || !strings.Contains(e.Reason, "released") ||
			!strings.Contains(e.Reason, "`bulkhead apply`") || strings.Contains(e.Reason, "agent") {
			t.Errorf("%s: after: in %q, placed %t, %q, levels %+v", name, e.Group, e.Placed, e.Reason, e.Levels)
		}
	}
}
