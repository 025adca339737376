package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// result puts what was measured together.
func (r *run) result() *proof.Result {
	s := r.scenario
	result := &proof.Result{
		Scenario: s.Name, Title: s.Title, Document: s.Document, Reports: s.Reports,
		Started: r.started.UTC().Truncate(time.Second),
		Took:    time.Since(r.started).Round(time.Second), Smoke: r.options.Smoke, Machine: r.machine.text(),
		Load: r.loadAvg, Versions: map[string]string{},
		Scale: r.scaled, Rounds: r.options.Rounds, Seconds: r.options.Seconds, Policy: r.policies,
	}
	for _, in := range r.databases {
		result.Versions[in.Name] = in.Version
	}
	for _, trials := range r.rounds {
		r.hold(trials)
		for _, t := range trials {
			if loads := s.LoadsOf(t.arm); len(loads) > 0 {
				t.first(loads[0].Name)
			}
		}
	}
	var control []float64
	for _, arm := range s.Arms {
		result.Arms = append(result.Arms, r.armResult(arm))
	}
	if arm, found := s.ArmNamed(s.Control); found {
		arm.Name, arm.Text = scenario.Again, arm.Text+" again"
		result.Arms = append(result.Arms, r.armResult(arm))
	}
	result.Notes = r.notes
	for _, trials := range r.rounds {
		if one, two := trials[s.Control], trials[scenario.Again]; one != nil && two != nil {
			control = append(control, 100*two.figures["tps"]/one.figures["tps"])
		}
	}
	result.Control = proof.Over(control)
	result.Held = true
	for _, shape := range s.Shape {
		f := r.find(shape)
		result.Shape = append(result.Shape, f)
		result.Held = result.Held && (f.Held || f.Verdict == proof.NotJudged)
	}
	return result
}

// armResult puts the rounds of one arm together.
func (r *run) armResult(arm scenario.Arm) proof.Arm {
	a := proof.Arm{Name: arm.Name, Text: arm.Text, Policy: arm.Policy, Peer: arm.Peer,
		Figures: map[string]proof.Range{}, Omitted: r.omitted[arm.Name]}
	load := ""
	if loads := r.scenario.LoadsOf(arm); len(loads) > 0 {
		load = loads[0].Name
	}
	all := map[string][]float64{}
	var histograms [][]proof.Bucket
	var isolation, impact []float64
	for _, trials := range r.rounds {
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
		a.Rounds = append(a.Rounds, round)
		histograms = append(histograms, t.outcomes[load].Histogram)
		one, two := trials[r.scenario.Control], trials[scenario.Again]
		if one != nil && two != nil {
			solo := (one.outcomes[load].Rate() + two.outcomes[load].Rate()) / 2
			i, l := perSecond(t.outcomes[load], solo, soloLatency(trials, r.scenario.Control, load))
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
func (r *run) find(s scenario.Shape) proof.Finding {
	f := proof.Finding{What: s.What, Reports: s.Reports, Measure: s.Measure.String(), Unit: s.Unit,
		Least: proof.Figure(math.NaN()), Most: proof.Figure(math.NaN())}
	least, most := s.Least, s.Most
	if r.options.Smoke {
		least, most = s.Smoke, s.SmokeMax
	}
	var measured []float64
	bound := func(e scenario.Expression, trials map[string]*trial) float64 {
		if e.Empty() {
			return math.NaN()
		}
		return e.Eval(func(name string) float64 { return r.figure(name, trials) })
	}
	var lows, highs []float64
	for _, trials := range r.rounds {
		measured = append(measured, bound(s.Measure, trials))
		lows, highs = append(lows, bound(least, trials)), append(highs, bound(most, trials))
	}
	f.Measured = proof.Over(measured)
	f.Least, f.Most = proof.Figure(proof.Median(lows)), proof.Figure(proof.Median(highs))
	if least.Empty() && most.Empty() || r.leftOut(s) {
		f.Verdict = proof.NotJudged
		return f
	}
	if s.Noise {
		f.Noise = r.noise(s)
	}
	return proof.Judge(f)
}

// noise is what the two runs of the control arm are of their mean, in percent, in terms of what a shape measures: the
// throughput of its loads together, or a latency of the slowest. Nil where there is none.
func (r *run) noise(s scenario.Shape) *proof.Range {
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
	for _, trials := range r.rounds {
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

func (r *run) isLoad(name string) bool {
	return slices.ContainsFunc(r.scenario.Loads, func(l scenario.Load) bool { return l.Name == name })
}

// leftOut says whether a shape speaks of an arm that could not run here.
func (r *run) leftOut(s scenario.Shape) bool {
	for _, name := range s.Measure.Names() {
		if arm, _, _ := strings.Cut(name, "."); r.omitted[arm] != "" {
			return true
		}
	}
	return false
}

// figure is a quantity, or ARM.FIGURE of a round; NaN when it was not measured.
func (r *run) figure(name string, trials map[string]*trial) float64 {
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
