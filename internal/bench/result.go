package bench

import (
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
		Scale: r.scaled, Rounds: r.options.Rounds, Seconds: r.options.Seconds, Policy: r.governor.policies,
	}
	for _, l := range s.Loads {
		result.Loads = append(result.Loads, l.Name)
	}
	for _, in := range r.databases {
		result.Versions[in.Name] = in.Version
	}
	for _, trials := range r.rounds.all {
		r.rounds.hold(trials)
		for _, t := range trials {
			if loads := s.LoadsOf(t.arm); len(loads) > 0 {
				t.first(loads[0].Name)
			}
		}
	}
	var control []float64
	for _, arm := range s.Arms {
		result.Arms = append(result.Arms, r.rounds.armResult(arm))
	}
	if arm, found := s.ArmNamed(s.Control); found {
		arm.Name, arm.Text = scenario.Again, arm.Text+" again"
		result.Arms = append(result.Arms, r.rounds.armResult(arm))
	}
	result.Notes = append(r.governor.notes, r.rounds.notes...)
	for _, trials := range r.rounds.all {
		if one, two := trials[s.Control], trials[scenario.Again]; one != nil && two != nil {
			control = append(control, 100*two.figures["tps"]/one.figures["tps"])
		}
	}
	result.Control = proof.Over(control)
	result.Held = true
	for _, shape := range s.Shape {
		f := r.rounds.find(shape)
		result.Shape = append(result.Shape, f)
		result.Held = result.Held && (f.Held || f.Verdict == proof.NotJudged)
	}
	return result
}
