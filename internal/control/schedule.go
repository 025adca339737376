package control

import (
	"slices"
	"strings"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// ScheduleStatus is one schedule of the applied policy.
type ScheduleStatus struct {
	Name string `json:"name"`
	Open bool   `json:"open"`
	// Since is when the window opened, of an open one.
	Since time.Time `json:"since,omitzero"`
	// Next is when it opens or closes next; zero when that is not within years.
	Next time.Time `json:"next,omitzero"`
	// Skipped is why a window that is open is not in force.
	Skipped string `json:"skipped,omitempty"`
}

// now is the time that schedules and ends of overrides go by.
func (c *Controller) now() time.Time {
	if c.clock != nil {
		return c.clock()
	}
	return time.Now()
}

// or is a time that somebody asked for; zero is now.
func (c *Controller) or(at time.Time) time.Time {
	if at.IsZero() {
		return c.now()
	}
	return at
}

// layWindows lays what open windows ask over the settings of their groups, the later schedule over the earlier one. A group that
// is not there now (its instance is down) waits.
func layWindows(groups []classify.Group, open []policy.Schedule) ([]classify.Group, policy.Problems) {
	var problems policy.Problems
	for _, s := range open {
		for _, set := range s.Set {
			i := slices.IndexFunc(groups, func(g classify.Group) bool { return g.Path == set.Group })
			if i < 0 {
				continue
			}
			if p := overlap(groups[i], set.Settings); p != nil {
				problems = append(problems, *p)
				continue
			}
			groups[i].Settings = set.Settings.Over(groups[i].Settings)
		}
	}
	return groups, problems
}

func namesOf(open []policy.Schedule) []string {
	names := make([]string, 0, len(open))
	for _, s := range open {
		names = append(names, s.Name)
	}
	return names
}

// switches says what differs between the windows that were told to be open and those that are; "" when nothing does.
func switches(told, open []string) string {
	var all []string
	for _, name := range told {
		if !slices.Contains(open, name) {
			all = append(all, "schedule "+name+" ends")
		}
	}
	for _, name := range open {
		if !slices.Contains(told, name) {
			all = append(all, "schedule "+name+" begins")
		}
	}
	return strings.Join(all, "; ")
}

// tellWindows has the history say what switched, unless the plan that it took has an entry of its own, and remembers it.
func (c *Controller) tellWindows(r Request, reply *Reply, revision int, open []string) error {
	if !reply.ran {
		c.remember(journal.Entry{Time: c.now(), Verb: r.Verb, By: r.By, Reason: r.Reason, Revision: revision, Outcome: journal.Committed}, reply)
	}
	if err := c.Store.Save(state.DocWindows, open); err != nil {
		return fail(CodeFailed, "free space below the state directory", "remember which windows are open: %w", err)
	}
	return nil
}

// ScheduleStatuses says of each schedule whether it is open, and when it switches next.
func ScheduleStatuses(p *policy.Policy, skipped []state.Skipped, now time.Time) []ScheduleStatus {
	var all []ScheduleStatus
	for _, s := range p.Schedules {
		since, _, open := s.Windows.Open(now)
		st := ScheduleStatus{Name: s.Name, Open: open}
		if open {
			st.Since = since
		}
		if k := isSkipped(skipped, s.Name, now); k != nil && open {
			st.Skipped = k.Why
		}
		st.Next, _ = s.Next(now)
		all = append(all, st)
	}
	return all
}
