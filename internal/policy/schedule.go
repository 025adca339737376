package policy

import (
	"slices"
	"time"

	"bulkhead/internal/calendar"
)

// Schedule is settings that hold while a window is open.
type Schedule struct {
	Name    string
	Windows calendar.Windows
	Zone    string // as written; "" is the host's own
	Set     []Scheduled
	Pos     Pos

	WhenPos, LengthPos, SetPos Pos
}

// Scheduled is what a schedule asks for a group.
type Scheduled struct {
	Group    string // path, as an instance of a template has it
	Settings Settings
	Pos      Pos
}

// Open gives the schedules whose windows are open at a time, in file order. Where two ask for the same of a group, the
// later one decides.
func (p *Policy) Open(at time.Time) []Schedule {
	var open []Schedule
	for _, s := range p.Schedules {
		if _, _, is := s.Windows.Open(at); is {
			open = append(open, s)
		}
	}
	return open
}

// NextSwitch is when a window opens or closes next after a time; ok is false when none does within years.
func (p *Policy) NextSwitch(after time.Time) (at time.Time, ok bool) {
	for _, s := range p.Schedules {
		next, found := s.Next(after)
		if found && (!ok || next.Before(at)) {
			at, ok = next, true
		}
	}
	return at, ok
}

// Next is when a window of the schedule opens or closes next after a time.
func (s Schedule) Next(after time.Time) (at time.Time, ok bool) {
	at, ok = s.Windows.Next(after)
	if _, until, open := s.Windows.Open(after); open && (!ok || until.Before(at)) {
		return until, true
	}
	return at, ok
}

// Asked is what a policy asks of a group while these windows are open.
func (p *Policy) Asked(group string, key Key, on string, open []Schedule) (s Setting, ok bool) {
	var walk func(groups []*Group)
	walk = func(groups []*Group) {
		for _, g := range groups {
			if g.Path == group {
				s, ok = g.Settings.Get(key, on)
			}
			walk(g.Groups)
		}
	}
	walk(p.Groups)
	for _, window := range open {
		for _, set := range window.Set {
			if one, asks := set.Settings.Get(key, on); asks && set.Group == group {
				s, ok = one, true
			}
		}
	}
	return s, ok
}

// Switch is a window that opens or closes.
type Switch struct {
	At       time.Time
	Schedule string
	Opens    bool
}

// Switches lists every switch after a time and up to another one, in order; of one moment what closes comes first.
func (p *Policy) Switches(after, to time.Time) []Switch {
	var all []Switch
	for _, s := range p.Schedules {
		_, _, open := s.Windows.Open(after)
		for at, ok := s.Next(after); ok && !at.After(to); at, ok = s.Next(at) {
			_, _, now := s.Windows.Open(at)
			if now != open { // else one closes as the next opens
				all = append(all, Switch{at, s.Name, now})
			}
			open = now
		}
	}
	slices.SortStableFunc(all, func(a, b Switch) int {
		switch {
		case a.Opens == b.Opens || !a.At.Equal(b.At):
			return a.At.Compare(b.At)
		case a.Opens:
			return 1
		}
		return -1
	})
	return all
}
