package sloloop

import (
	"slices"
	"time"

	"bulkhead/internal/observe"
)

// fewestStatements is how many statements a p95 is of at least, and statementsFor the longest time that is looked back
// for as many, where there are more than two readings in it.
const fewestStatements, statementsFor = 200, 20 * time.Second

// hear takes in what databases said of their statements, where that is new.
func (l *Loops) hear(s *observe.Sample) {
	var read time.Time
	for _, c := range s.Collectors {
		if c.Name == observe.Databases && c.Told {
			read = s.At.Add(-c.Age)
		}
	}
	now := map[string]statements{}
	for i := range s.Groups {
		g := &s.Groups[i]
		if g.Work == nil || read.IsZero() {
			continue
		}
		all, next := l.works[g.Group], works{read, g.Work.Statements, g.Work.Error}
		if n := len(all); n == 0 || read.Sub(all[n-1].at) > observe.Apart {
			all = append(all, next)
		}
		for len(all) > 2 && read.Sub(all[0].at) > statementsFor+observe.Apart {
			all = all[1:]
		}
		now[g.Group] = all
	}
	l.works = now
}

// p95 is the time, in seconds, within which 95 % of the statements between two readings were answered; since is when
// the first of them was, and why says why it is not known. They are the last ones with enough statements between them.
// Within a bucket times are taken to be spread evenly over its upper half.
func (w statements) p95() (value float64, since time.Time, why string) {
	if len(w) == 0 {
		return 0, since, "the database was not asked yet"
	}
	last := &w[len(w)-1]
	if last.why != "" && len(last.all) == 0 {
		return 0, since, last.why
	}
	for _, first := range slices.Backward(w[:len(w)-1]) {
		if len(first.all) == 0 { // it did not answer then
			continue
		}
		calls, sum, anew := last.less(&first)
		if anew {
			return 0, since, "the database counts anew"
		}
		if sum >= fewestStatements {
			return last.longest(calls, sum), first.at, ""
		}
	}
	return 0, since, "there were too few statements"
}

// less is how many statements there were since another reading: of each bucket, and of all. anew says that it counts
// from nothing again.
func (w *works) less(before *works) (calls []float64, sum float64, anew bool) {
	was := map[time.Duration]uint64{}
	for _, s := range before.all {
		was[s.UpTo] = s.Calls
	}
	calls = make([]float64, len(w.all))
	for i, s := range w.all {
		if s.Calls < was[s.UpTo] {
			return nil, 0, true
		}
		calls[i] = float64(s.Calls - was[s.UpTo])
		sum += calls[i]
	}
	return calls, sum, false
}

// longest is the time within which 95 % of so many statements of each bucket were answered.
func (w *works) longest(calls []float64, sum float64) float64 {
	left := 0.95 * sum
	longest := 0.0
	for i, s := range w.all {
		if s.UpTo == 0 { // no bound: as long as the longest that there is
			break
		}
		upper := s.UpTo.Seconds()
		lower := max(longest, upper/2)
		if left <= calls[i] {
			return lower + (upper-lower)*left/calls[i]
		}
		left -= calls[i]
		longest = upper
	}
	return 2 * longest
}
