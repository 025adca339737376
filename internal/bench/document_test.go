package bench

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// A measurement that shows the opposite of what a document says holds in no scenario, be it by little or by as much as
// the document's effect. No figure is reproduced by what would be measured without any effect.
func TestOppositeOfTheDocumentDoesNotHold(t *testing.T) {
	claims := 0
	all, err := scenario.Library()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		name := s.Name
		r := &rounds{fitted: &fitted{scenario: s}, all: []map[string]*trial{{}}}
		for _, shape := range s.Shape {
			if shape.Claim.Empty() {
				continue
			}
			claims++
			more, none := shape.Claim.Direction == "more", 1.0
			figure := math.NaN()
			if e := shape.Claim.Figure; !e.Empty() {
				figure = e.Eval(func(string) float64 { return math.NaN() })
			}
			if shape.Unit == "%" {
				none = 100
			}
			if e := shape.Claim.None; !e.Empty() {
				none = e.Eval(func(string) float64 { return math.NaN() })
			}
			if math.IsNaN(none) { // what is measured without a limit: there was an effect, whatever it was
				none = 10 * figure
				shape.Claim.None = constant(t, none)
			}
			within := 2.0
			if e := shape.Claim.Within; !e.Empty() {
				within = e.Eval(func(string) float64 { return math.NaN() })
			}
			if figure != none && none != 0 && max(figure, none)/min(figure, none) <= within {
				t.Errorf("%s: %q within a factor of %v of %v would be reproduced by %v, which is no effect", name,
					shape.What, within, figure, none)
			}
			effect := math.Abs(figure - none)
			if !math.IsNaN(figure) {
				more = figure > none
			}
			opposites := []float64{none - 0.02*max(none, 1), none - effect}
			if !more {
				opposites = []float64{none + 0.02*max(none, 1), none + effect}
			}
			if figure == none { // the document says that there is no effect
				opposites = []float64{none/3 - 1, 3*none + 1}
			}
			for _, x := range opposites {
				if math.IsNaN(x) {
					continue
				}
				shape.Measure = constant(t, x)
				if f := r.find(shape); f.Held {
					t.Errorf("%s: %q is %v, the opposite of %v: %s", name, shape.What, x, figure, f.Verdict)
				}
			}
		}
	}
	if claims < 20 {
		t.Errorf("%d shapes say what a document measured", claims)
	}
}

func constant(t *testing.T, x float64) scenario.Expression {
	t.Helper()
	e, err := scenario.ParseExpression(fmt.Sprintf("0 - %g", -x))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A round in which the control arm differs from itself by more than a tenth is measured again, as many as there are to
// be rounds; in a smoke run none is.
func TestBusyRoundsAreMeasuredAgain(t *testing.T) {
	s, err := scenario.Find("cpu-quota")
	if err != nil {
		t.Fatal(err)
	}
	round := func(again int64) map[string]*trial {
		of := func(n int64) *trial {
			return &trial{arm: scenario.Arm{Name: "alone"}, outcomes: map[string]load.Outcome{
				"sysbench": {Transactions: n, Elapsed: time.Second}}}
		}
		return map[string]*trial{s.Control: of(1000), scenario.Again: of(again)}
	}
	r := &rounds{fitted: &fitted{scenario: s}}
	for _, tt := range []struct {
		again int64
		kept  bool
	}{{1000, true}, {850, false}, {1150, false}, {850, true}} {
		before := len(r.all)
		if why := r.keep(round(tt.again), 2); (why == "") != tt.kept || (len(r.all) > before) != tt.kept {
			t.Errorf("the second arm did %d of 1,000: %q, kept %v", tt.again, why, len(r.all) > before)
		}
	}
	if r.again != 2 {
		t.Errorf("%d rounds were measured again", r.again)
	}
	r = &rounds{fitted: &fitted{scenario: s}, smoke: true}
	if why := r.keep(round(100), 2); why != "" {
		t.Errorf("in a smoke run: %s", why)
	}
	if s, err = scenario.Find("consolidation"); err != nil {
		t.Fatal(err)
	}
	arm, _ := s.ArmNamed(s.Control)
	two := func(first, second int64) *trial {
		return &trial{arm: arm, outcomes: map[string]load.Outcome{
			"l1": {Transactions: first, Elapsed: time.Second},
			"l2": {Transactions: second, Elapsed: time.Second}}}
	}
	r = &rounds{fitted: &fitted{scenario: s}}
	for _, tt := range []struct {
		one, two int64
		kept     bool
	}{{1500, 500, true}, {1000, 700, false}} {
		trials := map[string]*trial{s.Control: two(1000, 1000), scenario.Again: two(tt.one, tt.two)}
		if why := r.keep(trials, 2); (why == "") != tt.kept {
			t.Errorf("two loads that did 1,000 each did %d and %d: %q", tt.one, tt.two, why)
		}
	}
}

// A load of a fixed rate does as much on a busy machine: there its p95 tells.
func TestBusyRoundsOfAFixedRate(t *testing.T) {
	s, err := scenario.Find("bystander")
	if err != nil {
		t.Fatal(err)
	}
	arm, _ := s.ArmNamed(s.Control)
	of := func(ms float64) *trial {
		all := map[string]load.Outcome{}
		for _, l := range s.LoadsOf(arm) {
			all[l.Name] = load.Outcome{Transactions: 1000, Elapsed: time.Second,
				Histogram: []proof.Bucket{{MS: ms, Count: 1000}}}
		}
		return &trial{arm: arm, outcomes: all}
	}
	r := &rounds{fitted: &fitted{scenario: s}}
	for ms, kept := range map[float64]bool{1: true, 1.8: true, 2.5: false, 0.4: false} {
		if why := r.keep(map[string]*trial{s.Control: of(1), scenario.Again: of(ms)}, 5); (why == "") != kept {
			t.Errorf("a p95 of 1 ms and then of %g ms: %q", ms, why)
		}
	}
}

// How much a load varies between rounds is the same in each of them, and not known of one.
func TestVariation(t *testing.T) {
	of := func(n int64) map[string]*trial {
		return map[string]*trial{"alone": {figures: map[string]float64{}, outcomes: map[string]load.Outcome{
			"l": {Transactions: n, Elapsed: time.Second}}}}
	}
	r := &rounds{all: []map[string]*trial{of(90), of(110), of(100)}}
	r.vary()
	want := 100 * math.Sqrt(200.0/3) / 100
	for i, trials := range r.all {
		if got := trials["alone"].figures["l.variation"]; math.Abs(got-want) > 1e-9 {
			t.Errorf("round %d: %v %%, want %v", i, got, want)
		}
	}
	one := &rounds{all: []map[string]*trial{of(90)}}
	one.vary()
	if got, is := one.all[0]["alone"].figures["l.variation"]; is {
		t.Errorf("of one round it is %v", got)
	}
}

// The noise of a variation is what the control arm's two runs give when they are exchanged: a ratio within it decides
// nothing, one beyond it does.
func TestNoiseOfVariation(t *testing.T) {
	s, err := scenario.Find("consolidation")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(s.Shape, func(shape scenario.Shape) bool {
		return ofVariation(shape.Measure)
	})
	if i < 0 {
		t.Fatal("consolidation has no shape of a variation")
	}
	free := map[string][2][]int64{ // what five rounds of four servers did on a real machine: none, and none again
		"l1": {{478, 517, 387, 427, 455}, {468, 523, 365, 446, 423}},
		"l2": {{535, 496, 424, 425, 485}, {461, 493, 411, 469, 509}},
		"l4": {{421, 499, 436, 436, 453}, {479, 442, 418, 417, 432}},
		"l7": {{550, 500, 402, 434, 455}, {492, 436, 366, 511, 448}},
	}
	measured := func(spread int64) proof.Finding {
		r := &rounds{fitted: &fitted{scenario: s}}
		for round := range 5 {
			trials := map[string]*trial{}
			add := func(arm, name string, n int64) {
				if trials[arm] == nil {
					trials[arm] = &trial{figures: map[string]float64{}, outcomes: map[string]load.Outcome{}}
				}
				trials[arm].outcomes[name] = load.Outcome{Transactions: n, Elapsed: time.Second}
			}
			for name, runs := range free {
				add(s.Control, name, runs[0][round])
				add(scenario.Again, name, runs[1][round])
				add("shared", name, 1000+spread*int64(round-2))
			}
			r.all = append(r.all, trials)
		}
		r.vary()
		return r.find(s.Shape[i])
	}
	for spread, want := range map[int64]string{85: proof.NotDecided, 1: proof.DirectionOnly, 300: proof.Contradicted} {
		f := measured(spread)
		if n := f.Document.Noise; n == nil || math.Abs(float64(n.Low)-65) > 1 || math.Abs(float64(n.High)-153) > 1 {
			t.Errorf("spread %d: the noise is %+v, want about 65 to 153 %%", spread, n)
		}
		if f.Verdict != want {
			t.Errorf("spread %d: %.3f is %q, want %q", spread, float64(f.Measured.Median), f.Verdict, want)
		}
	}
}
