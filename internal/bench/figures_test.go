package bench

import (
	"math"
	"testing"

	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// The seconds until a rate holds, and the seconds of a phase.
func TestHoldsAfter(t *testing.T) {
	var all []proof.Second
	for i, tps := range []float64{100, 100, 100, 60, 10, 10, 10, 10, 11, 10} {
		all = append(all, proof.Second{At: float64(i + 1), TPS: tps})
	}
	if got := holdsAfter(secondsOf(all, 3, 10), 3); got != 1 {
		t.Errorf("a limit from second 3 holds after %v s, want 1", got)
	}
	if got := meanTPS(secondsOf(all, 0, 3)); got != 100 {
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
		if got := holdsAfter(series(rates...), 0); got != want {
			t.Errorf("%v holds after %v s, want %v", rates, got, want)
		}
	}
	if got := holdsAfter(all[:2], 0); !math.IsNaN(got) {
		t.Errorf("of two seconds: %v", got)
	}
}

func TestParseTraffic(t *testing.T) {
	groups, err := parseTraffic([]byte(`{"groups":[{"group":"a","traffic":{"counted":true,
		"out":{"bytes":10,"packets":2},"on":[{"device":"x","direction":"egress","bytes":7}]}},{"group":"b"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if a := groups["a"]; len(groups) != 1 || a == nil || a.Out.Bytes != 10 || len(a.On) != 1 || a.On[0].Bytes != 7 {
		t.Errorf("read %+v", groups)
	}
	for _, text := range []string{"", "{}", `{"groups":[{"group":"a"}]}`} {
		if _, err := parseTraffic([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// The traffic is measured where a policy of the arm limits it.
func TestMeter(t *testing.T) {
	s, err := scenario.Find("network-egress")
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(fitted{scenario: s}, Options{})
	r.governor.system = newSystemUnderTest("bulkhead", t.TempDir(), nil)
	for _, arm := range s.Arms {
		want := arm.Name == "limited" || arm.Name == "switched"
		if got := r.meter(arm) != nil; got != want {
			t.Errorf("arm %q is measured: %v, want %v", arm.Name, got, want)
		}
	}
}
