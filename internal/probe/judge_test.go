package probe

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRateIsJudgedFromAbove(t *testing.T) {
	inf := math.Inf(1)
	for _, tt := range []struct {
		what string
		rate Rate
		want Verdict
	}{
		{"as asked", Rate{Asked: 100, InForce: 100, Measured: 99}, Held},
		{"a little above", Rate{Asked: 100, InForce: 100, Measured: 104.9}, Held},
		{"above", Rate{Asked: 100, InForce: 100, Measured: 106}, NotEnforced},
		{"above, through the page cache", Rate{Asked: 100, InForce: 100, Measured: 106, Tolerance: ToleranceBuffered},
			Held},
		{"above by what one request makes", Rate{Asked: 100, InForce: 100, Measured: 106, Grain: 2}, Held},
		{"a slow disk", Rate{Asked: 100, InForce: 100, Measured: 60}, NotReached},
		{"a slow disk, the limit not known", Rate{Asked: 100, Measured: 50}, NotReached},
		{"half of it is in force", Rate{Asked: 100, InForce: 50, Measured: 50}, TooTight},
		{"half of it is in force, and the disk is slower still", Rate{Asked: 100, InForce: 50, Measured: 20},
			NotReached},
		{"lifted, and the disk is slow", Rate{Asked: 100, InForce: inf, Measured: 90}, NotReached},
		{"lifted", Rate{Asked: 100, InForce: inf, Measured: 4000}, NotEnforced},
		{"nothing came of it", Rate{Asked: 100, InForce: 100, Measured: math.NaN()}, NotMeasured},
		{"nothing was asked", Rate{Measured: 5}, NotMeasured},
	} {
		if got := tt.rate.Judge(); got != tt.want {
			t.Errorf("%s: %+v is %q, want %q", tt.what, tt.rate, got, tt.want)
		}
	}
}

func TestShareIsJudgedOnBothSides(t *testing.T) {
	for _, tt := range []struct {
		asked, measured float64
		want            Verdict
	}{
		{0.75, 0.77, Held}, {0.75, 0.50, NotEnforced}, {0.25, 0.5, NotEnforced}, {0.25, 0.2, Held},
		{0.003, 0.01, Held}, {0.003, 0.5, NotEnforced}, {0.75, 0.95, NotEnforced}, {0.75, math.NaN(), NotMeasured},
	} {
		if got := (Share{Asked: tt.asked, Measured: tt.measured}).Judge(); got != tt.want {
			t.Errorf("%v of %v is %q, want %q", tt.measured, tt.asked, got, tt.want)
		}
	}
}

// A share that is off by no more than two loads of the same weight were decides nothing, nor does it where those were
// off by more than a share may be.
func TestShareIsJudgedBesideOneOfTheSameWeight(t *testing.T) {
	for _, tt := range []struct {
		asked, measured, alike float64
		want                   Verdict
	}{
		{0.75, 0.93, 0.5, NotEnforced}, {0.75, 0.93, 0.60, NotDecided}, {0.75, 0.93, 0.40, NotDecided},
		{0.75, 0.93, 0.54, NotEnforced}, {0.75, 0.30, 0.70, NotDecided}, {0.75, 0.77, 0.70, Held},
		{0.25, math.NaN(), 0.5, NotMeasured},
	} {
		s := Share{Asked: tt.asked, Measured: tt.measured, Alike: tt.alike}
		if got := s.Judge(); got != tt.want || got == NotDecided && got.Fault() {
			t.Errorf("%+v is %q, want %q", s, got, tt.want)
		}
	}
}

// What does not exceed the limit is never a fault as long as the kernel holds what was asked, and what exceeds it by
// more than the tolerance always is one.
func TestRateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asked := rapid.Float64Range(1, 1e12).Draw(t, "asked")
		part := rapid.Float64Range(0, 3).Draw(t, "part")
		r := Rate{Asked: asked, InForce: asked, Measured: asked * part}
		switch v := r.Judge(); {
		case part <= 1 && v.Fault():
			t.Fatalf("%+v is %q", r, v)
		case part > 1+2*Tolerance && v != NotEnforced:
			t.Fatalf("%+v is %q", r, v)
		}
	})
}

// A rival's weight is one that the kernel takes, and tells weights from none by more than the tolerance.
func TestRivalTellsWeightsApart(t *testing.T) {
	for _, bounds := range [][2]int64{{2, 1 << 18}, {1, 10000}} {
		for weight := bounds[0]; weight <= bounds[1]; weight++ {
			rival := Rival(weight, bounds[0], bounds[1])
			if rival < bounds[0] || rival > bounds[1] {
				t.Fatalf("the rival of %d has %d", weight, rival)
			}
			if share := ShareOf(float64(weight), float64(rival)); math.Abs(share-0.5) <= ToleranceShare {
				t.Fatalf("beside %d a weight of %d is %v of it, which is hard to tell from a half", rival, weight,
					share)
			}
		}
	}
}

func TestWider(t *testing.T) {
	if got := Wider([]int{0, 2}, []int{0, 1, 2, 3}); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("beyond 0 and 2: %v", got)
	}
	if got := Wider([]int{0, 1}, []int{1}); len(got) > 0 {
		t.Errorf("one CPU of two is wider by %v", got)
	}
}

func TestPercent(t *testing.T) {
	for d, want := range map[float64]string{0.031: "+3.1 %", -0.5: "-50.0 %", math.NaN(): "–"} {
		if got := Percent(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}
