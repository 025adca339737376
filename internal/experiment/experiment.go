// Package experiment finds out by a randomised experiment whether a group that is held makes another one wait less. It
// is pure: [Run] holds, lifts and measures through a [Subject], and has no clock.
//
// Each pair of blocks has one in which the suspect is held and one in which it is not, in random order. Both begin with
// the same change; in the latter, the placebo, it is taken back before anything is measured. So blocks differ in the
// hold alone, and an exact test of randomisation (all 2^n exchanges of held and free within pairs) says how likely
// chance alone gives as large a difference. It asks nothing of how figures are distributed.
package experiment

import (
	"context"
	"errors"
	"math/bits"
	"slices"
)

// The figures of an experiment.
const (
	Pairs      = 8        // of blocks
	LeastPairs = 5        // without so many there is no verdict
	Chance     = 1.0 / 32 // at most: how likely chance alone gives the difference
	Harm       = 0.02     // of its time: a smaller difference is not worth a verdict
	Confidence = 0.95     // at least, of an interval
	heldTo     = 0.5      // of what it does unheld: above it the hold held nothing
)

// Sample is what was measured in one block.
type Sample struct {
	Waits float64  // part of its time that the victim waits, 0 to 1
	Work  *float64 // of the victim, in a second; nil where nobody counts it
	Used  float64  // by the suspect, of what it is held in, in a second
}

// Subject is what an experiment is made on.
type Subject interface {
	// Hold holds the suspect. It is called when it is not held.
	Hold(ctx context.Context) error
	// Lift takes the hold back. It works after ctx ended, too.
	Lift(ctx context.Context) error
	// Measure lets what a change does come to rest and measures for the length of a block.
	Measure(ctx context.Context) (Sample, error)
	// Left says whether there is time for one pair more.
	Left() bool
}

// Pair is one pair of blocks.
type Pair struct{ Free, Held Sample }

// Run makes up to a number of pairs; coin is even chance, true or false. With an error come those that were completed;
// the suspect is not held any more, unless the error is of Lift.
func Run(ctx context.Context, s Subject, pairs int, coin func() bool) ([]Pair, error) {
	var done []Pair
	for len(done) < pairs && s.Left() {
		var p Pair
		heldFirst := coin()
		for _, held := range []bool{heldFirst, !heldFirst} {
			one, err := block(ctx, s, held)
			if err != nil {
				return done, err
			}
			if held {
				p.Held = one
			} else {
				p.Free = one
			}
		}
		done = append(done, p)
	}
	return done, nil
}

// block is one block, which ends without a hold.
func block(ctx context.Context, s Subject, held bool) (one Sample, err error) {
	if err := s.Hold(ctx); err != nil {
		return one, err
	}
	if held {
		defer func() { err = errors.Join(err, s.Lift(ctx)) }()
	} else if err := s.Lift(ctx); err != nil {
		return one, err
	}
	return s.Measure(ctx)
}

// Figure compares a figure of the victim in both kinds of blocks: means, and their difference with an interval.
type Figure struct {
	Free float64 `json:"free"`
	Held float64 `json:"held"`
	// Difference is what the hold gives back: free less held of waiting, held less free of work.
	Difference float64 `json:"difference"`
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
}

// Finding is what an experiment found.
type Finding struct {
	Shown      bool    `json:"shown"`
	Why        string  `json:"why,omitempty"` // it is not shown, in words
	Pairs      int     `json:"pairs"`
	Waits      Figure  `json:"waits"`
	Work       *Figure `json:"work_per_second,omitempty"`
	Chance     float64 `json:"chance"`     // that chance alone gives as large a difference of waiting
	Confidence float64 `json:"confidence"` // of intervals
	// What the suspect used in each kind of blocks.
	UsedFree float64 `json:"used_free"`
	UsedHeld float64 `json:"used_held"`
}

// Judge says what pairs show. Only the waiting decides; work is told beside it.
func Judge(pairs []Pair) Finding {
	f := Finding{Pairs: len(pairs), Chance: 1}
	if len(pairs) == 0 {
		f.Why = "nothing was measured"
		return f
	}
	column := func(of func(Sample) float64) (free, held []float64) {
		for _, p := range pairs {
			free, held = append(free, of(p.Free)), append(held, of(p.Held))
		}
		return free, held
	}
	free, held := column(func(s Sample) float64 { return s.Waits })
	gained := less(free, held)
	f.Waits = Figure{Free: mean(free), Held: mean(held), Difference: mean(gained)}
	f.Waits.Low, f.Waits.High, f.Confidence = interval(gained)
	f.Chance = chance(gained)
	used, usedHeld := column(func(s Sample) float64 { return s.Used })
	f.UsedFree, f.UsedHeld = mean(used), mean(usedHeld)
	if !slices.ContainsFunc(pairs, func(p Pair) bool { return p.Free.Work == nil || p.Held.Work == nil }) {
		free, held := column(func(s Sample) float64 { return *s.Work })
		gained := less(held, free)
		f.Work = &Figure{Free: mean(free), Held: mean(held), Difference: mean(gained)}
		f.Work.Low, f.Work.High, _ = interval(gained)
	}
	switch {
	case len(pairs) < LeastPairs:
		f.Why = "too few pairs of blocks were measured"
	case f.UsedFree <= 0:
		f.Why = "the suspect did nothing meanwhile"
	case f.UsedHeld > heldTo*f.UsedFree:
		f.Why = "the hold took too little away from the suspect"
	case f.Chance > Chance:
		f.Why = "chance alone gives as large a difference too often"
	case f.Waits.Difference < Harm:
		f.Why = "the difference is too small to matter"
	default:
		f.Shown = true
	}
	return f
}

// chance is the part of all exchanges of held and free within pairs whose sum is at least that of what was seen
// (Fisher's test of randomisation, one-sided).
func chance(gained []float64) float64 {
	n := len(gained)
	seen, slack := 0.0, 0.0
	for _, d := range gained {
		seen += d
		slack += 1e-12 * max(d, -d) // rounding
	}
	as := 0
	for flips := range 1 << n {
		sum := 0.0
		for i, d := range gained {
			if flips>>i&1 == 1 {
				d = -d
			}
			sum += d
		}
		if sum >= seen-slack {
			as++
		}
	}
	return float64(as) / float64(int(1)<<n)
}

// interval is one of at least Confidence for the middle of differences, where so few allow that, by the means of all
// their subsets (J. A. Hartigan, Using Subsample Values as Typical Values, 1969). They are taken to lie evenly about
// it.
func interval(gained []float64) (low, high, confidence float64) {
	n := len(gained)
	means := make([]float64, 0, 1<<n-1)
	for set := 1; set < 1<<n; set++ {
		sum := 0.0
		for i, d := range gained {
			if set>>i&1 == 1 {
				sum += d
			}
		}
		means = append(means, sum/float64(bits.OnesCount(uint(set))))
	}
	slices.Sort(means)
	all := float64(int(1) << n)
	cut := max(1, int((1-Confidence)/2*all))
	return means[cut-1], means[len(means)-cut], 1 - 2*float64(cut)/all
}

func less(a, b []float64) []float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return d
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	return sum / float64(len(all))
}
