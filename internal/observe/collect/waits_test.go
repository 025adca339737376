package collect

import (
	"testing"
	"time"

	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
)

// A database that waits, or is held back, makes the host hot; another group does not.
func TestWaits(t *testing.T) {
	sample := func(at int, role string, stalled, throttled int64) *observe.Sample { // it was read a second before
		g := observe.Group{Group: "a", Role: role}
		g.Usage.Pressure = map[string]metrics.Pressure{"io": {Some: &metrics.Stall{Total: stalled}}}
		g.Usage.CPU.Throttled = &throttled
		return &observe.Sample{At: time.Unix(int64(at), 0), Groups: []observe.Group{g}, Collectors: []observe.Reading{
			{Name: observe.CPU, Told: true, Age: time.Second}, {Name: observe.Pressure, Told: true, Age: time.Second}}}
	}
	for i, c := range []struct {
		role               string
		stalled, throttled int64 // microseconds in 5 s
		want               bool
	}{
		{"database", 499_000, 499_000, false},
		{"database", 500_000, 0, true},
		{"database", 0, 500_000, true},
		{"batch", 5_000_000, 5_000_000, false},
	} {
		before := sample(0, c.role, 7, 7)
		if got := Waits(before, sample(5, c.role, c.stalled+7, c.throttled+7)); got != c.want {
			t.Errorf("case %d: %v", i, got)
		}
	}
	if Waits(nil, sample(5, "database", 1e9, 1e9)) {
		t.Error("the first sample makes it hot")
	}
	before, between := sample(0, "database", 0, 0), sample(2, "database", 300_000, 300_000)
	for i := range before.Collectors {
		before.Collectors[i].Age, between.Collectors[i].Age = 3*time.Second, 0
	}
	if Waits(before, between) {
		t.Error("what was waited in the 5 s between two readings is taken for that of the 2 s between two samples")
	}
	between.Collectors = nil
	if Waits(before, between) {
		t.Error("figures that are not told make it hot")
	}
}
