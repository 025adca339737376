package sloloop

import (
	"time"

	"bulkhead/internal/observe"
)

// fewestStatements is how many statements a p95 is of at least.
const fewestStatements = 200

// hear takes in what databases said of their statements, where that is new.
func (l *Loops) hear(s *observe.Sample) {
	var read time.Time
	for _, c := range s.Collectors {
		if c.Name == observe.Databases && c.Told {
			read = s.At.Add(-c.Age)
		}
	}
	now := map[string]*statements{}
	for i := range s.Groups {
		g := &s.Groups[i]
		if g.Work == nil || read.IsZero() {
			continue
		}
		pair := l.works[g.Group]
		next := works{read, g.Work.Statements, g.Work.Error}
		switch {
		case pair == nil:
			pair = &statements{next, next}
		case read.Sub(pair[1].at) > apart:
			pair = &statements{pair[1], next}
		}
		now[g.Group] = pair
	}
	l.works = now
}

// p95 is the time, in seconds, within which 95 % of the statements between the last two readings were answered; why
// says why it is not known. Within a bucket times are taken to be spread evenly over its upper half.
func (w *statements) p95() (value float64, why string) {
	switch {
	case w == nil:
		return 0, "the database was not asked yet"
	case w[1].why != "" && len(w[1].all) == 0:
		return 0, w[1].why
	}
	was := map[time.Duration]uint64{}
	for _, s := range w[0].all {
		was[s.UpTo] = s.Calls
	}
	calls, sum := make([]float64, len(w[1].all)), 0.0
	for i, s := range w[1].all {
		if s.Calls < was[s.UpTo] {
			return 0, "the database counts anew"
		}
		calls[i] = float64(s.Calls - was[s.UpTo])
		sum += calls[i]
	}
	if sum < fewestStatements {
		return 0, "there were too few statements"
	}
	left := 0.95 * sum
	longest := 0.0
	for i, s := range w[1].all {
		if s.UpTo == 0 { // no bound: as long as the longest that there is
			break
		}
		upper := s.UpTo.Seconds()
		lower := max(longest, upper/2)
		if left <= calls[i] {
			return lower + (upper-lower)*left/calls[i], ""
		}
		left -= calls[i]
		longest = upper
	}
	return 2 * longest, ""
}
