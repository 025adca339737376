package proved

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

var rows = []Row{{Key: "tps", Name: "transactions", Unit: "/s"}, {Key: "p99", Name: "p99", Unit: "ms", Latency: true}}

// fake is a database that is as fast as it is told to be, and notes what is done to it.
type fake struct {
	log     []string
	inForce bool
	// measure gives the sample of the n-th measurement, from 0.
	measure func(n int, inForce bool) (Sample, error)
}

func (f *fake) turns(rounds int) Turns {
	return Turns{
		Rounds: rounds, Rows: rows,
		Measure: func(ctx context.Context, _ string, done int) (Sample, error) {
			f.log = append(f.log, map[bool]string{false: "A", true: "B"}[f.inForce])
			s, err := f.measure(done, f.inForce)
			return s, errors.Join(err, ctx.Err())
		},
		Apply: func(context.Context, int) error { f.log, f.inForce = append(f.log, "+"), true; return nil },
		Undo: func(ctx context.Context, _ int) error {
			f.log, f.inForce = append(f.log, "-"), false
			return ctx.Err()
		},
	}
}

// The verdict is by the median of the rounds beside the spread of measurements without the change, for throughput and
// for latency, and one figure that is worse counts more than one that is better.
func TestVerdict(t *testing.T) {
	noise := []float64{1, 1.04, 0.97, 1.02, 0.98, 1.03, 0.99, 1} // around a steady figure
	for _, tt := range []struct {
		name                 string
		tps, p99             float64 // with the change, over without
		wantTPS, wantP99, of string
	}{
		{"worse", 0.8, 1, Worse, NoDifference, Worse},
		{"slower answers", 1, 1.5, NoDifference, Worse, Worse},
		{"better", 1.2, 0.7, Better, Better, Better},
		{"better and worse", 1.2, 1.5, Better, Worse, Worse},
		{"within the spread", 1.01, 1.02, NoDifference, NoDifference, NoDifference},
		{"the same", 1, 1, NoDifference, NoDifference, NoDifference},
		{"nothing", math.NaN(), math.NaN(), NotMeasured, NotMeasured, NotMeasured},
	} {
		f := &fake{measure: func(n int, inForce bool) (Sample, error) {
			if inForce {
				return Sample{"tps": 1000 * tt.tps, "p99": 10 * tt.p99}, nil
			}
			x := noise[n/2%len(noise)]
			return Sample{"tps": 1000 * x, "p99": 10 / x}, nil
		}}
		r, err := f.turns(7).Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.Figures[0].Verdict != tt.wantTPS || r.Figures[1].Verdict != tt.wantP99 || r.Verdict != tt.of {
			t.Errorf("%s: %q, %q, together %q: %+v", tt.name, r.Figures[0].Verdict, r.Figures[1].Verdict, r.Verdict,
				r.Figures)
		}
		if log := strings.Join(f.log, ""); log != strings.Repeat("A+B-", 7)+"A" {
			t.Errorf("%s: it went %s", tt.name, log)
		}
		if len(r.Samples) != 15 {
			t.Errorf("%s: %d samples", tt.name, len(r.Samples))
		}
	}
}

// A host that becomes slower all the time is no reason to blame the change, nor is a histogram with coarse steps.
func TestDrift(t *testing.T) {
	f := &fake{measure: func(n int, inForce bool) (Sample, error) {
		p99 := 10.0
		if inForce {
			p99 = 10.15 // the next bucket
		}
		return Sample{"tps": 1000 - 20*float64(n), "p99": p99}, nil
	}}
	r, err := f.turns(7).Run(t.Context())
	if err != nil || r.Verdict != NoDifference {
		t.Errorf("%v, %+v", err, r)
	}
	if b, a := r.Figures[0].Before, r.Figures[0].After; b != 860 || a != 860 {
		t.Errorf("medians %v and %v", b, a)
	}
}

// Rounds that do not agree show no difference, however large: of seven one may be of another mind.
func TestRoundsDisagree(t *testing.T) {
	for other, want := range map[int]string{1: Worse, 2: NoDifference} {
		f := &fake{measure: func(n int, inForce bool) (Sample, error) {
			switch {
			case !inForce:
				return Sample{"tps": 1000}, nil
			case n/2 < other:
				return Sample{"tps": 1500}, nil
			}
			return Sample{"tps": 500}, nil
		}}
		if r, err := f.turns(7).Run(t.Context()); err != nil || r.Verdict != want {
			t.Errorf("%d of 7 rounds are better: %v, %+v", other, err, r)
		}
	}
}

// Whatever ends a comparison, at each of its measurements, the change is taken back, with a context that lives.
func TestEndedEarly(t *testing.T) {
	broken := errors.New("broken")
	for how, end := range map[string]func(cancel context.CancelFunc) error{
		"error":     func(context.CancelFunc) error { return broken },
		"interrupt": func(cancel context.CancelFunc) error { cancel(); return nil },
		"panic":     func(context.CancelFunc) error { panic("broken") },
	} {
		for at := range 7 {
			ctx, cancel := context.WithCancel(t.Context())
			f := &fake{}
			f.measure = func(n int, _ bool) (Sample, error) {
				if n == at {
					return nil, end(cancel)
				}
				return Sample{"tps": 1}, nil
			}
			err := func() (err error) {
				defer func() {
					if recover() != nil {
						err = broken
					}
				}()
				_, err = f.turns(3).Run(ctx)
				return err
			}()
			cancel()
			if err == nil || f.inForce || strings.Contains(err.Error(), "take the change back") {
				t.Errorf("%s at measurement %d: %v, in force %v, it went %v", how, at, err, f.inForce, f.log)
			}
			if n := len(slices.DeleteFunc(f.log, func(s string) bool { return s != "A" && s != "B" })); n != at+1 {
				t.Errorf("%s at measurement %d: it went on for %d", how, at, n-at-1)
			}
		}
	}
}

// A change that cannot be made or taken back is said, and ends it.
func TestChangeFails(t *testing.T) {
	f := &fake{measure: func(int, bool) (Sample, error) { return Sample{"tps": 1}, nil }}
	turns := f.turns(2)
	turns.Apply = func(context.Context, int) error { return errors.New("refused") }
	if _, err := turns.Run(t.Context()); err == nil || err.Error() != "put the change in force: refused" ||
		strings.Join(f.log, "") != "A" {
		t.Errorf("%v, it went %v", err, f.log)
	}
	turns = f.turns(2)
	turns.Undo = func(context.Context, int) error { return errors.New("refused") }
	if _, err := turns.Run(t.Context()); err == nil || err.Error() != "take the change back: refused" {
		t.Error(err)
	}
	if _, err := f.turns(0).Run(t.Context()); err == nil {
		t.Error("no round is no comparison")
	}
}
