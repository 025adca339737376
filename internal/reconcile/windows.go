package reconcile

import (
	"context"
	"slices"

	"bulkhead/internal/api"
	"bulkhead/internal/confirm"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// opened are the names of schedules that are open and were not told to be.
func opened(told, open []string) []string {
	return slices.DeleteFunc(slices.Clone(open), func(name string) bool { return slices.Contains(told, name) })
}

// openGuarded puts windows that have opened in force under the policy's guard, with documents, when it has one that can
// watch and nothing else is on trial; done is false when they are to be put in force without.
func openGuarded(ctx context.Context, c *transaction.Controller, v *transaction.View, s *state.Documents, r api.Request,
	reply *transaction.Outcome, docs map[string]any, run func() error) (done bool, err error) {
	watch := confirm.GuardOf(v)
	if watch == nil || len(opened(s.Windows, policy.ScheduleNames(v.Open))) == 0 {
		return false, nil
	}
	if was, err := state.OnTrial(c.Store); err != nil || was != nil && was.Verb != confirm.ScheduleVerb {
		return false, err // a person waits for that one
	}
	if _, err := confirm.TakeBefore(ctx, c, v, watch); err != nil {
		c.Log.Warn("a window opens that the guard cannot watch", "err", err)
		return false, nil
	}
	reply.Revision = s.Applied.Revision
	docs[state.DocWindows] = policy.ScheduleNames(v.Open)
	return true, confirm.CommitWatched(ctx, c, v, r, reply, s, docs, watch, run)
}

// closeGuarded ends the trial of windows when none of them is open any more: what is undone by the clock need not be by
// the guard.
func closeGuarded(c *transaction.Controller, told, open []string) error {
	if len(opened(open, told)) == 0 {
		return nil
	}
	t, err := state.OnTrial(c.Store)
	if err != nil || t == nil || t.Verb != confirm.ScheduleVerb {
		return err
	}
	return confirm.End(c)
}
