package reconcile

import (
	"errors"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// switches says what differs between the windows that were told to be open and those that are; "" when nothing does.
func switches(told, open []string) string {
	var all []string
	for _, name := range opened(open, told) {
		all = append(all, "schedule "+name+" ends")
	}
	for _, name := range opened(told, open) {
		all = append(all, "schedule "+name+" begins")
	}
	return strings.Join(all, "; ")
}

// tellWindows has the history say what switched, unless the plan that it took has an entry of its own, and remembers
// it.
func tellWindows(c *transaction.Controller, r api.Request, reply *transaction.Outcome, revision int,
	open []string) error {
	if !reply.Ran && !reply.Recorded {
		c.Remember(journal.Entry{Time: c.Now(), Verb: r.Verb, By: r.By, Reason: r.Reason, Revision: revision,
			Outcome: journal.Committed}, reply)
	}
	if err := c.Store.Save(state.DocWindows, open); err != nil {
		return api.Errorf(api.CodeFailed, "free space below the state directory", "remember which windows are open: %w",
			err)
	}
	return nil
}

// maxDueWait bounds the time between two looks at what is due and fails.
const maxDueWait = 30 * time.Second

// any says whether an override or a pin has ended, or a window opened or closed, that no look has dealt with.
func (d *due) any(s *journal.Store, p *policy.Policy, now time.Time) bool {
	is := d.ended(s, now)
	is = d.switched(p, now) || is
	wait := d.again.Sub(now)
	return is && (wait <= 0 || wait > maxDueWait) // the clock may have been set back
}

// dealtWith takes in what came of a look at all that was due at a time.
func (d *due) dealtWith(p *policy.Policy, at time.Time, err error) {
	var locked *statedir.LockedError
	switch {
	case err == nil:
		*d = due{settled: at}
		d.take(p, at)
	case !errors.As(err, &locked): // else the next look tries it
		d.wait = min(max(2*d.wait, time.Second), maxDueWait)
		d.again = at.Add(d.wait)
	}
}

// ended says whether the end of an override or of a placing by hand has passed that no look has dealt with.
func (d *due) ended(s *journal.Store, now time.Time) bool {
	docs, err := state.Load(s, state.DocOverrides, state.DocPins)
	if err != nil {
		return false // loadState says so
	}
	passed := func(end time.Time) bool { return end.After(d.settled) && !now.Before(end) }
	d.over = slices.DeleteFunc(slices.Clone(docs.Overrides), func(o state.Override) bool { return !passed(o.Ends) })
	if len(d.over) > 0 || slices.ContainsFunc(docs.Pins, func(p state.Pin) bool { return passed(p.Ends) }) {
		return true
	}
	d.settled = now
	return false
}

// switched says whether other windows are open now than those in force, whichever way the clock went. p may be nil.
func (d *due) switched(p *policy.Policy, now time.Time) bool {
	if p == nil || len(p.Schedules) == 0 {
		d.of = nil
		return false
	}
	if d.of == p && !now.Before(d.from) && (d.till.IsZero() || now.Before(d.till)) {
		return false
	}
	if d.of != nil && !slices.Equal(d.open, policy.ScheduleNames(p.Open(now))) {
		return true
	}
	d.take(p, now)
	return false
}

// take notes that the windows which are open at a time are in force.
func (d *due) take(p *policy.Policy, at time.Time) {
	if d.of = p; p == nil {
		return
	}
	d.open, d.from = policy.ScheduleNames(p.Open(at)), at
	d.till, _ = p.NextSwitch(at)
}
