package top

import (
	"slices"
	"time"

	"bulkhead/internal/observe"
)

// Waiting is how long a group waited between two times, as distributions over looks: from one reading of a collector to
// the next. The kernel counts sums. So of each look the mean is known, and how long any single wait was is not.
type Waiting struct {
	Group string    `json:"group"`
	From  time.Time `json:"from"` // of the readings
	To    time.Time `json:"to"`
	// Turns are waits of its threads for a CPU, by how long one took on average in its look, the shortest first; nil
	// where the kernel does not count that, or nothing was recorded.
	Turns []Turns `json:"turns,omitempty"`
	// Stalls are looks by the part of the time in which a task of the group waited, the smallest first; nil where the
	// kernel has no PSI of the group.
	Stalls []Stalls `json:"stalls,omitempty"`

	longest time.Duration
	last    map[observe.Part]time.Time // the reading that was taken in last
}

// Turns are looks in which a wait for a CPU took about as long on average.
type Turns struct {
	Over    float64  `json:"over_seconds"`
	UpTo    *float64 `json:"up_to_seconds,omitempty"` // nil: no bound
	Looks   int      `json:"looks"`
	Turns   float64  `json:"turns"`          // how often a thread got a CPU
	Seconds float64  `json:"waited_seconds"` // of all threads together
}

// Stalls are for how long looks lasted in which a task waited for about this part of the time.
type Stalls struct {
	Over float64 `json:"over"` // parts of one
	UpTo float64 `json:"up_to"`
	// The time of these looks in seconds, by what was waited for.
	CPU    float64 `json:"cpu_seconds"`
	Memory float64 `json:"memory_seconds"`
	Disk   float64 `json:"disk_seconds"`
}

const (
	waitingTime = "bulkhead_group_cpu_waiting_seconds_total"
	switches    = "bulkhead_group_context_switches_total"
)

// The bounds of both distributions: seconds of a turn, and parts of the time.
var (
	turnBounds  = []float64{1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1}
	stallBounds = []float64{0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1}
)

// NewWaiting makes one of nothing. A look that is longer than longest spans a gap, and does not count.
func NewWaiting(group string, longest time.Duration) *Waiting {
	return &Waiting{Group: group, longest: longest, last: map[observe.Part]time.Time{}}
}

// Add takes in the looks that end in a state. States come in their order.
func (w *Waiting) Add(s *State) {
	if span, is := w.look(s, observe.Threads); is {
		w.turns(s, span)
	}
	if span, is := w.look(s, observe.Pressure); is {
		w.stalls(s, span)
	}
}

// look says how long the look of a collector took that a state ends with; false where that is none, or known already.
func (w *Waiting) look(s *State, part observe.Part) (span time.Duration, is bool) {
	p := s.parts[part]
	if p.now == nil || p.before == nil || !p.now.at.After(w.last[part]) {
		return 0, false
	}
	w.last[part] = p.now.at
	span = p.now.at.Sub(p.before.at)
	return span, span > 0 && span <= w.longest
}

// known widens the time that is told of.
func (w *Waiting) known(p pair) {
	if w.From.IsZero() || p.before.at.Before(w.From) {
		w.From = p.before.at
	}
	if p.now.at.After(w.To) {
		w.To = p.now.at
	}
}

// turns takes in a look of the threads. A thread gets a CPU as often as it is switched away from one.
func (w *Waiting) turns(s *State, span time.Duration) {
	waited, known := s.sum(waitingTime, w.Group, true)
	voluntary, counted := s.sum(switches, w.Group, true, "voluntary")
	involuntary, all := s.sum(switches, w.Group, true, "involuntary")
	if !known || !counted || !all {
		return
	}
	w.known(s.parts[observe.Threads])
	waited *= span.Seconds()
	turns := (voluntary + involuntary) * span.Seconds()
	mean := waited / max(turns, 1) // one that has a CPU now was not switched away from it yet
	i, _ := slices.BinarySearch(turnBounds, mean)
	if w.Turns == nil {
		w.Turns = make([]Turns, len(turnBounds)+1)
		for i := range w.Turns {
			if i > 0 {
				w.Turns[i].Over = turnBounds[i-1]
			}
			if i < len(turnBounds) {
				w.Turns[i].UpTo = &turnBounds[i]
			}
		}
	}
	w.Turns[i].Looks++
	w.Turns[i].Turns += turns
	w.Turns[i].Seconds += waited
}

// stalls takes in a look of PSI.
func (w *Waiting) stalls(s *State, span time.Duration) {
	for _, r := range waitable {
		part, known := s.sum(pressure, w.Group, true, r.resource, "some")
		if !known {
			continue
		}
		w.known(s.parts[observe.Pressure])
		if w.Stalls == nil {
			w.Stalls = make([]Stalls, len(stallBounds))
			for i := range w.Stalls {
				w.Stalls[i].Over, w.Stalls[i].UpTo = stallBounds[max(i-1, 0)], stallBounds[i]
			}
		}
		i, _ := slices.BinarySearch(stallBounds, min(part, 1))
		row := &w.Stalls[i]
		*map[string]*float64{"cpu": &row.CPU, "memory": &row.Memory, "io": &row.Disk}[r.resource] += span.Seconds()
	}
}
