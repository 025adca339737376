package format

import (
	"strconv"
	"testing"
)

// TestBridgeOverflow: limits far beyond any machine must not wrap around.
func TestBridgeOverflow(t *testing.T) {
	const huge = int64(1) << 62
	for _, test := range []struct{ a, b Bandwidth }{
		{Bandwidth{huge, 1000}, Bandwidth{huge, 1_000_000}},
		{Bandwidth{huge, 1_000_000}, Bandwidth{1000, 1000}},
		{Bandwidth{huge, 1}, Bandwidth{huge, 1_000_000}},
	} {
		q, ok := Bridge(test.a, test.b)
		if ok && q <= 0 {
			t.Errorf("bridge(%v, %v) = %d", test.a, test.b, q)
		}
	}
	if got := scaleUp(Bandwidth{1, 3}, 10); got != 4 {
		t.Errorf("scaleUp of 1/3 to 10 = %s, want 4", strconv.FormatInt(got, 10))
	}
}
