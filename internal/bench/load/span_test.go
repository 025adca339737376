package load

import (
	"math"
	"testing"

	"bulkhead/internal/proof"
)

// The seconds until a rate holds, and the seconds of a phase.
func TestHoldsAfter(t *testing.T) {
	var all []proof.Second
	for i, tps := range []float64{100, 100, 100, 60, 10, 10, 10, 10, 11, 10} {
		all = append(all, proof.Second{At: float64(i + 1), TPS: tps})
	}
	if got := HoldsAfter(Within(all, 3, 10), 3); got != 1 {
		t.Errorf("a limit from second 3 holds after %v s, want 1", got)
	}
	if got := Mean(Within(all, 0, 3)); got != 100 {
		t.Errorf("before it %v/s", got)
	}
	series := func(rates ...float64) (s []proof.Second) {
		for i, tps := range rates {
			s = append(s, proof.Second{At: float64(i + 1), TPS: tps})
		}
		return s
	}
	for want, rates := range map[float64][]float64{
		0: {10, 11, 9, 10, 10, 10},      // from the first second
		4: {90, 90, 90, 90, 10, 10},     // late
		5: {10, 10, 10, 10, 90, 10, 11}, // held, lost, and held again
		6: {10, 90, 10, 90, 10, 90},     // never
	} {
		if got := HoldsAfter(series(rates...), 0); got != want {
			t.Errorf("%v holds after %v s, want %v", rates, got, want)
		}
	}
	if got := HoldsAfter(all[:2], 0); !math.IsNaN(got) {
		t.Errorf("of two seconds: %v", got)
	}
}
