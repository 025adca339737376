package slomodel

import (
	"math"

	"bulkhead/internal/slo"
)

// MissedBound is what part of the windows 10 s after a step may be missed, of the loop and of a static limit.
const MissedBound = 0.05

// WorkBound is what part of the batch's work under the best static limit the loop is to leave.
const WorkBound = 0.8

// Compare runs all rules: none, the best static limit, the loop, the rules of koordlet and of Heracles, and the best
// limit of each moment, which nobody knows beforehand.
func (d *Day) Compare() []Result {
	best := d.bestStatic()
	all := []Result{d.run("no policy", func(seen, *caps) int { return 0 }), best,
		d.run("loop", d.loop(slo.Loop{Mode: slo.Act, Target: d.Target})), d.run("koordlet", d.koordlet()),
		d.run("Heracles", d.heracles()), d.run("best limit of each moment", d.eachMoment())}
	for i := range all {
		if best.Work > 0 {
			all[i].OfBest = all[i].Work / best.Work
		}
	}
	return all
}

// loop is the step function of package slo, which looks when it says, and of so many seconds as the agent does: while
// it is hot, of few. In which second of a window it looks first, of which it knows nothing, the seed says.
func (d *Day) loop(l slo.Loop) rule {
	var state slo.State
	due := int(d.Seed % Window) //nolint:gosec // below 5
	place := map[string]int{}
	for i := range d.Groups {
		place[d.Groups[i].Name] = i
	}
	return func(s seen, c *caps) (changes int) {
		if s.second < due {
			return 0
		}
		span := ColdSpan
		if state.Next == slo.HotLook {
			span = HotSpan
		}
		o := slo.Observation{Known: s.known, Span: float64(span)}
		if s.known {
			o.Value, o.Candidates = s.value(span), d.candidates(s.window, s.used)
		}
		next, actions := l.Step(state, s.second+1, o)
		state, due = next, s.second+next.Next
		for _, a := range actions {
			switch at := place[a.Knob.Group]; a.Verb {
			case slo.Squeeze, slo.Give:
				c.each[at], changes = hundredths(a.Value), changes+1
			case slo.Release:
				c.each[at], changes = d.Groups[at].Ceiling, changes+1
			}
		}
		return changes
	}
}

// hundredths is a number of cores as it can be set.
func hundredths(cores float64) float64 { return math.Max(1, math.Round(100*cores)) / 100 }

// static is one limit for all groups together.
func (d *Day) static(limit float64) rule {
	return func(_ seen, c *caps) int {
		c.all = limit
		return 0
	}
}

// bestStatic is the highest limit, in hundredths of a core, for all groups together, with which no more windows are
// missed 10 s after a step (of all, where none begins so long after one) than MissedBound says, or as few as with the
// lowest limit. Use, and with it each value, only grows with the limit, so that halving finds it, and no other such
// limit leaves more work.
func (d *Day) bestStatic() Result {
	of := func(n int) Result {
		r := d.run("best static limit", d.static(float64(n)/100))
		r.Limit = float64(n) / 100
		return r
	}
	low, high := 1, int(100*d.CPUs)
	best := of(low)
	allowed := max(best.counts().Missed, int(MissedBound*float64(best.counts().Windows)))
	for low < high {
		middle := (low + high + 1) / 2
		if r := of(middle); r.counts().Missed <= allowed {
			low, best = middle, r
		} else {
			high = middle - 1
		}
	}
	return best
}

// counts are the windows by which a limit is judged.
func (r Result) counts() Missed {
	if r.After10.Windows == 0 { // no step is 10 s before the next one
		return r.All
	}
	return r.After10
}

// eachMoment is the highest limit with which each window keeps the target.
func (d *Day) eachMoment() rule {
	before := d.CPUs
	return func(s seen, c *caps) (changes int) {
		next := s.window
		if s.second%Window == Window-1 {
			next++
		}
		if next >= len(d.Load) || s.second != 0 && next == s.window {
			return 0
		}
		most := 0.0
		switch ratio := d.Target.Value / d.Base; {
		case d.Target.Signal == slo.Waits && d.Target.Value >= 1:
			most = 1
		case d.Target.Signal == slo.Waits:
			most = ratio / (1 + ratio)
		case ratio > 1:
			most = 1 - 1/ratio
		}
		c.all = math.Max(0, math.Floor(100*(d.CPUs*most-d.Load[next]-d.Others[next]))/100)
		if c.all != before {
			before, changes = c.all, 1
		}
		return changes
	}
}

// koordlet is the rule by which koordlet of Koordinator suppresses the CPU use of best-effort pods in its mode
// cfsQuota, re-implemented from the documentation of CPU Suppress and the constants that the project publishes
// (https://koordinator.sh/docs/user-manuals/cpu-suppress): each second they may have 65 % of the node's CPUs less what
// others use; less at once, more by 10 % of the CPUs at most, changes below 1 % of the CPUs are left out, and the
// lowest quota is 0.02 cores. What the system is set aside (0 here) is left out. It looks at no target.
func (d *Day) koordlet() rule {
	const threshold, rise, least, lowest = 0.65, 0.1, 0.01, 0.02
	return func(s seen, c *caps) int {
		if !s.known {
			return 0
		}
		want := math.Max(lowest, threshold*d.CPUs-d.Load[s.window]-d.Others[s.window])
		want = math.Min(want, c.all+rise*d.CPUs)
		if math.Abs(want-c.all) < least*d.CPUs {
			return 0
		}
		c.all = want
		return 1
	}
}

// heracles is the main controller of Heracles with the CPU part of its controller of cores and memory, re-implemented
// from the paper (Lo and others, "Heracles: Improving Resource Efficiency at Scale", ISCA 2015): each 15 s the batch is
// switched off, for 5 min, when the target is missed, and when the load is above 85 % of its peak; on below 80 %; below
// 10 % of slack it gets no more, below 5 % all CPUs but two are taken from it. In between it grows by a CPU each 2 s.
// It begins with one CPU. The slack counts at each load, as the paper's text has it; its listing asks for it only
// between 80 % and 85 %. Its controllers of caches, memory bandwidth, frequency and network have no model here. The
// peak is the highest load of the day.
func (d *Day) heracles() rule {
	const poll, grow, off, on, few, fewer, kept, coolDown = 15, 2, 0.85, 0.80, 0.10, 0.05, 2, 300
	peak, cooled, enabled, growing := 0.0, 0, true, true
	for w, load := range d.Load {
		if d.Known[w] {
			peak = math.Max(peak, load)
		}
	}
	return func(s seen, c *caps) int {
		before := c.all
		if s.second == 0 {
			c.all = 1
		}
		if s.known && s.second%poll == poll-1 {
			load, slack := d.Load[s.window]/math.Max(peak, 1e-9), d.Target.Slack(s.value(Window))
			growing = slack >= few
			switch {
			case slack < 0:
				enabled, cooled = false, s.second+coolDown
			case load > off:
				enabled = false
			case load < on && s.second >= cooled:
				if !enabled {
					enabled, c.all = true, 1
				}
			}
			if enabled && slack < fewer {
				c.all = math.Min(c.all, kept)
			}
		}
		switch {
		case !enabled:
			c.all = 0
		case growing && s.second%grow == grow-1:
			c.all = math.Min(d.CPUs, c.all+1)
		}
		if c.all != before {
			return 1
		}
		return 0
	}
}
