// Package proved tells whether a change did good: it measures without and with the change in turns, and holds the
// difference against how much two measurements without it differ (the A/A spread).
//
// It takes functions that measure, change and undo, and gives values; it starts nothing itself.
package proved

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"bulkhead/internal/proof"
)

// Enough is how many rounds a figure needs before it is one to rely on.
const Enough = 7

// Row is one thing that is measured.
type Row struct {
	Key     string // in a Sample
	Name    string // "p99 of client"
	Unit    string // "ms", "/s"
	Latency bool   // less is better; of others more is
}

// Sample is one measurement: values by key. What is missing or NaN was not measured.
type Sample map[string]float64

// Turns is one comparison. Its functions are called one at a time, from the goroutine of Run.
type Turns struct {
	Rounds int // pairs of a measurement without and one with the change, at least 1
	Rows   []Row
	// Measure measures once. Text says what it is, for people; done counts measurements from 0.
	Measure func(ctx context.Context, text string, done int) (Sample, error)
	// Apply puts the change in force, Undo takes it back. One that fails has changed nothing.
	Apply, Undo func(ctx context.Context, round int) error
}

// Words of a verdict.
const (
	Better       = "better"
	Worse        = "worse"
	NoDifference = "no difference beyond the noise"
	NotMeasured  = "not measured"
)

// Result is what a comparison found. The change is not in force after it. Field names are stable.
type Result struct {
	Rounds  int      `json:"rounds"`
	Figures []Figure `json:"figures"`
	// Verdict is Worse if any figure is worse, else Better if any is better, else NoDifference; NotMeasured if there is
	// no figure.
	Verdict string `json:"verdict"`
	// Samples are as they were measured: without the change, with it, without it, and so on.
	Samples []map[string]proof.Figure `json:"samples"`
}

// Figure is one row over all rounds. Percentages are of the mean of the two measurements without the change that stand
// around one with it.
type Figure struct {
	Name   string       `json:"name"`
	Unit   string       `json:"unit"`
	Before proof.Figure `json:"before"` // median of all measurements without the change
	After  proof.Figure `json:"after"`  // median of all measurements with it
	// Difference is that of each round, in percent: 0 is none, -10 a tenth less.
	Difference proof.Range `json:"difference_percent"`
	// Spread is how far measurements without the change are from the mean of two that follow each other, in percent.
	Spread  proof.Range `json:"spread_percent"`
	Verdict string      `json:"verdict"`
}

// undoTime is how long taking the change back may take when the run ends before its time.
const undoTime = 30 * time.Second

// ErrStays says that the change could not be taken back.
var ErrStays = errors.New("take the change back")

// Run measures without the change, with it, without it, and so on, and ends with one without it. Whatever ends it
// early, the change is undone before it returns.
func (t Turns) Run(ctx context.Context) (*Result, error) {
	if t.Rounds < 1 {
		return nil, errors.New("no round to measure")
	}
	var without, with []Sample
	measure := func(text string, into *[]Sample) error {
		s, err := t.Measure(ctx, text, len(without)+len(with))
		*into = append(*into, s)
		return errors.Join(err, ctx.Err())
	}
	for round := 1; ; round++ {
		text := fmt.Sprintf("round %d of %d, without the change", round, t.Rounds)
		if round > t.Rounds {
			text = "at the end, without the change"
		}
		if err := measure(text, &without); err != nil {
			return nil, err
		}
		if round > t.Rounds {
			return t.result(without, with), nil
		}
		err := t.changed(ctx, round, func() error {
			return measure(fmt.Sprintf("round %d of %d, with the change", round, t.Rounds), &with)
		})
		if err != nil {
			return nil, err
		}
	}
}

// changed does something while the change is in force, and takes it back, after a failure, a panic and the end of ctx
// too.
func (t Turns) changed(ctx context.Context, round int, do func() error) (err error) {
	if err := t.Apply(ctx, round); err != nil {
		return fmt.Errorf("put the change in force: %w", err)
	}
	defer func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer stop()
		if undo := t.Undo(ctx, round); undo != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", ErrStays, undo))
		}
	}()
	return do()
}

func (t Turns) result(without, with []Sample) *Result {
	r := &Result{Rounds: t.Rounds, Verdict: NotMeasured}
	for i, a := range without {
		r.Samples = append(r.Samples, figures(a))
		if i < len(with) {
			r.Samples = append(r.Samples, figures(with[i]))
		}
	}
	for _, row := range t.Rows {
		f := judge(row, values(row.Key, without), values(row.Key, with))
		r.Figures = append(r.Figures, f)
		if rank[f.Verdict] > rank[r.Verdict] {
			r.Verdict = f.Verdict
		}
	}
	return r
}

// rank says which verdict of a figure counts for the whole.
var rank = map[string]int{NotMeasured: 0, NoDifference: 1, Better: 2, Worse: 3}

// coarse is the least spread of a latency, in percent: the histograms of load programs are no finer.
const coarse = 2.0

// judge compares measurements without the change with those between them.
func judge(row Row, without, with []float64) Figure {
	f := Figure{Name: row.Name, Unit: row.Unit, Before: proof.Figure(proof.Median(without)),
		After: proof.Figure(proof.Median(with)), Verdict: NotMeasured}
	var difference, spread []float64
	for i, b := range with {
		mean := (without[i] + without[i+1]) / 2
		if math.IsNaN(mean) || mean <= 0 {
			continue
		}
		difference = append(difference, 100*(b/mean-1))
		spread = append(spread, 100*(without[i]/mean-1), 100*(without[i+1]/mean-1))
	}
	f.Difference, f.Spread = proof.Over(difference), proof.Over(spread)
	middle, low, high := float64(f.Difference.Median), float64(f.Spread.Low), float64(f.Spread.High)
	if math.IsNaN(middle) {
		return f
	}
	if row.Latency {
		low, high = min(low, -coarse), max(high, coarse)
		f.Spread.Low, f.Spread.High = proof.Figure(low), proof.Figure(high)
	}
	if !alike(difference) {
		low, high = math.Inf(-1), math.Inf(1)
	}
	switch {
	case middle < low && row.Latency, middle > high && !row.Latency:
		f.Verdict = Better
	case middle < low, middle > high:
		f.Verdict = Worse
	default:
		f.Verdict = NoDifference
	}
	return f
}

// alike says whether the rounds agree on the direction, but for one of each seven.
func alike(differences []float64) bool {
	more, less := 0, 0
	for _, d := range differences {
		switch {
		case d > 0:
			more++
		case d < 0:
			less++
		}
	}
	return max(more, less) >= len(differences)-len(differences)/Enough
}

// values are those of one key, NaN where there is none.
func values(key string, samples []Sample) []float64 {
	all := make([]float64, len(samples))
	for i, s := range samples {
		x, measured := s[key]
		if !measured {
			x = math.NaN()
		}
		all[i] = x
	}
	return all
}

func figures(s Sample) map[string]proof.Figure {
	all := map[string]proof.Figure{}
	for key, x := range s {
		all[key] = proof.Figure(x)
	}
	return all
}
