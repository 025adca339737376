package control

import (
	"context"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// opened are the names of schedules that are open and were not told to be.
func opened(told, open []string) []string {
	return slices.DeleteFunc(slices.Clone(open), func(name string) bool { return slices.Contains(told, name) })
}

// scheduleVerb is what the history calls a change that a window makes.
const scheduleVerb = "schedule"

// openGuarded puts windows that have opened in force under the policy's guard, when it has one that can watch and
// nothing else is on trial; done is false when they are to be put in force without.
func (c *Controller) openGuarded(ctx context.Context, v *View, s *state.Documents, r api.Request, reply *outcome,
	run func() error) (done bool, err error) {
	watch := guardOf(v)
	if watch == nil || len(opened(s.Windows, policy.ScheduleNames(v.Open))) == 0 {
		return false, nil
	}
	if was, err := state.OnTrial(c.Store); err != nil || was != nil && was.Verb != scheduleVerb {
		return false, err // a person waits for that one
	}
	if _, err := c.takeBefore(ctx, v, watch); err != nil {
		c.Log.Warn("a window opens that the guard cannot watch", "err", err)
		return false, nil
	}
	reply.Revision = s.Applied.Revision
	return true, c.standTrial(ctx, v, r, reply, s, map[string]any{state.DocWindows: policy.ScheduleNames(v.Open)},
		watch, run)
}

// closeGuarded ends the trial of windows when none of them is open any more: what is undone by the clock need not be by
// the guard.
func (c *Controller) closeGuarded(told, open []string) error {
	if len(opened(open, told)) == 0 {
		return nil
	}
	t, err := state.OnTrial(c.Store)
	if err != nil || t == nil || t.Verb != scheduleVerb {
		return err
	}
	return c.endTrial()
}

// skip lays the windows aside that a trial is about, until they close.
func skip(s *state.Documents, p *policy.Policy, t *state.Trial, before []string, why string,
	now time.Time) []state.Skipped {
	skipped := slices.Clone(s.Skipped)
	for _, one := range p.Open(now) {
		if slices.Contains(before, one.Name) {
			continue
		}
		_, until, _ := one.Windows.Open(now)
		skipped = append(skipped, state.Skipped{Schedule: one.Name, Revision: t.Revision, Until: until, Why: why})
	}
	return skipped
}
