package observing

import (
	"slices"

	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// holdsDatabase says whether a group is a database's, by the policy or by who is in it.
func holdsDatabase(v *transaction.View, group string) bool {
	return classify.Databases(v.Classified.Groups)[group] || v.HoldsInstance(group)
}

// others are the verbs of the history that change limits.
var others = append(slices.Clone(api.OnTrial), "release", "revert", "schedule", "end", "freeze", "thaw", "canary")

// alone says who else has changed limits since the experiment began.
func (t *trial) alone() error {
	all, err := t.c.Store.Heads()
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.N > t.last && e.Reason != t.reason && slices.Contains(others, e.Verb) {
			return api.Errorf(api.CodeFailed, "that change stays; `bulkhead history` has it",
				"limits were changed meanwhile: entry %d, %s %s, by %s", e.N, e.Verb, e.What, e.By)
		}
	}
	now, err := t.lowered()
	if err == nil && !slices.Equal(now, t.squeezed) {
		return api.Errorf(api.CodeFailed, "`bulkhead status` says what; with `slo: {mode: advise}` nothing is",
			"limits were changed meanwhile, for what a database is promised")
	}
	return err
}

// lowered are the limits that a loop has lowered for what databases are promised.
func (t *trial) lowered() (all []string, err error) {
	kept, err := state.Load(t.c.Store, state.DocOverrides)
	if err != nil {
		return nil, err
	}
	for _, o := range kept.Overrides {
		if o.IsSLO() && !o.Ended(t.c.Now()) {
			all = append(all, o.Text+" "+o.On)
		}
	}
	slices.Sort(all)
	return all, nil
}

func (t *trial) lastEntry() (n int, err error) {
	all, err := t.c.Store.Heads()
	for _, e := range all {
		n = max(n, e.N)
	}
	return n, err
}
