package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// rounds are the measured rounds of all arms.
type rounds struct {
	*fitted
	smoke bool
	all   []map[string]*trial // by arm
	again int                 // rounds that were dropped and measured again
	notes []string
}

// keep keeps a round, or says why it is to be measured again.
func (r *rounds) keep(trials map[string]*trial, wanted int) (again string) {
	alone := proof.Over([]float64{r.alone(trials)})
	// A matrix has so many cells that a round takes minutes: its noise is told, and nothing is measured again.
	if !r.smoke && r.scenario.Matrix == nil && r.again < wanted && !proof.Quiet(alone) {
		r.again++
		return fmt.Sprintf(
			"the machine was busy: the control arm did %.1f %% of itself; this round is measured again", alone.Median)
	}
	r.all = append(r.all, trials)
	return ""
}

// alone is what the loads of the control arm did together in its second run, of the first, in percent; NaN without any.
// Loads of a fixed rate do as much on a busy machine: where there are no others, and the p95 of one is more than twice
// that of its other run, that is it.
func (r *rounds) alone(trials map[string]*trial) float64 {
	var did [2]float64
	one, two, fixed, worst := trials[r.scenario.Control], trials[scenario.Again], true, 1.0
	if one == nil || two == nil {
		return math.NaN()
	}
	for _, l := range r.scenario.LoadsOf(one.arm) {
		a, b := one.outcomes[l.Name], two.outcomes[l.Name]
		did[0], did[1] = did[0]+a.Rate(), did[1]+b.Rate()
		fixed = fixed && (!l.Rate.Empty() || load.Paced(l.Program))
		ratio := proof.Percentile(b.Histogram, 95) / proof.Percentile(a.Histogram, 95)
		if math.Abs(math.Log(ratio)) > math.Abs(math.Log(worst)) {
			worst = ratio
		}
	}
	if fixed && (worst > 2 || worst < 0.5) {
		return 100 * worst
	}
	return 100 * did[1] / did[0]
}

// hold holds every trial of a round against the control arm, which stood at both ends of it.
func (r *rounds) hold(trials map[string]*trial) {
	one, two := trials[r.scenario.Control], trials[scenario.Again]
	if one == nil || two == nil {
		return
	}
	for _, t := range trials {
		for name, o := range t.outcomes {
			a, b := one.outcomes[name], two.outcomes[name]
			solo := (a.Rate() + b.Rate()) / 2
			if solo <= 0 {
				continue
			}
			alone := (proof.Percentile(a.Histogram, 95) + proof.Percentile(b.Histogram, 95)) / 2
			t.figures[name+".isolation"] = 100 * o.Rate() / solo
			t.figures[name+".impact"] = proof.Impact(proof.Percentile(o.Histogram, 95), alone)
			isolation, _ := o.PerSecond(solo, math.NaN())
			t.figures[name+".isol01"] = float64(proof.Distribute(isolation).P01)
		}
	}
}

// armResult puts the rounds of one arm together.
func (r *rounds) armResult(arm scenario.Arm) proof.Arm {
	a := proof.Arm{Name: arm.Name, Text: arm.Text, Policy: arm.Policy, Peer: arm.Peer,
		Figures: map[string]proof.Range{}, Omitted: r.omitted[arm.Name], Cell: r.cells().Cell(arm.Cell)}
	load := ""
	if loads := r.scenario.LoadsOf(arm); len(loads) > 0 {
		load = loads[0].Name
	}
	all := map[string][]float64{}
	var histograms [][]proof.Bucket
	var isolation, impact []float64
	for _, trials := range r.all {
		t := trials[arm.Name]
		if t == nil {
			continue
		}
		round := proof.Round{Seconds: t.outcomes[load].Seconds, Phases: t.marks, Figures: map[string]proof.Figure{},
			Groups: t.groups, Host: t.host}
		for name, x := range t.figures {
			all[name] = append(all[name], x)
			round.Figures[name] = proof.Figure(x)
		}
		a.Rounds, a.Evidence = append(a.Rounds, round), t.evidence
		histograms = append(histograms, t.outcomes[load].Histogram)
		one, two := trials[r.scenario.Control], trials[scenario.Again]
		if one != nil && two != nil {
			solo := (one.outcomes[load].Rate() + two.outcomes[load].Rate()) / 2
			i, l := t.outcomes[load].PerSecond(solo, soloLatency(trials, r.scenario.Control, load))
			isolation, impact = append(isolation, i...), append(impact, l...)
		}
	}
	if n := len(histograms); n > 0 && len(proof.Merge(histograms...)) == 0 {
		r.notes = append(r.notes,
			fmt.Sprintf("arm %q: its load ended no batch of requests, so there are no percentiles and no histogram",
				arm.Text))
	}
	for name, xs := range all {
		a.Figures[name] = proof.Over(xs)
	}
	a.Histogram = proof.Merge(histograms...)
	a.Responses = proof.Respond(a.Histogram)
	a.Isolation, a.Impact = proof.Distribute(isolation), proof.Distribute(impact)
	return a
}

// find measures one shape in every round and judges it.
func (r *rounds) find(s scenario.Shape) proof.Finding {
	f := proof.Finding{What: s.What, Reports: s.Reports, Mechanism: s.By, Measure: s.Measure.String(), Unit: s.Unit,
		Least: proof.Figure(math.NaN()), Most: proof.Figure(math.NaN())}
	least, most := s.Least, s.Most
	if r.smoke {
		least, most = s.Smoke, s.SmokeMax
	}
	bound := func(e scenario.Expression, trials map[string]*trial) float64 {
		if e.Empty() {
			return math.NaN()
		}
		return e.Eval(func(name string) float64 { return r.figure(name, trials) })
	}
	var measured, lows, highs, nones []float64
	for _, trials := range r.all {
		measured = append(measured, bound(s.Measure, trials))
		nones = append(nones, bound(s.Claim.None, trials))
		lows, highs = append(lows, bound(least, trials)), append(highs, bound(most, trials))
	}
	f.Measured, f.Missing = proof.OverRounds(measured)
	f.Least, f.Most = proof.Figure(proof.Median(lows)), proof.Figure(proof.Median(highs))
	if !r.smoke && !s.Claim.Empty() {
		f.Document = r.claim(s, bound(s.Claim.Figure, nil), bound(s.Claim.Within, nil), proof.Median(nones))
	}
	if least.Empty() && most.Empty() && f.Document == nil || r.leftOut(s) {
		f.Verdict = proof.NotJudged
		return f
	}
	if s.Beyond.Eval(r.value) > 1 {
		f.Verdict = proof.Beyond
		return f
	}
	if s.Noise {
		f.Noise = r.noise(s)
	}
	missing := func(e scenario.Expression, x proof.Figure) bool { return !e.Empty() && math.IsNaN(float64(x)) }
	if missing(least, f.Least) || missing(most, f.Most) || f.Document != nil && math.IsNaN(float64(f.Document.None)) {
		f.Verdict = proof.NotDecided // what it is held against was measured in no round
		return f
	}
	return proof.Judge(f)
}

// claim is what a document measured of a shape.
func (r *rounds) claim(s scenario.Shape, figure, within, none float64) *proof.Claim {
	c := &proof.Claim{Figure: proof.Figure(figure), Within: 2, None: 1, Noise: r.noise(s), Because: s.Claim.Because}
	if !s.Claim.Within.Empty() {
		c.Within = within
	}
	if s.Unit == "%" {
		c.None = 100
	}
	if !s.Claim.None.Empty() {
		c.None = proof.Figure(none)
	}
	c.More = s.Claim.Direction == "more" || c.Figure > c.None
	return c
}

// noise is what the two runs of the control arm are of their mean, in percent, in terms of what a shape measures: the
// throughput of its loads together, a latency of the slowest, or a variation. Nil where there is none.
func (r *rounds) noise(s scenario.Shape) *proof.Range {
	if ofVariation(s.Measure) {
		return r.noiseOfVariation(s.Measure)
	}
	figure, loads := "tps", map[string]bool{}
	for _, name := range s.Measure.Names() {
		parts := strings.Split(name, ".")
		if last := parts[len(parts)-1]; slices.Contains([]string{"mean", "p50", "p95", "p99", "p999"}, last) {
			figure = last
		}
		if len(parts) > 2 && r.isLoad(parts[len(parts)-2]) {
			loads[parts[len(parts)-2]+"."] = true
		}
	}
	if len(loads) == 0 {
		loads[""] = true // the arm's first
	}
	whole := func(arm string, trials map[string]*trial) (all float64) {
		for load := range loads {
			if x := r.figure(arm+"."+load+figure, trials); figure == "tps" {
				all += x
			} else {
				all = max(all, x)
			}
		}
		return all
	}
	var of []float64
	for _, trials := range r.all {
		a, b := whole(r.scenario.Control, trials), whole(scenario.Again, trials)
		if mean := (a + b) / 2; mean > 0 {
			of = append(of, 100*a/mean, 100*b/mean)
		}
	}
	if len(of) == 0 {
		return nil
	}
	all := proof.Over(of)
	return &all
}

func (r *rounds) isLoad(name string) bool {
	return slices.ContainsFunc(r.scenario.Loads, func(l scenario.Load) bool { return l.Name == name })
}

// leftOut says whether a shape speaks of an arm that could not run here.
func (r *rounds) leftOut(s scenario.Shape) bool {
	for _, name := range s.Measure.Names() {
		if arm, _, _ := strings.Cut(name, "."); r.omitted[arm] != "" {
			return true
		}
	}
	return false
}

// figure is a quantity, or ARM.FIGURE of a round; NaN when it was not measured.
func (r *rounds) figure(name string, trials map[string]*trial) float64 {
	arm, figure, found := strings.Cut(name, ".")
	if !found {
		return r.value(name)
	}
	if t := trials[arm]; t != nil {
		if x, measured := t.figures[figure]; measured {
			return x
		}
	}
	return math.NaN()
}
