package top

import (
	"testing"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/observetest"
)

// A clock that was set back does not stop what is shown: it begins anew.
func TestClockSetBack(t *testing.T) {
	var r Reel
	s := observetest.Sample(t)
	begin := s.At
	for _, step := range []struct {
		at           time.Duration
		dropped, len int
		rated        bool
	}{{time.Hour, 0, 1, false}, {time.Hour + time.Minute, 0, 2, true}, {time.Hour + time.Minute, 0, 2, true},
		{0, 2, 1, false}, {time.Minute, 0, 2, true}} {
		s.At = begin.Add(step.at)
		dropped := r.AppendSample(s)
		if last := r.State(r.Len() - 1); dropped != step.dropped || r.Len() != step.len || !last.At.Equal(s.At) ||
			last.Rated(observe.CPU) != step.rated {
			t.Errorf("after the sample of %s: %d dropped, %d states, the last of %s", step.at, dropped, r.Len(),
				last.At)
		}
	}
}

// A reading whose time is told a millisecond later by the next sample is not a new one, whose rates would be zero.
func TestReadingToldAgain(t *testing.T) {
	var r Reel
	s := observetest.Sample(t)
	begin := s.At
	for i, step := range []struct{ at, age time.Duration }{{0, 0}, {5 * time.Second, 0},
		{6*time.Second + time.Millisecond, time.Second}} {
		s.At = begin.Add(step.at)
		for c := range s.Collectors {
			s.Collectors[c].Age = step.age
		}
		if i == 1 {
			*s.Groups[0].Usage.CPU.Total += 10_000_000
		}
		r.AppendSample(s)
	}
	if cpu := r.State(2).Figures("bulkhead_group_cpu_seconds_total", s.Groups[0].Group); len(cpu) != 1 ||
		cpu[0].Rate != 2 {
		t.Errorf("%+v, not 2 cores", cpu)
	}
}
