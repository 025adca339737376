package control

import (
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/policy"
)

// What `set` asks for and has no effect is said, by verify too, and no longer once another override gives it an effect.
func TestSetWithoutEffectIsSaid(t *testing.T) {
	m := newMachine(t, "252.39")
	m.apply("groups:\n  reports: {role: helper, match: [{exe: report}], memory: {max: 1GiB}}\n")
	said := func(r *api.Reply) (texts []string) {
		for _, n := range r.Plan.Notes {
			if n.Void {
				texts = append(texts, n.Group+" "+string(n.Key)+": "+n.Text)
			}
		}
		return texts
	}
	voids := func() (found []policy.Key) {
		all, err := inspect.Verify(t.Context(), m.Reconciler.Controller, nil)
		m.must(err)
		for _, r := range all {
			if r.Void {
				found = append(found, r.Key)
			}
		}
		return found
	}
	r, err := m.do(api.Request{Verb: "set", Assign: []string{"reports:memory.high=2GiB"}})
	m.must(err)
	got := strings.Join(said(r), "; ")
	if !strings.Contains(got, "reports memory.high: memory.high 2GiB (override 1) never acts") {
		t.Errorf("above the maximum: %q", got)
	}
	if keys := voids(); len(keys) != 1 || keys[0] != policy.KeyMemoryHigh {
		t.Errorf("verify calls %v void", keys)
	}
	r, err = m.do(api.Request{Verb: "set", Assign: []string{"reports:memory.max=3GiB"}})
	m.must(err)
	if got := said(r); len(got) > 0 || len(voids()) > 0 {
		t.Errorf("below a maximum that was raised: %q, %v", got, voids())
	}
}
