package control

import (
	"context"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Squeeze has exactly these overrides laid over the policy for what databases are promised (state.BySLO), in place of
// those before, and writes entries into the history: the change itself is in the journal alone. It waits so long for
// the lock. A limit for which a person has set an override is left to that, as is a group that is released. Where the
// limits stay as they are, only their ends are kept. Where nothing is wanted, told or laid over the policy, the lock is
// not taken: an agent that is stopped while it begins holds nobody up.
func Squeeze(ctx context.Context, c *transaction.Controller, wait time.Duration, want []state.Override,
	tell ...journal.Entry) error {
	if len(want)+len(tell) == 0 {
		kept, err := state.Load(c.Store, state.DocOverrides)
		if err != nil || !slices.ContainsFunc(kept.Overrides, state.Override.IsSLO) {
			return err
		}
	}
	lock, err := c.LockWithin(ctx, wait, transaction.SqueezeVerb, "agent")
	if err != nil {
		return err
	}
	defer lock.Release()
	reply := &transaction.Outcome{}
	if err := c.Recover(ctx, reply); err != nil {
		return err
	}
	kept, err := state.Load(c.Store, state.DocOverrides, state.DocNumbers)
	if err != nil {
		return err
	}
	_, s, err := c.Recorded()
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(s.Overrides), state.Override.IsSLO)
	ours := slices.DeleteFunc(slices.Clone(kept.Overrides), func(o state.Override) bool { return !o.IsSLO() })
	want = slices.DeleteFunc(slices.Clone(want), func(o state.Override) bool {
		return slices.ContainsFunc(others, o.SameLimit) || transaction.RefuseReleased(s, o.Group) != nil
	})
	same := len(want) == len(ours)
	for i := range want {
		at := slices.IndexFunc(ours, want[i].SameLimit)
		if at < 0 || ours[at].Ended(c.Now()) || ours[at].Text != want[i].Text {
			same = false
			continue
		}
		want[i].ID, want[i].At = ours[at].ID, ours[at].At
	}
	if err := maySqueeze(c, want); err != nil {
		return err
	}
	if !same || len(want) > 0 {
		s.Numbers = kept.Numbers
		if err := squeezeTo(ctx, c, s, slices.Concat(others, want), same, reply); err != nil {
			return err
		}
	}
	for _, e := range tell {
		c.Remember(e, reply)
	}
	return nil
}

// maySqueeze refuses what is new while a change is on trial. That is undone to what was in force when it began, and
// what is lowered meanwhile would go with it.
func maySqueeze(c *transaction.Controller, want []state.Override) error {
	t, err := state.OnTrial(c.Store)
	if err == nil && t != nil && slices.ContainsFunc(want, func(o state.Override) bool { return o.ID == 0 }) {
		return &OnTrialError{What: t.Named()}
	}
	return err
}

// OnTrialError says that nothing is lowered while a change is on trial.
type OnTrialError struct{ What string }

func (e *OnTrialError) Error() string { return "nothing is lowered while " + e.What + " is on trial" }

// squeezeTo keeps overrides, and puts them in force unless the limits are the same.
func squeezeTo(ctx context.Context, c *transaction.Controller, s *state.Documents, overrides []state.Override,
	same bool, reply *transaction.Outcome) error {
	docs := map[string]any{state.DocNumbers: s.Number(overrides), state.DocOverrides: overrides}
	if !same && !s.Rests() {
		l := transaction.OptionsOver(s, s.Applied.Sources)
		l.Overrides, l.Lenient = overrides, true
		v, err := c.View(ctx, l)
		if err != nil {
			return err
		}
		if transaction.Refused(v.Plan, false) != nil {
			if err := v.LeaveOut(); err != nil {
				return err
			}
		}
		if len(v.Plan.Steps) > 0 {
			r := api.Request{Verb: transaction.SqueezeVerb, By: state.BySLO}
			return c.Commit(r, reply, docs, func() error {
				return c.RunOthers(ctx, v, r, s.Applied.Revision, reply, nil)
			})
		}
	}
	for _, name := range []string{state.DocNumbers, state.DocOverrides} {
		if err := c.Store.Save(name, docs[name]); err != nil {
			return err
		}
	}
	return nil
}
