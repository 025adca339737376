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
	guilt  float64 // part of its time that the suspect takes from the victim
	late   float64 // the part of that which it still takes while it is held: what it wrote before goes to the disk
	kind   kind
	noise  float64 // standard deviation of a block
	held   bool
	level  float64
	burst  int // blocks that one still lasts
	fail   int // the block that cannot be measured; 0: none
	blocks int
	lifts  int
}

// kind is how what a victim loses shows.
type kind int

const (
	waits     kind = iota // for CPUs, and its work beside that
	onlyWaits             // nobody counts its work
	onlyWork              // it waits for nothing that the kernel counts: caches, bandwidth of memory
	readsOn               // it reads from a disk as fast as it can: it waits all the time, and reads less
	readsSome             // it reads from a disk what it is asked for, and waits longer
)

// kinds are all, by name.
var kinds = map[string]kind{"waits for CPUs": waits, "waits, work unknown": onlyWaits, "work alone": onlyWork,
	"reads as fast as it can": readsOn, "reads what it is asked for": readsSome}

// sample is what is measured of a victim that loses a part of its time.
func (k kind) sample(rng *rand.Rand, slowed, used float64) Sample {
	noise := func(of float64) float64 { return of * (1 + 0.02*rng.NormFloat64()) }
	s := Sample{Used: used}
	switch k {
	case waits:
		s.Waits, s.Work = &slowed, new(1000*(1-slowed))
	case onlyWaits:
		s.Waits = &slowed
	case onlyWork:
		s.Waits, s.Work = new(0.002+0.001*rng.Float64()), new(noise(1000*(1-slowed)))
	case readsOn:
		s.Waits, s.IO = new(math.Min(1, noise(0.96))), new(noise(5000*(1-slowed)))
	case readsSome:
		s.Waits, s.IO = &slowed, new(noise(300))
	}
	return s
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
	slowed, used := 0.3+h.level+h.noise*h.rng.NormFloat64(), 1.0
	if h.burst >= 0 {
		slowed += 0.15
	}
	if h.held {
		used = 0.1
		slowed += h.guilt * h.late
	} else {
		slowed += h.guilt
	}
	return h.kind.sample(h.rng, math.Min(1, math.Max(0, slowed)), used), nil
}

// Of the guilty at least 95 % are shown, and of the innocent at most 5 %, whatever the noise, and whichever figure
// shows it: 400 hosts of each kind. A disk has a fifth of what the suspect took still to do while it is held.
func TestGuiltyAndInnocent(t *testing.T) {
	const cases = 400
	for name, kind := range kinds {
		rng := rand.New(rand.NewPCG(29, uint64(kind)))
		shown := func(guilt float64, noise func() float64) (n, covered int) {
			for range cases {
				h := &host{rng: rng, guilt: guilt, noise: noise(), kind: kind}
				if kind >= readsOn {
					h.late = 0.2
				}
				pairs, err := Run(t.Context(), h, Pairs, coin(rng))
				if err != nil {
					t.Fatal(err)
				}
				f := Judge(pairs)
				if f.Shown {
					n++
				}
				if kind <= onlyWaits && f.Waits.Low <= guilt && guilt <= f.Waits.High {
					covered++
				}
			}
			return n, covered
		}
		quiet := func() float64 { return 0.005 + 0.04*rng.Float64() }
		loud := func() float64 { return 0.05 + 0.2*rng.Float64() }
		guilty, covered := shown(0.25, quiet)
		t.Logf("%s: guilty: %d of %d shown", name, guilty, cases)
		if guilty*100 < cases*95 {
			t.Errorf("%s: %d of %d guilty are shown", name, guilty, cases)
		}
		if kind <= onlyWaits {
			t.Logf("%s: the interval has the truth in %d of %d", name, covered, cases)
			if covered*100 < cases*93 {
				t.Errorf("%s: %d of %d intervals have the truth", name, covered, cases)
			}
		}
		for i, noise := range []func() float64{quiet, loud} {
			innocent, _ := shown(0, noise)
			t.Logf("%s: innocent, amid noise %d: %d of %d shown", name, i+1, innocent, cases)
			if innocent*100 > cases*5 {
				t.Errorf("%s, amid noise %d: %d of %d innocent are shown", name, i+1, innocent, cases)
			}
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
	*s.Waits += 0.4 * float64(h.blocks%2)
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
	waits := func(part, used float64) Sample { return Sample{Waits: &part, Used: used} }
	does := func(work, used float64) Sample { return Sample{Waits: new(0.0), Work: &work, Used: used} }
	moves := func(io, used float64) Sample { return Sample{Waits: new(1.0), IO: &io, Used: used} }
	for _, tt := range []struct {
		name  string
		pairs []Pair
		shown bool
	}{
		{"none", nil, false},
		{"too few", alike(LeastPairs-1, waits(0.5, 1), waits(0, 0.1)), false},
		{"enough", alike(LeastPairs, waits(0.5, 1), waits(0, 0.1)), true},
		{"worse when held", alike(Pairs, waits(0, 1), waits(0.5, 0.1)), false},
		{"always the same, but nothing to speak of", alike(Pairs, waits(0.51, 1), waits(0.5, 0.1)), false},
		{"no difference", alike(Pairs, waits(0.5, 1), waits(0.5, 0.1)), false},
		{"not held", alike(Pairs, waits(0.5, 1), waits(0, 0.9)), false},
		{"did nothing", alike(Pairs, waits(0.5, 0), waits(0, 0)), false},
		{"nothing is known", alike(Pairs, Sample{Used: 1}, Sample{Used: 0.1}), false},
		{"does more, and never waits", alike(LeastPairs, does(900, 1), does(1000, 0.1)), true},
		{"does hardly more", alike(Pairs, does(990, 1), does(1000, 0.1)), false},
		{"does less", alike(Pairs, does(1000, 1), does(900, 0.1)), false},
		{"reads more, and always waits", alike(LeastPairs, moves(900, 1), moves(1000, 0.1)), true},
		{"work is not always known", append(alike(LeastPairs-1, does(900, 1), does(1000, 0.1)),
			Pair{waits(0, 1), waits(0, 0.1)}), false},
	} {
		if f := Judge(tt.pairs); f.Shown != tt.shown || f.Shown == (f.Why != "") {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
}

// The test and the interval are those of the textbook: with all differences above zero chance is one in 2^n.
func TestExact(t *testing.T) {
	chance := func(gained ...float64) float64 { return chances([][]float64{gained})[0] }
	if got := chance(1, 2, 3, 4, 5, 6); got != 1.0/64 {
		t.Errorf("all above zero: %v", got)
	}
	if got := chance(1, -1); got != 3.0/4 {
		t.Errorf("nothing: %v", got)
	}
	// Of two figures that say the same in each exchange none costs the other anything; of two that have nothing to do
	// with each other each is as much less sure as both have cases.
	both := chances([][]float64{{1, 1, 1, 1, 1}, {2, 2, 2, 2, 2}})
	if both[0] != 1.0/32 || both[1] != 1.0/32 {
		t.Errorf("two that agree: %v", both)
	}
	both = chances([][]float64{{1, 1, 1, 1, 1}, {1, -1, 1, -1, 1}})
	if both[0] != 2.0/32 || both[1] < 0.5 {
		t.Errorf("two that do not: %v", both)
	}
	low, high, confidence := interval([]float64{1, 2, 3, 4, 5, 6})
	if low != 1 || high != 6 || math.Abs(confidence-62.0/64) > 1e-9 {
		t.Errorf("interval of six: %v to %v, %v", low, high, confidence)
	}
}
