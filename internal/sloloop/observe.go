package sloloop

import (
	"math"
	"strings"
	"time"

	"bulkhead/internal/attribution"
	"bulkhead/internal/observe"
	"bulkhead/internal/policy"
	"bulkhead/internal/slo"
)

// seen is what one step goes by; window is nil where too little was sampled. What it says of waiting is of since to
// read.
type seen struct {
	window      *attribution.Window
	sample      *observe.Sample
	why         string
	since, read time.Time
}

// look takes in the last sample.
func (l *Loops) look(now time.Time) seen {
	if l.host.mode == slo.Off || len(l.host.targets) == 0 {
		return seen{why: "it is not watched"}
	}
	s := l.o.Sampler.Last()
	if s == nil || s.Age > old {
		return seen{why: "there is no new sample"}
	}
	l.read = l.read.NextSample(s, attribution.Parts).Only(s.Has)
	l.hear(s)
	l.follow(s)
	at, twice := seen{sample: s}, false
	for _, p := range attribution.Parts {
		before, now := l.read.Before(p), l.read.Read(p)
		if before.IsZero() {
			continue
		}
		twice = true
		if tellsWaits[p] {
			if at.since.IsZero() || before.Before(at.since) {
				at.since = before
			}
			if at.read.IsZero() || now.Before(at.read) {
				at.read = now
			}
		}
	}
	if !twice {
		at.why = "the collectors have not read twice yet"
		return at
	}
	at.window = attribution.WindowOf(l.read)
	return at
}

// tellsWaits are the collectors that tell for how long groups waited, as far as that changes from second to second.
var tellsWaits = map[observe.Part]bool{observe.CPU: true, observe.Pressure: true, observe.Threads: true,
	observe.Blamed: true}

// observe is what a loop goes by in a step; why says why its value is not known, and read when that was read, zero
// where it is always new.
func (l *Loops) observe(one *loop, at seen, now time.Time) (o slo.Observation, read time.Time, why string) {
	if at.window == nil {
		return o, read, at.why
	}
	report, err := attribution.Of(at.window, one.target.group)
	if err != nil {
		return o, read, "nothing was sampled of the group"
	}
	most, waits := 0.0, false
	for _, r := range report.Resources {
		if r.Known {
			most, waits = max(most, r.Part), true
		}
	}
	var of time.Duration
	switch s := &one.target.slo; {
	case s.Signal == string(slo.Waits) && !waits:
		why = "how long it waits is counted by no collector here"
	case s.Signal == string(slo.Waits):
		o.Value, of, read = most, now.Sub(at.since), at.read
	case s.Signal == string(slo.P95):
		var since time.Time
		all := l.works[one.target.group]
		if o.Value, since, why = all.p95(); len(all) > 0 {
			of, read = now.Sub(since), all[len(all)-1].at
		}
	default:
		o.Value, of, why = l.askers[s.DSN].tell(s.Signal, now, one.hot(), most >= attribution.Harm)
	}
	if o.Known = why == ""; o.Known {
		if !at.since.IsZero() { // who is to blame is known of another time
			of = max(of, now.Sub(at.since))
		}
		o.Span = math.Round(of.Seconds()) // times of the same second are some milliseconds apart
		o.Candidates = l.candidates(one, report, at, most)
	}
	return o, read, why
}

// candidates are the limits that may be lowered, with the part that their groups have in what the database waits for
// most, and what they use.
func (l *Loops) candidates(one *loop, report *attribution.Report, at seen, most float64) (all []slo.Candidate) {
	one.cold = map[slo.Knob]candidate{}
	// Where it hardly waits, what it is slow for is something else: locks, its own work.
	blameless := most <= 0 || most < attribution.Harm && one.target.slo.Signal != string(slo.Waits)
	for _, c := range l.host.knobs {
		if l.isOfOther(one, c.Group) {
			continue
		}
		resource := "disk"
		if c.Key == policy.KeyCPULimit || c.Key == policy.KeyCPUWeight {
			resource = "cpu"
		}
		if !blameless {
			c.Share = min(1, partIn(report, resource, c.Group)/most)
		}
		for i := range at.window.Groups {
			if g := &at.window.Groups[i]; within(g.Name, c.Group) {
				c.Use += use(g, &c, at.sample.Devices)
				if c.Key == policy.KeyCPULimit && g.CPU != nil && g.Waited != nil {
					c.Wanted += max(0, *g.CPU) + max(0, *g.Waited)
				}
			}
		}
		if c.Key == policy.KeyCPUWeight {
			c.Use = c.Ceiling
		}
		one.cold[c.Knob] = c
		all = append(all, c.Candidate)
	}
	return all
}

// partIn is the part of its time for which a database waits for a resource because of a group.
func partIn(report *attribution.Report, resource, group string) (part float64) {
	for _, r := range report.Resources {
		if r.Name != resource || !r.Known {
			continue
		}
		for _, row := range r.Rows {
			if row.Who == attribution.Other && within(row.Group, group) {
				part += row.Share * r.Part
			}
		}
	}
	return part
}

// isOfOther says whether another loop holds a limit of the group.
func (l *Loops) isOfOther(one *loop, group string) bool {
	for _, other := range l.all {
		for k := range other.state.Held {
			if other != one && k.Group == group {
				return true
			}
		}
	}
	return false
}

// within says whether a group is another one or below it.
func within(group, of string) bool { return group == of || strings.HasPrefix(group, of+"/") }

// use is what a group uses of what a limit is about, in its unit.
func use(g *attribution.Group, c *candidate, names map[string]string) (sum float64) {
	if c.Key == policy.KeyCPULimit {
		if g.CPU != nil {
			return *g.CPU
		}
		return 0
	}
	for _, number := range c.devices {
		name := number
		if known := names[number]; known != "" {
			name = known
		}
		io := g.IO[name]
		sum += map[policy.Key]float64{policy.KeyIOReadBandwidth: io.ReadBytes, policy.KeyIOReadIOPS: io.Reads,
			policy.KeyIOWriteBandwidth: io.WrittenBytes, policy.KeyIOWriteIOPS: io.Writes}[c.Key]
	}
	return sum
}
