package render

import (
	"io"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/policy"
)

// scheduled is the JSON of a line of schedule list.
type scheduled struct {
	api.ScheduleStatus
	When   string   `json:"when"`
	Zone   string   `json:"zone,omitempty"`
	For    string   `json:"for"`
	Except []string `json:"except,omitempty"`
	Sets   []string `json:"sets"`
}

// SchedulesView gives the schedules of a policy at a time.
func SchedulesView(p *policy.Policy, now time.Time) []scheduled {
	statuses := inspect.ScheduleStatuses(p, nil, now)
	all := make([]scheduled, len(p.Schedules))
	for i, s := range p.Schedules {
		all[i] = scheduled{ScheduleStatus: statuses[i], When: s.Windows.When.String(), Zone: s.Zone,
			For: api.Span(s.Windows.Length), Sets: sets(s)}
		for _, d := range s.Windows.Except {
			all[i].Except = append(all[i].Except, d.String())
		}
	}
	return all
}

// Schedules prints the schedules of the policy in file, and when each of them switches next.
func Schedules(out io.Writer, file string, p *policy.Policy, all []scheduled) {
	if len(all) == 0 {
		Printf(out, "%s has no schedules\n", file)
		return
	}
	w := newTable(out, "schedule", "when", "zone", "for", "except", "now", "next", "sets")
	for i, s := range all {
		state, next := "closed", "opens "
		if s.Open {
			state, next = "open", "closes "
		}
		Printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.When, dash(s.Zone), s.For,
			dash(strings.Join(s.Except, ", ")), state,
			next+moment(s.Next, p.Schedules[i].Windows.Zone), strings.Join(s.Sets, ", "))
	}
	w.flush()
}

// sets is what a schedule asks, as `set` takes it.
func sets(s policy.Schedule) []string {
	all := []string{}
	for _, set := range s.Set {
		for _, one := range set.Settings {
			all = append(all, set.Group+":"+one.String())
		}
	}
	return all
}

// switched is the JSON of a line of schedule simulate.
type switched struct {
	At       time.Time `json:"at"`
	Schedule string    `json:"schedule"`
	Opens    bool      `json:"opens"`
	Holds    []string  `json:"holds"`
	zone     *time.Location
}

// SwitchesView gives each switch with what the policy asks from then on.
func SwitchesView(p *policy.Policy, all []policy.Switch) []switched {
	lines := make([]switched, len(all))
	for i, sw := range all {
		lines[i] = switched{At: sw.At, Schedule: sw.Schedule, Opens: sw.Opens, Holds: []string{}}
		for _, s := range p.Schedules {
			if s.Name == sw.Schedule {
				lines[i].zone, lines[i].Holds = s.Windows.Zone, holds(p, s, sw.At)
			}
		}
	}
	return lines
}

// Switches prints the switches of so many days.
func Switches(out io.Writer, lines []switched, days int) {
	if len(lines) == 0 {
		Printf(out, "nothing switches in %s\n", Count(days, "day", "days"))
		return
	}
	w := newTable(out, "at", "schedule", "what", "from then on")
	for _, l := range lines {
		what := "ends"
		if l.Opens {
			what = "begins"
		}
		Printf(w, "%s\t%s\t%s\t%s\n", moment(l.At, l.zone), l.Schedule, what, strings.Join(l.Holds, ", "))
	}
	w.flush()
}

// holds is what the policy asks, at a time, of everything that a schedule is about.
func holds(p *policy.Policy, s policy.Schedule, at time.Time) []string {
	all, open := []string{}, p.Open(at)
	for _, set := range s.Set {
		for _, one := range set.Settings {
			text := set.Group + ":" + string(one.Key) + " as without it"
			if asked, ok := p.Asked(set.Group, one.Key, one.On, open); ok {
				text = set.Group + ":" + asked.String()
			}
			all = append(all, text)
		}
	}
	return all
}

// moment prints a time as the clock on the wall of a zone shows it.
func moment(t time.Time, zone *time.Location) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(zone).Format("2006-01-02 15:04 MST")
}
