package top

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

// waits is a state after another one in which a group has waited and switched so much so far.
func (s *State) waits(at time.Time, waited, switched, stalled float64) *State {
	return s.Next(record.Tick{At: at, Parts: []record.Part{
		{Name: observe.Threads, Read: at, Figures: []record.Figure{
			{Key: record.KeyOf(waitingTime, "a", "", ""), Value: waited},
			{Key: record.KeyOf(switches, "a", "", "", "involuntary"), Value: switched / 4},
			{Key: record.KeyOf(switches, "a", "", "", "voluntary"), Value: 3 * switched / 4}}},
		{Name: observe.Pressure, Read: at, Figures: []record.Figure{
			{Key: record.KeyOf(pressure, "a", "", "", "cpu", "some"), Value: stalled}}}}})
}

// Looks stand in the rows of their means, worked out by hand; a gap, and counters that begin anew, count nowhere.
func TestWaiting(t *testing.T) {
	begin := time.Unix(1000, 0)
	w := NewWaiting("a", time.Minute)
	var s *State
	for _, r := range []struct{ at, waited, switched, stalled float64 }{
		{0, 7, 1000, 3},
		{10, 7.09, 2000, 3},         // 90 µs each; nobody waited by PSI
		{20, 12.09, 2100, 8},        // 50 ms each; half of the time
		{30, 12.09, 2100, 8},        // nobody wanted a CPU
		{330, 50, 9000, 60},         // a gap
		{340, 1, 10, 1},             // the agent was started
		{350, 1 + 24, 10 + 8, 1.05}, // 3 s each; half a percent
	} {
		s = s.waits(begin.Add(time.Duration(r.at)*time.Second), r.waited, r.switched, r.stalled)
		w.Add(s)
		w.Add(s) // it was taken in already
	}
	got := map[float64]Turns{}
	for _, r := range w.Turns {
		if r.Looks > 0 {
			got[r.Over] = r
		}
	}
	for over, want := range map[float64]Turns{0: {Looks: 1}, 5e-5: {Looks: 1, Turns: 1000, Seconds: 0.09},
		2e-2: {Looks: 1, Turns: 100, Seconds: 5}, 1: {Looks: 1, Turns: 8, Seconds: 24}} {
		r := got[over]
		if r.Looks != want.Looks || math.Abs(r.Turns-want.Turns) > 1e-6 || math.Abs(r.Seconds-want.Seconds) > 1e-6 ||
			over < 1 && (r.UpTo == nil || *r.UpTo <= over) || over == 1 && r.UpTo != nil {
			t.Errorf("over %v s: %+v, want %+v", over, r, want)
		}
	}
	if len(got) != 4 {
		t.Errorf("looks are in %+v", got)
	}
	seconds := map[float64]float64{}
	for _, r := range w.Stalls {
		if r.CPU > 0 {
			seconds[r.UpTo] = r.CPU
		}
	}
	if len(seconds) != 3 || seconds[0] != 20 || seconds[0.5] != 10 || seconds[0.01] != 10 {
		t.Errorf("seconds by part of the time: %v", seconds)
	}
	if !w.From.Equal(begin) || !w.To.Equal(begin.Add(350*time.Second)) {
		t.Errorf("it is of %v to %v", w.From, w.To)
	}
}

// Whatever was counted, the rows together have what was waited, and how often, and the time of all looks.
func TestWaitingIsWhole(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		w, at := NewWaiting("a", time.Hour), time.Unix(1000, 0)
		waited, switched, stalled := 100*random.Float64(), 1e4*random.Float64(), 50*random.Float64()
		first, began := [3]float64{waited, switched, stalled}, at
		var s *State
		for i := range 100 {
			s = s.waits(at, waited, switched, stalled)
			w.Add(s)
			if i == 99 {
				break
			}
			step := 1 + 28*random.Float64()
			at = at.Add(time.Duration(step * float64(time.Second)))
			waited, switched = waited+math.Exp(8*random.Float64()-6), switched+1+math.Floor(1000*random.Float64())
			stalled += step * random.Float64()
		}
		var sum Turns
		for _, r := range w.Turns {
			sum.Looks, sum.Turns, sum.Seconds = sum.Looks+r.Looks, sum.Turns+r.Turns, sum.Seconds+r.Seconds
			mean := r.Seconds / r.Turns
			if r.Turns > 0 && (mean < r.Over*0.999999 || r.UpTo != nil && mean > *r.UpTo*1.000001) {
				t.Fatalf("the mean of %+v is not in it", r)
			}
		}
		looked := 0.0
		for _, r := range w.Stalls {
			looked += r.CPU
		}
		if sum.Looks != 99 || math.Abs(sum.Seconds-(waited-first[0])) > 1e-6 ||
			math.Abs(sum.Turns-(switched-first[1])) > 1e-3 || math.Abs(looked-at.Sub(began).Seconds()) > 1e-6 {
			t.Fatalf("together %+v and %v s, want %v s in %v turns over %v", sum, looked, waited-first[0],
				switched-first[1], at.Sub(began))
		}
	}
}
