package bench

import (
	"maps"
	"math"
	"strings"
	"time"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/sampler"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// read makes the figures of one trial, over the whole of it and over each of its phases.
func (t *trial) read(s *sampler.Sampler, began time.Time, length time.Duration) {
	t.groups, t.host = s.Series(began)
	maps.Copy(t.figures, s.Figures(began, began.Add(length)))
	for name, o := range t.outcomes {
		for figure, x := range o.Figures() {
			t.figures[name+"."+figure] = x
		}
	}
	for i, m := range t.marks {
		end := length.Seconds()
		if i+1 < len(t.marks) {
			end = t.marks[i+1].At
		}
		at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
		// The time in which a policy is put in force belongs to neither phase.
		begin := m.Ready + 0.25
		if begin >= end { // it came too late to show anything
			continue
		}
		for figure, x := range s.Figures(at(begin), at(end)) {
			t.figures[m.Name+"."+figure] = x
		}
		for name, o := range t.outcomes {
			seconds := secondsOf(o.Seconds, begin, end)
			t.figures[m.Name+"."+name+".tps"] = meanTPS(seconds)
			t.figures[m.Name+"."+name+".holds_after"] = holdsAfter(secondsOf(o.Seconds, m.At, end), m.At)
		}
	}
}

// first copies the figures of a load to names without it: "tps" is that of the arm's first load.
func (t *trial) first(load string) {
	for name, x := range maps.Clone(t.figures) {
		if rest, found := strings.CutPrefix(name, load+"."); found {
			t.figures[rest] = x
		}
		for _, m := range t.marks {
			if rest, found := strings.CutPrefix(name, m.Name+"."+load+"."); found {
				t.figures[m.Name+"."+rest] = x
			}
		}
	}
}

// secondsOf are the seconds that lie wholly in a span.
func secondsOf(all []proof.Second, from, to float64) []proof.Second {
	var inside []proof.Second
	for _, s := range all {
		if s.At-1 >= from-0.25 && s.At <= to+0.25 {
			inside = append(inside, s)
		}
	}
	return inside
}

func meanTPS(seconds []proof.Second) float64 {
	sum := 0.0
	for _, s := range seconds {
		sum += s.TPS
	}
	return sum / float64(len(seconds)) // NaN of none
}

// holdsAfter is how many seconds it took until the rate stayed within a fifth of what it was at the end: the median of
// the last third. One that is not steady there either has not held in the whole phase.
func holdsAfter(seconds []proof.Second, from float64) float64 {
	n := len(seconds)
	if n < 4 {
		return math.NaN()
	}
	var late []float64
	for _, s := range seconds[n-max(2, n/3):] {
		late = append(late, s.TPS)
	}
	end := proof.Median(late)
	held := n
	for held > 0 && math.Abs(seconds[held-1].TPS-end) <= end/5 {
		held--
	}
	if held == n {
		return seconds[n-1].At - from
	}
	return max(0, seconds[held].At-1-from)
}

// perSecond is isolation and latency impact of every second, in percent.
func perSecond(o load.Outcome, solo, latency float64) (isolation, impact []float64) {
	for _, s := range o.Seconds {
		isolation = append(isolation, 100*s.TPS/solo)
		if x := proof.Impact(float64(s.Latency), latency); !math.IsNaN(x) {
			impact = append(impact, x)
		}
	}
	return isolation, impact
}

// soloLatency is the median of the latencies that single seconds of the control arm had.
func soloLatency(trials map[string]*trial, control, load string) float64 {
	var all []float64
	for _, name := range []string{control, scenario.Again} {
		if t := trials[name]; t != nil {
			for _, s := range t.outcomes[load].Seconds {
				all = append(all, float64(s.Latency))
			}
		}
	}
	return proof.Median(all)
}
