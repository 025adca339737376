package metrics

import (
	"math"
	"testing"
	"time"
)

// What comes in slices of 100 ms is told to 1 % over two seconds and to 5 % over half a one, wherever the span begins.
func TestSlopeOfSlices(t *testing.T) {
	const rate = 1_000_000
	for _, tt := range []struct{ span, within float64 }{{2, 0.01}, {1, 0.02}, {0.5, 0.05}} {
		for phase := 0.0; phase < 0.1; phase += 0.007 {
			var m Points
			for at := 0.0; at < tt.span; at += 0.005 {
				m = append(m, Point{at, rate * 0.1 * math.Floor((at+phase)/0.1)})
			}
			got := float64(m.In(time.Second))
			if math.Abs(got-rate) > tt.within*rate {
				t.Errorf("over %v s from %v s on: %.0f instead of %d", tt.span, phase, got, rate)
			}
		}
	}
}

func TestSlopeOfLittle(t *testing.T) {
	m := Points{{0, 0}, {0.01, 5}}
	if got := m.In(10 * time.Millisecond); got != 5 {
		t.Errorf("two readings: %d", got)
	}
	if got := (Points{}).In(time.Second); got != 0 {
		t.Errorf("no reading: %d", got)
	}
}
