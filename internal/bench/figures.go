package bench

import (
	"maps"
	"strings"
	"time"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/sampler"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// between is the time from when a policy is in force until a phase is measured.
const between = 250 * time.Millisecond

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
		begin := m.Ready + between.Seconds()
		if begin >= end { // it came too late to show anything
			continue
		}
		for figure, x := range s.Figures(at(begin), at(end)) {
			t.figures[m.Name+"."+figure] = x
		}
		for name, o := range t.outcomes {
			seconds := load.Within(o.Seconds, begin, end)
			t.figures[m.Name+"."+name+".tps"] = load.Mean(seconds)
			t.figures[m.Name+"."+name+".holds_after"] = load.HoldsAfter(load.Within(o.Seconds, m.At, end), m.At)
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
