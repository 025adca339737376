// Package slomodel runs the step function of package slo on a model of a host, beside other rules that hold a batch
// back. It reads nothing and has no clock: the same day and seed give the same result.
//
// The model is one queue. The database gets the CPU time that it asks for, groups that may be squeezed share what is
// left, up to their limits, and the database's time is that of a queue at the use of all: base / (1 - use). A limit
// counts from the next second on. There are no disks, no memory, no locks, no run queues of single CPUs and no cost of
// throttling in it, so that it says how rules compare, and not what a host would do.
package slomodel

import (
	"math"
	"math/rand/v2"
	"slices"

	"bulkhead/internal/policy"
	"bulkhead/internal/slo"
)

// Window is how many seconds a window has: those between two looks of the loop when it is cold.
const Window = slo.Look

// ColdSpan and HotSpan are the seconds before a look that its value is of: those of a heartbeat in the agent.
const (
	ColdSpan = 10
	HotSpan  = 2
)

const (
	fullest  = 0.99 // use above it counts as this
	noise    = 0.1  // standard deviation of what is measured, as a part of the value
	stepPart = 0.1  // of all CPUs: a load that changes by it is a step
)

// Day is the load of a host: a figure for each window, in cores.
type Day struct {
	CPUs   float64
	Target slo.Target
	Base   float64   // the signal on the idle host, in its unit; of waits its part of use / (1 - use)
	Load   []float64 // of the database
	Others []float64 // of everything that is not squeezed
	Known  []bool    // nothing is simulated where it is false
	Groups []Group   // that may be squeezed
	Seed   uint64    // of what is measured
}

// Group is one group that may be squeezed.
type Group struct {
	Name string
	Role policy.Role
	slo.Bounds

	Wanted []float64 // what it would use without a limit
	Used   []float64 // what it did use; nil where nothing was recorded
}

// Modelled says whether there is a model of a signal.
func Modelled(s slo.Signal) bool { return s == slo.P95 || s == slo.Heartbeat || s == slo.Waits }

// shape is the signal at a use of the CPUs, where Base is 1.
func shape(s slo.Signal, use float64) float64 {
	use = math.Min(fullest, math.Max(0, use))
	if s == slo.Waits {
		return use / (1 - use)
	}
	return 1 / (1 - use)
}

// value is the signal in a window where groups use so many cores.
func (d *Day) value(w int, used float64) float64 {
	v := d.Base * shape(d.Target.Signal, (d.Load[w]+d.Others[w]+used)/d.CPUs)
	if d.Target.Signal == slo.Waits {
		v = math.Min(1, v)
	}
	return v
}

// measured is a value as it is measured in a second.
func (d *Day) measured(second int, value float64) float64 {
	of := rand.New(rand.NewPCG(d.Seed, uint64(second))) //nolint:gosec // the same for every rule
	return value * math.Exp(noise*of.NormFloat64())
}

// wanted is what all groups would use in a window.
func (d *Day) wanted(w int) (sum float64) {
	for i := range d.Groups {
		sum += math.Min(d.Groups[i].Ceiling, d.Groups[i].Wanted[w])
	}
	return math.Min(d.CPUs, sum)
}

// stepped says whether a window begins with a step: of the load, or of what groups want.
func (d *Day) stepped(w int) bool {
	if w == 0 || !d.Known[w-1] {
		return true
	}
	of := stepPart * d.CPUs
	return math.Abs(d.Load[w]+d.Others[w]-d.Load[w-1]-d.Others[w-1]) >= of ||
		math.Abs(d.wanted(w)-d.wanted(w-1)) >= of
}

// caps are the limits in force: of each group, and of all together.
type caps struct {
	each []float64
	all  float64
}

func (d *Day) open() *caps {
	c := &caps{all: d.CPUs}
	for i := range d.Groups {
		c.each = append(c.each, d.Groups[i].Ceiling)
	}
	return c
}

// use is what groups use of a window under limits: together no more than is left, each a part of what it may.
func (d *Day) use(w int, c *caps, used []float64) (sum float64) {
	for i := range d.Groups {
		used[i] = math.Min(d.Groups[i].Wanted[w], c.each[i])
		sum += used[i]
	}
	room := math.Min(c.all, math.Max(0, d.CPUs-d.Load[w]-d.Others[w]))
	if sum <= room {
		return sum
	}
	for i := range used {
		used[i] *= room / sum
	}
	return room
}

// seen is what a rule sees at the end of a second.
type seen struct {
	second, window int
	known          bool
	last           [ColdSpan]float64       // of the last seconds, the newest first; 0: not known
	measured       func(v float64) float64 // a value as it is measured in this second
	used           []float64               // by each group
}

// value is the worst of the last seconds, as it is measured.
func (s seen) value(seconds int) float64 { return s.measured(slices.Max(s.last[:seconds])) }

// rule is what sets limits. It is asked each second, and says how many limits it changed.
type rule func(s seen, c *caps) (changes int)

// Missed counts windows.
type Missed struct {
	Windows int `json:"windows"`
	Missed  int `json:"missed"`
}

// Part is the part that was missed; 0 of none.
func (m Missed) Part() float64 { return float64(m.Missed) / float64(max(1, m.Windows)) }

func (m *Missed) add(missed bool) {
	m.Windows++
	if missed {
		m.Missed++
	}
}

// Result is what a rule made of a day. A window is missed when its worst second is above the target, as it is and not
// as it is measured.
type Result struct {
	Rule    string  `json:"rule"`
	Limit   float64 `json:"limit_cores,omitempty"` // of the best static limit
	All     Missed  `json:"all_windows"`
	After10 Missed  `json:"10s_after_a_step"` // windows that begin 10 s after the last step, or later
	After20 Missed  `json:"20s_after_a_step"`
	Work    float64 `json:"core_seconds"` // of the groups
	// OfBest is that work as a part of the work under the best static limit; 0 where that is none.
	OfBest  float64 `json:"work_of_best_static"`
	Changes int     `json:"changes"`
}

// run has a rule set the limits of a day.
func (d *Day) run(name string, of rule) Result {
	r := Result{Rule: name}
	c, used, since := d.open(), make([]float64, len(d.Groups)), 0
	var last [ColdSpan]float64
	for w := range d.Load {
		if d.Known[w] && d.stepped(w) {
			since = 0
		}
		worst := 0.0
		for s := range Window {
			at := seen{second: w*Window + s, window: w, known: d.Known[w], used: used}
			at.measured = func(v float64) float64 { return d.measured(at.second, v) }
			copy(last[1:], last[:])
			last[0] = 0
			if at.known {
				sum := d.use(w, c, used)
				last[0] = d.value(w, sum)
				r.Work += sum
				worst = math.Max(worst, last[0])
			}
			at.last = last
			r.Changes += of(at, c)
		}
		if d.Known[w] {
			missed := d.Target.Slack(worst) < 0
			r.All.add(missed)
			if since >= 10 {
				r.After10.add(missed)
			}
			if since >= 20 {
				r.After20.add(missed)
			}
			since += Window
		}
	}
	return r
}

// Suggestion is what the loop says on values that were recorded.
type Suggestion struct {
	Window int
	slo.Action
}

// Suggestions are what the loop says in mode advise on the values of windows as they were recorded.
func (d *Day) Suggestions(values []float64) (all []Suggestion) {
	l, s := slo.Loop{Mode: slo.Advise, Target: d.Target}, slo.State{}
	used := make([]float64, len(d.Groups))
	for w, v := range values {
		o := slo.Observation{Known: d.Known[w] && v > 0, Value: v, Span: Window}
		for i := range d.Groups {
			used[i] = d.Groups[i].Used[w]
		}
		o.Candidates = d.candidates(w, used)
		next, actions := l.Step(s, (w+1)*Window, o)
		s = next
		for _, a := range actions {
			all = append(all, Suggestion{w, a})
		}
	}
	return all
}

// candidates are the limits of groups. A group's share is its part of the CPU time of all that was used: the agent
// takes it from what `suspects` says, which knows CPUs one by one.
func (d *Day) candidates(w int, used []float64) (all []slo.Candidate) {
	sum := d.Load[w] + d.Others[w]
	for _, u := range used {
		sum += u
	}
	for i := range d.Groups {
		g := &d.Groups[i]
		all = append(all, slo.Candidate{Knob: slo.Knob{Group: g.Name, Key: policy.KeyCPULimit}, Bounds: g.Bounds,
			Role: g.Role, Share: used[i] / math.Max(sum, 1e-9), Use: used[i], Wanted: g.Wanted[w]})
	}
	return all
}

// Steps is an hour and more of a load that changes in steps from 20 % to 80 % of the CPUs, in an order that the seed
// gives, beside a batch that takes all it gets. The target is 1.5 times what the database has alone at 80 %.
func Steps(cpus float64, windows, each int, seed uint64) *Day {
	d := &Day{CPUs: cpus, Base: 0.010, Seed: seed, Target: slo.Target{Signal: slo.P95},
		Groups: []Group{{Name: "batch", Role: policy.RoleBatch, Bounds: slo.Bounds{Ceiling: cpus}}}}
	levels := []float64{0.2, 0.4, 0.6, 0.8}
	d.Target.Value = 1.5 * d.Base * shape(slo.P95, levels[len(levels)-1])
	order, of := []int{}, rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a simulation
	for w := range windows {
		if at := w / each; at >= len(order) {
			order = append(order, of.Perm(len(levels))...)
		}
		d.Load = append(d.Load, cpus*levels[order[w/each]])
		d.Others, d.Known = append(d.Others, 0), append(d.Known, true)
		d.Groups[0].Wanted = append(d.Groups[0].Wanted, cpus)
	}
	return d
}
