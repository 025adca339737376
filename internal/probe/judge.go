package probe

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Verdict is what came of a measurement.
type Verdict string

// The verdicts. A limit holds from above: whether it is reached depends on the device and on who else is there.
const (
	Held        Verdict = "held"
	NotReached  Verdict = "not reached"  // held, and the load got less than the limit lets through
	NotEnforced Verdict = "NOT ENFORCED" // the load got more
	TooTight    Verdict = "TOO TIGHT"    // the kernel holds less than was asked for, and the load got no more than that
	NotMeasured Verdict = "not measured"
	// NotDecided is a share that is off on a host whose other work shifts shares as much: it proves nothing.
	NotDecided Verdict = "not decided"
)

// Fault says whether a verdict is that something is wrong.
func (v Verdict) Fault() bool { return v == NotEnforced || v == TooTight }

// The tolerances, as a part of what was asked.
const (
	Tolerance         = 0.05
	ToleranceBuffered = 0.10 // through the page cache, in steady state; and of what is policed
	// ToleranceShare is that of a share of a contended CPU, as a part of the whole, and ToleranceDisk of a contended
	// disk.
	ToleranceShare = 0.12
	ToleranceDisk  = 0.25
)

// Rate is a ceiling measured: of CPU, bytes, operations, tasks.
type Rate struct {
	Asked float64
	// InForce is what the kernel's file holds; 0 is not known, +Inf no limit.
	InForce   float64
	Measured  float64
	Tolerance float64 // 0 is Tolerance
	// Grain is what one unit more or less makes, for what is counted in few.
	Grain float64
}

// Judge compares.
func (r Rate) Judge() Verdict {
	tolerance := cmp.Or(r.Tolerance, Tolerance)
	low, high := r.Asked*(1-tolerance)-r.Grain, r.Asked*(1+tolerance)+r.Grain
	switch {
	case math.IsNaN(r.Measured) || r.Measured < 0 || r.Asked <= 0:
		return NotMeasured
	case r.Measured > high:
		return NotEnforced
	case r.Measured >= low:
		return Held
	case r.InForce > 0 && r.InForce < low && r.Measured <= r.InForce*(1+tolerance)+r.Grain &&
		r.Measured >= r.InForce*(1-2*tolerance)-r.Grain:
		return TooTight
	}
	return NotReached
}

// Difference is by how much a part of what was asked more was measured; less is negative.
func (r Rate) Difference() float64 { return (r.Measured - r.Asked) / r.Asked }

// Share is the part of a contended resource that went to the group, of that which it and its rival got together.
type Share struct {
	Asked     float64 // 0 to 1, by the weights
	Measured  float64
	Tolerance float64 // 0 is ToleranceShare
	// Alike is the part that the group's load got beside one of the same weight, where half is due: what it is off by
	// is the host's doing. 0 is not measured.
	Alike float64
}

// Judge compares. A share that is off counts where two loads of the same weight shared as they should, and where it is
// off by more than those were.
func (s Share) Judge() Verdict {
	tolerance := cmp.Or(s.Tolerance, ToleranceShare)
	off, noise := math.Abs(s.Measured-s.Asked), 0.0
	if s.Alike > 0 {
		noise = math.Abs(s.Alike - 0.5)
	}
	switch {
	case math.IsNaN(s.Measured) || s.Measured < 0 || s.Measured > 1:
		return NotMeasured
	case off <= tolerance:
		return Held
	case noise > tolerance || off <= tolerance+noise:
		return NotDecided
	}
	return NotEnforced
}

// Contest is what came of two loads that contended for so long.
type Contest struct {
	Share
	Took time.Duration
	Idle string // why a share that is off tells nothing, where what they contended for was not busy
}

// Decide has a load contend with a rival, and where its share is off and nothing explains that, with one of the same
// weight: it may be the host's other work. Idle is left where it tells.
func Decide(contend func(alike bool) (Contest, error), explained func() bool) (c Contest, err error) {
	if c, err = contend(false); err != nil {
		return c, err
	}
	switch {
	case !c.Judge().Fault() || explained():
		c.Idle = ""
	case c.Idle == "":
		same, err := contend(true)
		if err != nil {
			return c, fmt.Errorf("it got %.1f %% instead of %.1f %%, and then, beside one of the same weight, that "+
				"could not be confirmed: %w", 100*c.Measured, 100*c.Asked, err)
		}
		c.Alike, c.Took = same.Measured, c.Took+same.Took
	}
	return c, nil
}

// ShareOf is the part that a weight has beside another one.
func ShareOf(weight, rival float64) float64 { return weight / (weight + rival) }

// Rival is the weight of who competes with a group of so much, so that the parts tell whether weights count: a third or
// three times as much, within the bounds.
func Rival(weight, low, high int64) int64 {
	if weight/3 >= low {
		return weight / 3
	}
	return min(3*weight, high)
}

// Wider gives those CPUs or nodes that are not among those asked for.
func Wider(asked, got []int) (more []int) {
	known := map[int]bool{}
	for _, id := range asked {
		known[id] = true
	}
	for _, id := range got {
		if !known[id] {
			more = append(more, id)
		}
	}
	return more
}

// Percent is a difference for people: "+3.1 %".
func Percent(difference float64) string {
	if math.IsNaN(difference) || math.IsInf(difference, 0) {
		return "–"
	}
	return fmt.Sprintf("%+.1f %%", 100*difference)
}
