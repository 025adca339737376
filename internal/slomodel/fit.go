package slomodel

import (
	"math"
	"slices"
)

// Fit sets Base so that half of the values that were recorded are above what the model says of the use that was
// recorded, and half are below. Half of them are within the part off of what it says then; n is how many there were,
// and nothing is set where there was none. A value of 0 is not known.
func (d *Day) Fit(values []float64) (off float64, n int) {
	var bases []float64
	for w, v := range values {
		used := 0.0
		for i := range d.Groups {
			used += d.Groups[i].Used[w]
		}
		of := shape(d.Target.Signal, (d.Load[w]+d.Others[w]+used)/d.CPUs)
		if d.Known[w] && v > 0 && of > 0 {
			bases = append(bases, v/of)
		}
	}
	if len(bases) == 0 {
		return 0, 0
	}
	slices.Sort(bases)
	d.Base = bases[len(bases)/2]
	for i, b := range bases {
		bases[i] = math.Abs(b/d.Base - 1)
	}
	slices.Sort(bases)
	return bases[len(bases)/2], len(bases)
}
