//go:build root

package control

import (
	"errors"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/pagemap"
	"bulkhead/internal/testhost"
)

// TestExplainFindsWhatIsChargedElsewhere: memory that a process had before it was moved stays where it was, what it
// asks for later is its group's.
func TestExplainFindsWhatIsChargedElsewhere(t *testing.T) {
	s := newSite(t)
	s.apply("groups:\n  g: {match: [{exe: /nonexistent/x}], memory: {max: 1GiB}}\n")
	p := testhost.HoldMemory(t)
	const before, after = 48 << 20, 24 << 20
	if !p.Touch(before) {
		t.Fatal("the process died")
	}
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{p.ID.PID}})
	if !p.Touch(after) {
		t.Fatal("the process died")
	}
	e, err := inspect.Explain(t.Context(), s.Reconciler.Controller, p.ID.PID, inspect.ExplainOptions{Exact: true})
	if _, missing := os.Stat("/proc/kpagecgroup"); missing != nil && errors.Is(err, pagemap.ErrNoCharges) {
		t.Skipf("this kernel was built without it: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var own, elsewhere int64
	for _, c := range e.Charges {
		if c.Own {
			own += c.Bytes
			if c.Group != "g" || !strings.Contains(c.Dir, "/g") {
				t.Errorf("its own group is %+v", c)
			}
			continue
		}
		elsewhere += c.Bytes
	}
	program, err := os.Stat("/proc/self/exe") // it is the process's program, too, and its pages are charged
	if err != nil {
		t.Fatal(err)
	}
	more := program.Size() + 4<<20 // its heap and stacks beside it
	if own < after || own > after+more || elsewhere < before ||
		elsewhere > before+more {
		t.Errorf("charged to its group %d, elsewhere %d: %+v", own, elsewhere, e.Charges)
	}
	if e, err := inspect.Explain(t.Context(), s.Reconciler.Controller, p.ID.PID,
		inspect.ExplainOptions{}); err != nil || e.Charges != nil {
		t.Errorf("unasked: %+v, %v", e.Charges, err)
	}
}
