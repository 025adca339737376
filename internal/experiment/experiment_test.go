package experiment

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

func coin(rng *rand.Rand) func() bool { return func() bool { return rng.IntN(2) == 0 } }

// host is a simulated one: a victim waits for a base that drifts, for bursts of others, for noise of each block, and
// for what the suspect takes of it.
type host struct {
	rng    *rand.Rand
	guilt  float64 // part of its time that the victim waits for the suspect
	noise  float64 // standard deviation of a block
	held   bool
	level  float64
	burst  int // blocks that one still lasts
	fail   int // the block that cannot be measured; 0: none
	blocks int
	lifts  int
}

func (h *host) Hold(context.Context) error {
	if h.held {
		return errors.New("held already")
	}
	h.held = true
	return nil
}

func (h *host) Lift(context.Context) error {
	if !h.held {
		return errors.New("not held")
	}
	h.held = false
	h.lifts++
	return nil
}

func (h *host) Left() bool { return true }

func (h *host) Measure(context.Context) (Sample, error) {
	if h.blocks++; h.blocks == h.fail {
		return Sample{}, errors.New("cannot be measured")
	}
	h.level = 0.8*h.level + 0.3*h.noise*h.rng.NormFloat64() // what is near in time is alike
	if h.burst--; h.burst < 0 && h.rng.Float64() < 0.05 {
		h.burst = 1 + h.rng.IntN(3)
	}
	s := Sample{Waits: 0.3 + h.level + h.noise*h.rng.NormFloat64(), Used: 1}
	if h.burst >= 0 {
		s.Waits += 0.15
	}
	if h.held {
		s.Used = 0.1
	} else {
		s.Waits += h.guilt
	}
	s.Waits = math.Min(1, math.Max(0, s.Waits))
	s.Work = new(1000 * (1 - s.Waits))
	return s, nil
}

// Of the guilty at least 95 % are shown, and of the innocent at most 5 %, whatever the noise.
func TestGuiltyAndInnocent(t *testing.T) {
	const cases = 400
	rng := rand.New(rand.NewPCG(29, 3))
	shown := func(guilt float64, noise func() float64) (n, covered int) {
		for range cases {
			h := &host{rng: rng, guilt: guilt, noise: noise()}
			pairs, err := Run(t.Context(), h, Pairs, coin(rng))
			if err != nil {
				t.Fatal(err)
			}
			f := Judge(pairs)
			if f.Shown {
				n++
			}
			if f.Waits.Low <= guilt && guilt <= f.Waits.High {
				covered++
			}
		}
		return n, covered
	}
	quiet := func() float64 { return 0.005 + 0.04*rng.Float64() }
	loud := func() float64 { return 0.05 + 0.2*rng.Float64() }
	guilty, covered := shown(0.25, quiet)
	t.Logf("guilty: %d of %d shown, the interval has the truth in %d", guilty, cases, covered)
	if guilty*100 < cases*95 || covered*100 < cases*93 {
		t.Errorf("%d of %d guilty are shown, and %d intervals have the truth", guilty, cases, covered)
	}
	for name, noise := range map[string]func() float64{"quiet": quiet, "loud": loud} {
		innocent, _ := shown(0, noise)
		t.Logf("innocent, %s: %d of %d shown", name, innocent, cases)
		if innocent*100 > cases*5 {
			t.Errorf("%s: %d of %d innocent are shown", name, innocent, cases)
		}
	}
}

// A host that does something every second block, in step with the experiment, shows no innocent: the order is random.
func TestRhythmOfOthers(t *testing.T) {
	rng := rand.New(rand.NewPCG(29, 4))
	shown := 0
	const cases = 400
	for range cases {
		h := &rhythm{host{rng: rng, noise: 0.01}}
		pairs, err := Run(t.Context(), h, Pairs, coin(rng))
		if err != nil {
			t.Fatal(err)
		}
		if Judge(pairs).Shown {
			shown++
		}
	}
	if shown*100 > cases*5 {
		t.Errorf("%d of %d innocent are shown", shown, cases)
	}
}

type rhythm struct{ host }

func (h *rhythm) Measure(ctx context.Context) (Sample, error) {
	s, err := h.host.Measure(ctx)
	s.Waits += 0.4 * float64(h.blocks%2)
	return s, err
}

// An experiment that fails lifts what it holds, in whichever block, and keeps what it had.
func TestFailureLifts(t *testing.T) {
	for fail := 1; fail <= 2*Pairs; fail++ {
		rng := rand.New(rand.NewPCG(29, uint64(fail)))
		h := &host{rng: rng, fail: fail}
		pairs, err := Run(t.Context(), h, Pairs, coin(rng))
		if err == nil || h.held || h.lifts != fail || len(pairs) != (fail-1)/2 {
			t.Errorf("block %d: error %v, held %v, lifted %d times, %d pairs", fail, err, h.held, h.lifts, len(pairs))
		}
	}
}

// What is judged from few or odd pairs.
func TestJudge(t *testing.T) {
	alike := func(n int, free, held Sample) (all []Pair) {
		for range n {
			all = append(all, Pair{free, held})
		}
		return all
	}
	for _, tt := range []struct {
		name  string
		pairs []Pair
		shown bool
	}{
		{"none", nil, false},
		{"too few", alike(LeastPairs-1, Sample{Waits: 0.5, Used: 1}, Sample{Used: 0.1}), false},
		{"enough", alike(LeastPairs, Sample{Waits: 0.5, Used: 1}, Sample{Used: 0.1}), true},
		{"worse when held", alike(Pairs, Sample{Used: 1}, Sample{Waits: 0.5, Used: 0.1}), false},
		{"always the same, but nothing to speak of", alike(Pairs, Sample{Waits: 0.51, Used: 1},
			Sample{Waits: 0.5, Used: 0.1}), false},
		{"no difference", alike(Pairs, Sample{Waits: 0.5, Used: 1}, Sample{Waits: 0.5, Used: 0.1}), false},
		{"not held", alike(Pairs, Sample{Waits: 0.5, Used: 1}, Sample{Used: 0.9}), false},
		{"did nothing", alike(Pairs, Sample{Waits: 0.5}, Sample{}), false},
	} {
		if f := Judge(tt.pairs); f.Shown != tt.shown || f.Shown == (f.Why != "") {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
}

// The test and the interval are those of the textbook: with all differences above zero chance is one in 2^n.
func TestExact(t *testing.T) {
	if got := chance([]float64{1, 2, 3, 4, 5, 6}); got != 1.0/64 {
		t.Errorf("all above zero: %v", got)
	}
	if got := chance([]float64{1, -1}); got != 3.0/4 {
		t.Errorf("nothing: %v", got)
	}
	low, high, confidence := interval([]float64{1, 2, 3, 4, 5, 6})
	if low != 1 || high != 6 || math.Abs(confidence-62.0/64) > 1e-9 {
		t.Errorf("interval of six: %v to %v, %v", low, high, confidence)
	}
}
