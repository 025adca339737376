package bench

import (
	"math"
	"slices"
	"strings"

	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// variation is the figure of a load that says how much its rate varies between the rounds.
const variation = ".variation"

// vary gives every round of an arm the variation of each of its loads. Of one round that is not known.
func (r *rounds) vary() {
	for load, rates := range r.rates() {
		percent := proof.Variation(rates)
		arm, name, _ := strings.Cut(load, ".")
		for _, trials := range r.all {
			if t := trials[arm]; !math.IsNaN(percent) && t != nil {
				t.figures[name+variation] = percent
			}
		}
	}
}

// rates are the rates of every load in the order of the rounds, by ARM.LOAD.
func (r *rounds) rates() map[string][]float64 {
	rates := map[string][]float64{}
	for _, trials := range r.all {
		for arm, t := range trials {
			for load, o := range t.outcomes {
				rates[arm+"."+load] = append(rates[arm+"."+load], o.Rate())
			}
		}
	}
	return rates
}

// ofVariation says whether a shape measures how much rates vary between the rounds.
func ofVariation(e scenario.Expression) bool {
	return slices.ContainsFunc(e.Names(), func(name string) bool { return strings.HasSuffix(name, variation) })
}

// noiseOfVariation is what a shape of variations measures where there is nothing to measure: the control arm against
// itself, for every way to exchange its two runs in the rounds, in percent. A variation out of few rounds is known so
// badly that nothing less says what it means. Nil without a control arm, and of one round.
func (r *rounds) noiseOfVariation(measure scenario.Expression) *proof.Range {
	rates, n := r.rates(), len(r.all)
	return proof.Exchanged(n, func(exchanged []bool) float64 {
		return 100 * measure.Eval(func(name string) float64 {
			arm, figure, _ := strings.Cut(name, ".")
			load, varies := strings.CutSuffix(figure, variation)
			one, two := rates[r.scenario.Control+"."+load], rates[scenario.Again+"."+load]
			if !varies || len(one) < n || len(two) < n {
				return r.figure(name, nil)
			}
			chosen := slices.Clone(one)
			for i, other := range exchanged {
				if other == (arm == r.scenario.Control) {
					chosen[i] = two[i]
				}
			}
			return proof.Variation(chosen)
		})
	})
}
