package sampling

import (
	"maps"
	"testing"

	"bulkhead/internal/observe"
	"bulkhead/internal/plan"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// What people have set counts while it is in force: not what the SLO loop has lowered, nor what could not be laid over
// the policy.
func TestOverridesOfPeople(t *testing.T) {
	v := &transaction.View{Snapshot: &snapshot.Snapshot{Overrides: []state.Override{{ID: 1, Group: "a", By: "root"},
		{ID: 2, Group: "a", By: state.BySLO}, {ID: 3, Group: "a", By: "root"}, {ID: 4, Group: "b", By: "alice"}},
		Unlaid: map[int]plan.Note{3: {}}}}
	if got := overridesIn(v); !maps.Equal(got, map[string]int{"a": 1, "b": 1}) {
		t.Errorf("it counts %v", got)
	}
}

// An override that comes, and a window that opens, are as much of a change as another limit: they are sampled at once.
func TestWhatIsSampledAtOnce(t *testing.T) {
	one := func(overrides int, limit float64, windows ...string) *Watched {
		return &Watched{windows: windows, groups: []watchedGroup{{Group: observe.Group{Group: "a", Overrides: overrides,
			Limits: []observe.Limit{{Key: "cpu.limit", Asked: &limit}}}}}}
	}
	for what, c := range map[string]struct {
		now  *Watched
		same bool
	}{
		"nothing": {one(0, 1), true}, "an override": {one(1, 1), false}, "a limit": {one(0, 2), false},
		"a window": {one(0, 1, "nights"), false},
	} {
		if got := c.now.sameLimits(one(0, 1)); got != c.same {
			t.Errorf("%s: the same is %v", what, got)
		}
	}
}
