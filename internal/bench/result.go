package bench

import (
	"time"

	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// Texts are those of the library's scenarios, as a document compares them with what it has.
func Texts() (texts []proof.Text, err error) {
	all, err := scenario.Library()
	for _, s := range all {
		texts = append(texts, proof.Text{Scenario: s.Name, Document: s.Document, Reports: s.Reports,
			Mechanism: s.Mechanism.String(), Digest: s.Digest})
	}
	return texts, err
}

// result puts what was measured together.
func (r *run) result() *proof.Result {
	s := r.scenario
	result := &proof.Result{
		Scenario: s.Name, Digest: s.Digest, Title: s.Title,
		Document: s.Document, Reports: s.Reports, Mechanism: s.Mechanism.String(),
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
	result.Settings = r.matrix.Settings()
	r.rounds.vary()
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
		control = append(control, r.rounds.alone(trials))
	}
	result.Control, result.Again = proof.Over(control), r.rounds.again
	for _, shape := range s.Shape {
		result.Shape = append(result.Shape, r.rounds.find(shape))
	}
	result.Decide()
	return result
}
