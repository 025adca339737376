package bench

import (
	"testing"

	"bulkhead/internal/scenario"
)

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
