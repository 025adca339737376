package load

import (
	"math"
	"slices"

	"bulkhead/internal/proof"
)

// Within are the seconds that lie wholly in a span.
func Within(all []proof.Second, from, to float64) []proof.Second {
	var inside []proof.Second
	for _, s := range all {
		if s.At-1 >= from-0.25 && s.At <= to+0.25 {
			inside = append(inside, s)
		}
	}
	return inside
}

// Mean is the mean rate of some seconds; NaN of none.
func Mean(seconds []proof.Second) float64 {
	sum := 0.0
	for _, s := range seconds {
		sum += s.TPS
	}
	return sum / float64(len(seconds))
}

// HoldsAfter is how many seconds it took until the rate stayed within a fifth of what it was at the end: the median of
// the last third. One that is not steady there either has not held in the whole phase.
func HoldsAfter(seconds []proof.Second, from float64) float64 {
	n := len(seconds)
	if n < 4 {
		return math.NaN()
	}
	var late []float64
	for _, s := range seconds[n-max(2, n/3):] {
		late = append(late, s.TPS)
	}
	end := proof.Median(late)
	held := n
	for held > 0 && math.Abs(seconds[held-1].TPS-end) <= end/5 {
		held--
	}
	if held == n {
		return seconds[n-1].At - from
	}
	return max(0, seconds[held].At-1-from)
}

// Paced says whether a program does as much on a busy machine as on a quiet one: it begins its transactions by a clock.
func Paced(program string) bool {
	return slices.Contains([]string{"heartbeat", "sleeper", "login"}, program)
}

// PerSecond is isolation and latency impact of every second, in percent, where alone the load has a rate and a latency.
func (o Outcome) PerSecond(rate, latency float64) (isolation, impact []float64) {
	for _, s := range o.Seconds {
		isolation = append(isolation, 100*s.TPS/rate)
		if x := proof.Impact(float64(s.Latency), latency); !math.IsNaN(x) {
			impact = append(impact, x)
		}
	}
	return isolation, impact
}
