//go:build root

package control

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/plan"
	"bulkhead/internal/testhost"
)

// TestPlanKnowsWhatAGroupUsesNow: a limit of the CPU below what a process uses is said by `plan` and by `apply`, and
// not by `check`, which looks at no live use.
func TestPlanKnowsWhatAGroupUsesNow(t *testing.T) {
	s := newSite(t)
	busy, argument := testhost.Spin(t), "while :; do :; done"
	sources := s.sources("groups:\n  g: {match: [{cmdline: '^sh -c " + argument + "$'}], cpu: {limit: 0.01}}\n")
	warned := func(notes []plan.Note) bool {
		for _, n := range notes {
			if n.Harm && n.Group == "g" && strings.Contains(n.Text, "cpu.limit 0.01 is below the ") {
				return true
			}
		}
		return false
	}
	soonWarned := func(what string, notes func() []plan.Note) {
		t.Helper()
		for late := time.Now().Add(time.Minute); !warned(notes()); { // a busy machine may not run it within a second
			if time.Now().After(late) {
				t.Fatalf("%s does not warn of the limit below what process %d uses: %+v", what, busy.PID, notes())
			}
		}
	}
	soonWarned("plan", func() []plan.Note {
		v, err := inspect.PlanFor(t.Context(), s.Reconciler.Controller, sources, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return v.Plan.Notes
	})
	soonWarned("apply", func() []plan.Note {
		return s.must(api.Request{Verb: "apply", Sources: sources, DryRun: true}).Plan.Notes
	})
	if v, err := inspect.Check(t.Context(), s.Reconciler.Controller, sources); err != nil || warned(v.Plan.Notes) {
		t.Errorf("check looked at live use: %v, %+v", err, v.Plan.Notes)
	}
}
