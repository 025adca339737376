package bench

import (
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
		percent, known := variationOf(rates)
		arm, name, _ := strings.Cut(load, ".")
		for _, trials := range r.all {
			if t := trials[arm]; known && t != nil {
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

// variationOf is the standard deviation of rates in percent of their mean.
func variationOf(rates []float64) (percent float64, known bool) {
	d := proof.Distribute(rates)
	return 100 * float64(d.Stdev/d.Mean), d.Count > 1
}

// ofVariation says whether a shape measures how much rates vary between the rounds.
func ofVariation(e scenario.Expression) bool {
	return slices.ContainsFunc(e.Names(), func(name string) bool { return strings.HasSuffix(name, variation) })
}

// maxExchanged is up to how many rounds every exchange is tried: there are two to the power of them.
const maxExchanged = 12

// noiseOfVariation is what a shape of variations measures where there is nothing to measure: the control arm against
// itself. Each round has two runs of it. One of them goes into one set of rates and the other into a second; every
// choice of which is taken once, and the lowest and the highest figure are the noise, in percent. A variation out of
// few rounds is known so badly that nothing less says what it means. Nil without a control arm, and of one round.
func (r *rounds) noiseOfVariation(measure scenario.Expression) *proof.Range {
	control, rates, n := r.scenario.Control, r.rates(), min(len(r.all), maxExchanged)
	var of []float64
	for choice := range 1 << n {
		of = append(of, 100*measure.Eval(func(name string) float64 {
			arm, figure, _ := strings.Cut(name, ".")
			load := strings.TrimSuffix(figure, variation)
			one, two := rates[control+"."+load], rates[scenario.Again+"."+load]
			if len(one) < n || len(two) < n || !strings.HasSuffix(figure, variation) {
				return r.figure(name, nil)
			}
			chosen := make([]float64, n)
			for i := range chosen {
				chosen[i] = one[i]
				if (choice>>i&1 == 1) == (arm == control) {
					chosen[i] = two[i]
				}
			}
			percent, _ := variationOf(chosen)
			return percent
		}))
	}
	if all := proof.Over(of); n > 1 && all.Low == all.Low { // not NaN
		return &all
	}
	return nil
}
