package reconcile

import (
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
)

// stalledAt is a sample with so many events of memory.high and microseconds in which all tasks waited for memory.
func stalledAt(at time.Time, events, full int64) metrics.Sample {
	return metrics.Sample{At: at, Usage: metrics.Usage{
		Memory:   metrics.Memory{HighHits: &events},
		Pressure: map[string]metrics.Pressure{"memory": {Full: &metrics.Stall{Total: full}}},
	}}
}

// A group that does nothing but wait for memory is stuck; one that waits now and then, or works above its memory.high,
// is not.
func TestStuckAtHigh(t *testing.T) {
	for name, c := range map[string]struct {
		rate  int64   // events a second
		full  float64 // of the time
		stuck bool
	}{
		"stuck":            {8, 0.97, true},
		"an older kernel":  {400000, 0.95, true},
		"works and waits":  {5000, 0.4, false},
		"waits for others": {0, 0.99, false},
		"idle":             {0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var w stallWatch
			now, told := time.Now(), time.Duration(0)
			for after := time.Duration(0); after <= 30*time.Second && told == 0; after += stallInterval {
				seconds := after.Seconds()
				if why := w.add(stalledAt(now.Add(after), 1000+int64(seconds*float64(c.rate)),
					5000+int64(seconds*1e6*c.full))); why != "" {
					told = after
				}
			}
			if (told > 0) != c.stuck || c.stuck && told != stallWindow {
				t.Errorf("told after %s", told)
			}
			if len(w.samples) > 8 {
				t.Errorf("%d readings are kept", len(w.samples))
			}
		})
	}
}

// A short stall, a directory made anew and a clock that goes back tell nothing.
func TestStuckAtHighBeginsAnew(t *testing.T) {
	var w stallWatch
	now := time.Now()
	reading := func(after time.Duration, events, full int64) string {
		return w.add(stalledAt(now.Add(after), events, full))
	}
	for i := range int64(4) {
		if why := reading(time.Duration(i)*2*time.Second, i*100, i*2e6); why != "" {
			t.Fatal(why)
		}
	}
	if why := reading(8*time.Second, 5, 1000); why != "" || len(w.samples) != 1 {
		t.Errorf("another directory: %q, %d readings", why, len(w.samples))
	}
	for i := range int64(5) { // it works again
		if why := reading(time.Duration(10+2*i)*time.Second, 5+i, 1000); why != "" {
			t.Fatal(why)
		}
	}
}

// Directories that are to have a memory.high are watched, and no others.
func TestHighsOfAPlan(t *testing.T) {
	want := func(dir, file, value string) plan.Wanted {
		return plan.Wanted{Group: "jobs", Target: cgroup.Dir{Path: dir}.File(file).Target(), Value: value}
	}
	got := highsOf(plan.Plan{Want: []plan.Wanted{want("/a", "memory.high", "268435456"), want("/a", "memory.max", "5"),
		want("/b", "memory.high", "max")}})
	if len(got) != 1 || got[cgroup.Dir{Path: "/a"}] != "jobs" {
		t.Errorf("watched: %v", got)
	}
}
