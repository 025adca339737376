package top

import (
	"slices"
	"sort"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

// Reel are states one after the other. It is for one goroutine at a time.
type Reel struct{ states []*State }

// longest is how many states a reel keeps: more than half an hour while the quick collectors read every second.
const longest = 2400

// Append adds a tick, and says how many states were dropped at the begin for it. One that is not newer than the last is
// left out.
func (r *Reel) Append(t record.Tick) (dropped int) {
	var last *State
	if n := len(r.states); n > 0 {
		if last = r.states[n-1]; !t.At.After(last.At) {
			return 0
		}
	}
	return r.add(last.Next(t))
}

// add adds a state, and says how many were dropped for it.
func (r *Reel) add(s *State) (dropped int) {
	r.states = append(r.states, s)
	dropped = max(len(r.states)-longest, 0)
	r.states = slices.Delete(r.states, 0, dropped)
	return dropped
}

// AppendSample adds what is new in a sample of a running agent, and says how many states were dropped at the begin for
// it. One that is older than the last state is of a clock that was set back, and the reel begins anew with it.
func (r *Reel) AppendSample(s *observe.Sample) (dropped int) {
	var last *State
	if n := len(r.states); n > 0 {
		last = r.states[n-1]
	}
	next := last.NextSample(s, observe.Parts)
	if next == last {
		return 0
	}
	if last != nil && next.At.Before(last.At) {
		dropped, r.states = len(r.states), nil
	}
	return dropped + r.add(next)
}

// NextSample is what is known of some collectors after a sample of a running agent, and s itself after the same one
// again; s may be nil. Of what was known before a clock was set back nothing is.
func (s *State) NextSample(sample *observe.Sample, of []observe.Part) *State {
	if s == nil {
		s = &State{}
	}
	switch at := record.TimeOf(sample); {
	case at.Equal(s.At):
		return s
	case at.Before(s.At):
		s = &State{}
	}
	return s.Next(record.TickOf(sample, s.fresh(sample, of)))
}

// fresh are those of the collectors that have read since.
func (s *State) fresh(sample *observe.Sample, of []observe.Part) (all []observe.Part) {
	for i := range sample.Collectors {
		c := &sample.Collectors[i]
		if slices.Contains(of, c.Name) && sample.At.Add(-c.Age).Sub(s.Read(c.Name)) > observe.Apart {
			all = append(all, c.Name)
		}
	}
	return all
}

// Len is how many states there are.
func (r *Reel) Len() int { return len(r.states) }

// State is one of them, from 0 on.
func (r *Reel) State(i int) *State { return r.states[i] }

// Newest is the time of the last of them; zero when there is none.
func (r *Reel) Newest() time.Time {
	if len(r.states) == 0 {
		return time.Time{}
	}
	return r.states[len(r.states)-1].At
}

// Find is the place of the last state that is not after a time; -1 when there is none.
func (r *Reel) Find(at time.Time) int {
	return sort.Search(len(r.states), func(i int) bool { return r.states[i].At.After(at) }) - 1
}

// Trend are the values of a column up to a state, a value for each reading, the oldest first, at most n.
func (r *Reel) Trend(i int, c *Column, group string, n int) (values []float64) {
	row := observe.RowOf(c.From[0])
	last := time.Time{}
	for ; i >= 0 && len(values) < n; i-- {
		at := r.states[i].Read(row.Part)
		if at.IsZero() || at.Equal(last) {
			continue
		}
		last = at
		cell := c.Cell(r.states[i], group)
		if !cell.Known {
			break
		}
		values = append(values, cell.Value)
	}
	slices.Reverse(values)
	return values
}

// Bars draws values with a character each, from none to the largest of them, or to least where that is more.
func Bars(values []float64, least float64, ascii bool) string {
	steps := []rune("▁▂▃▄▅▆▇█")
	if ascii {
		steps = []rune("_.-~=+*#")
	}
	most := least
	for _, v := range values {
		most = max(most, v)
	}
	bars := make([]rune, len(values))
	for i, v := range values {
		bars[i] = steps[0]
		if most > 0 {
			bars[i] = steps[min(int(v/most*float64(len(steps))), len(steps)-1)]
		}
	}
	return string(bars)
}
