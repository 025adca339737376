package bench

import (
	"math"
	"slices"
)

// median of the values; NaN when there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	mid := len(s) / 2
	if len(s)%2 == 1 {
		return s[mid]
	}
	return (s[mid-1] + s[mid]) / 2
}

// impact is by how much a latency rose over the one it is held against, in percent; a latency that
// fell has had no impact.
func impact(with, alone float64) float64 {
	return max(0, 100*(with/alone-1))
}
