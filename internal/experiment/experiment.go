// Package experiment finds out by a randomised experiment whether a group that is held makes another one wait less, or
// do more. It is pure: [Run] holds, lifts and measures through a [Subject], and has no clock.
//
// Each pair of blocks has one in which the suspect is held and one in which it is not, in random order. Both begin with
// the same change; in the latter, the placebo, it is taken back before anything is measured. So blocks differ in the
// hold alone, and an exact test of randomisation (all 2^n exchanges of held and free within pairs) says how likely
// chance alone gives as large a difference. It asks nothing of how figures are distributed. Where several figures of
// the victim are known, the test is of the largest of them in each exchange (P. H. Westfall, S. S. Young,
// Resampling-Based Multiple Testing, 1993), so that to look at more of them makes no innocent guilty.
package experiment

import (
	"context"
	"errors"
	"math"
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
	Waits *float64 // part of its time that the victim waits, 0 to 1; nil where that is not known
	Work  *float64 // of the victim, in a second; nil where nobody counts it
	IO    *float64 // what the victim itself does on the disk, in a second; nil where the hold is of no disk
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
	// Difference is what the hold gives back: free less held of waiting, held less free of others.
	Difference float64 `json:"difference"`
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	// Chance is how likely chance alone gives as large a difference, in this figure or, beside it, in another one.
	Chance float64 `json:"chance"`
	Shows  bool    `json:"shows,omitempty"` // it is large and no chance
}

// Finding is what an experiment found.
type Finding struct {
	Shown      bool    `json:"shown"`
	Why        string  `json:"why,omitempty"` // it is not shown, in words
	Pairs      int     `json:"pairs"`
	Waits      *Figure `json:"waits,omitempty"`
	Work       *Figure `json:"work_per_second,omitempty"`
	IO         *Figure `json:"io_per_second,omitempty"`
	Chance     float64 `json:"chance"`     // the least of figures
	Confidence float64 `json:"confidence"` // of intervals
	// What the suspect used in each kind of blocks.
	UsedFree float64 `json:"used_free"`
	UsedHeld float64 `json:"used_held"`
}

// Judge says what pairs show. Each figure that is known in all blocks may show it.
func Judge(pairs []Pair) Finding {
	f := Finding{Pairs: len(pairs), Chance: 1}
	if len(pairs) == 0 {
		f.Why = "nothing was measured"
		return f
	}
	var known []*Figure
	var gains [][]float64
	figure := func(of func(Sample) *float64, sign float64) *Figure {
		var free, held, gained []float64
		for _, p := range pairs {
			a, b := of(p.Free), of(p.Held)
			if a == nil || b == nil {
				return nil
			}
			free, held, gained = append(free, *a), append(held, *b), append(gained, sign*(*b-*a))
		}
		one := &Figure{Free: mean(free), Held: mean(held), Difference: mean(gained)}
		one.Low, one.High, f.Confidence = interval(gained)
		known, gains = append(known, one), append(gains, gained)
		return one
	}
	f.Waits = figure(func(s Sample) *float64 { return s.Waits }, -1)
	f.Work = figure(func(s Sample) *float64 { return s.Work }, 1)
	f.IO = figure(func(s Sample) *float64 { return s.IO }, 1)
	large := false
	for i, c := range chances(gains) {
		one := known[i]
		least := Harm
		if one != f.Waits {
			least *= one.Free
		}
		one.Chance = c
		one.Shows = c <= Chance && one.Difference > 0 && one.Difference >= least
		f.Chance = min(f.Chance, c)
		f.Shown = f.Shown || one.Shows
		large = large || c <= Chance
	}
	for _, p := range pairs {
		f.UsedFree, f.UsedHeld = f.UsedFree+p.Free.Used, f.UsedHeld+p.Held.Used
	}
	f.UsedFree, f.UsedHeld = f.UsedFree/float64(len(pairs)), f.UsedHeld/float64(len(pairs))
	f.Why = f.why(known, large)
	f.Shown = f.Why == ""
	return f
}

// why says why nothing is shown; "" where something is. large is that some difference is no chance.
func (f *Finding) why(known []*Figure, large bool) string {
	switch {
	case len(known) == 0:
		return "neither how long the victim waits nor what it does was known all the time"
	case f.Pairs < LeastPairs:
		return "too few pairs of blocks were measured"
	case f.UsedFree <= 0:
		return "the suspect did nothing meanwhile"
	case f.UsedHeld > heldTo*f.UsedFree:
		return "the hold took too little away from the suspect"
	case f.Shown:
		return ""
	case large:
		return "the difference is too small to matter"
	}
	return "chance alone gives as large a difference too often"
}

// chances is for each of some figures the part of all exchanges of held and free within pairs in which the sum of any
// figure, each in its own scale, is at least that of this one as it was seen (a test of randomisation, one-sided). The
// scale of a figure is the root of the sum of its squares, which no exchange changes.
func chances(figures [][]float64) []float64 {
	if len(figures) == 0 {
		return nil
	}
	n := len(figures[0])
	scale, seen, as := make([]float64, len(figures)), make([]float64, len(figures)), make([]int, len(figures))
	sum := func(k, flips int) (sum float64) {
		if scale[k] <= 0 {
			return 0
		}
		for i, d := range figures[k] {
			if flips>>i&1 == 1 {
				d = -d
			}
			sum += d
		}
		return sum / scale[k]
	}
	for k, gained := range figures {
		for _, d := range gained {
			scale[k] += d * d
		}
		scale[k] = math.Sqrt(scale[k])
		seen[k] = sum(k, 0)
	}
	for flips := range 1 << n {
		most := math.Inf(-1)
		for k := range figures {
			most = max(most, sum(k, flips))
		}
		for k := range figures {
			if most >= seen[k]-1e-12 { // rounding
				as[k]++
			}
		}
	}
	all := make([]float64, len(figures))
	for k := range all {
		all[k] = float64(as[k]) / float64(int(1)<<n)
	}
	return all
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

func mean(all []float64) float64 {
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	return sum / float64(len(all))
}
