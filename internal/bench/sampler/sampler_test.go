package sampler

import (
	"testing"
	"time"

	"bulkhead/internal/metrics"
)

// A phase has what was used from when its policy was in force to its end, and nothing of the phases beside it.
func TestFiguresOfAPhase(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	used := func(seconds float64) int64 { // a core until the limit of a tenth came, which was after 3.4 s
		return int64(1e6 * (min(seconds, 3.4) + 0.1*max(0, seconds-3.4)))
	}
	s := &Sampler{}
	for _, r := range []struct {
		at      float64
		between bool
	}{{0, false}, {1, false}, {2, false}, {3, false}, {3.3, true}, {3.65, true}, {4, false}, {5, false}, {6, false}} {
		at := began.Add(time.Duration(r.at * float64(time.Second)))
		sample := metrics.Sample{At: at, Found: true}
		sample.Usage.CPU.Total = new(used(r.at))
		s.readings = append(s.readings, reading{at: at, between: r.between,
			groups: map[string]metrics.Sample{"g": sample}})
	}
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	for _, phase := range []struct{ from, to, want float64 }{{0, 3.3, 1}, {3.65, 6, 0.1}} {
		if got := s.Figures(at(phase.from), at(phase.to))["g.cpu"]; got < phase.want-0.001 || got > phase.want+0.001 {
			t.Errorf("from %g to %g: %g cores, not %g", phase.from, phase.to, got, phase.want)
		}
	}
	if groups, host := s.Series(began); len(groups["g"]) != 6 || len(host) != 6 {
		t.Errorf("%d seconds of the group and %d of the machine, not 6", len(groups["g"]), len(host))
	}
}

// A group without a first reading counts from its first one, and not all that it used before; one that came while
// policies changed counts from nothing.
func TestFiguresOfAGroupThatAppears(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	for changing, want := range map[bool]float64{false: 1, true: 51} {
		s := &Sampler{Changing: changing}
		for i := range 3 {
			at := began.Add(time.Duration(i) * time.Second)
			r := reading{at: at, groups: map[string]metrics.Sample{}}
			if i > 0 {
				sample := metrics.Sample{At: at, Found: true}
				sample.Usage.CPU.Total = new(int64(100_000_000 + i*1_000_000))
				r.groups["g"] = sample
			}
			s.readings = append(s.readings, r)
		}
		if got := s.Figures(began, began.Add(2*time.Second))["g.cpu"]; got != want {
			t.Errorf("policies change: %v: %g cores, not %g", changing, got, want)
		}
	}
}
