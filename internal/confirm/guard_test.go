package confirm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/metrics"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

func to[T any](v T) *T { return &v }

// used is a sample so many seconds after the first.
func used(seconds float64, cpu, periods, throttled, kills, stalled, operations, db int64) metrics.Sample {
	return metrics.Sample{
		At: time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second))), Work: db,
		Usage: metrics.Usage{
			CPU:      metrics.CPU{Total: &cpu, Periods: &periods, ThrottledPeriods: &throttled},
			Memory:   metrics.Memory{OOMKills: &kills},
			IO:       []metrics.IO{{Device: "8:0", Reads: operations}},
			Pressure: map[string]metrics.Pressure{"memory": {Full: &metrics.Stall{Total: stalled}}},
		},
	}
}

func TestVerdicts(t *testing.T) {
	first := used(0, 1e6, 100, 10, 3, 1e6, 1000, 5000)
	byDB := state.Baseline{Work: &state.Work{Counter: "Questions", DB: 100, CPU: 1, IO: 100}}
	byKernel := state.Baseline{Work: &state.Work{CPU: 1, IO: 100}}
	silent := used(10, 11e6, 200, 10, 3, 1e6, 2000, 0)
	silent.WorkErr = errors.New("timeout")
	for name, c := range map[string]struct {
		guard   policy.Guarded
		before  state.Baseline
		last    metrics.Sample
		counter string
		window  bool
		want    string
	}{
		"a kill, at once": {policy.Guarded{OOMKills: to(int64(0))}, state.Baseline{Kills: 3},
			used(1, 0, 0, 0, 4, 0, 0, 0), "", false, "the kernel killed 1 of its processes"},
		"a kill after a reboot": {policy.Guarded{OOMKills: to(int64(0))}, state.Baseline{Kills: 3},
			used(1, 0, 0, 0, 2, 0, 0, 0), "", false, "the kernel killed 2 of its processes"},
		"a kill before the change": {policy.Guarded{OOMKills: to(int64(0))}, state.Baseline{Kills: 3},
			used(1, 0, 0, 0, 3, 0, 0, 0), "", false, ""},
		"as many as may be": {policy.Guarded{OOMKills: to(int64(2))}, state.Baseline{Kills: 3},
			used(10, 0, 0, 0, 5, 0, 0, 0), "", true, ""},
		"throttled": {policy.Guarded{Throttled: to(0.5)}, state.Baseline{},
			used(10, 0, 200, 61, 3, 0, 0,
				0), "", true, "its CPU limit held it back in 51 of 100 periods, more than 50 %"},
		"throttled half": {policy.Guarded{Throttled: to(0.5)}, state.Baseline{},
			used(10, 0, 200, 60, 3, 0, 0, 0), "", true, ""},
		"before the window is over": {policy.Guarded{Throttled: to(0.5)}, state.Baseline{},
			used(1, 0, 200, 110, 3, 0, 0, 0), "", false, ""},
		"pressure": {policy.Guarded{MemoryPressure: to(0.2)}, state.Baseline{},
			used(10, 0, 0, 0, 3, 31e5, 0, 0), "", true, "waited for memory in 21 % of 10s, more than 20 %"},
		"little pressure": {policy.Guarded{MemoryPressure: to(0.2)}, state.Baseline{},
			used(10, 0, 0, 0, 3, 29e5, 0, 0), "", true, ""},
		"the database does less": {policy.Guarded{Throughput: to(0.3)}, byDB,
			used(10, 11e6, 0, 0, 3, 0, 2000,
				5690), "Questions", true,
			"fell by 31 %: from 100.0 to 69.0 Questions per second, by the database"},
		"the database does enough": {policy.Guarded{Throughput: to(0.3)}, byDB,
			used(10, 1e6, 0, 0, 3, 0, 1000, 5710), "Questions", true, ""},
		"the database was restarted": {policy.Guarded{Throughput: to(0.3)}, byDB, used(10, 0, 0, 0, 3, 0, 0, 900),
			"Questions", true, ""},
		"the database does not answer": {policy.Guarded{Throughput: to(0.3)}, byDB, silent, "Questions", true,
			"which does not answer: timeout"},
		"the kernel counts less of both": {policy.Guarded{Throughput: to(0.3)}, byKernel,
			used(10, 6e6, 0, 0, 3, 0, 1400,
				0), "", true, "fell by 50 %: from 1.00 to 0.50 cores, by the kernel"},
		"the kernel counts less of one": {policy.Guarded{Throughput: to(0.3)}, byKernel,
			used(10, 2e6, 0, 0, 3, 0, 2000, 0), "", true, ""},
		"it was idle before": {policy.Guarded{Throughput: to(0.3)}, state.Baseline{Work: &state.Work{CPU: 0.01, IO: 2}},
			used(10, 1e6, 0, 0, 3, 0, 1000, 0), "", true, ""},
		"nothing is known of before": {policy.Guarded{Throughput: to(0.3)}, state.Baseline{},
			used(10, 1e6, 0, 0, 3, 0, 1000, 0), "", true, ""},
		"nothing is asked of a group": {policy.Guarded{}, byKernel, used(10, 1e6, 200, 110, 9, 9e6, 1000, 0), "",
			true, ""},
		"what is not counted is no fault": {policy.Guarded{OOMKills: to(int64(0)), Throttled: to(0.1),
			MemoryPressure: to(0.1)}, state.Baseline{}, metrics.Sample{At: first.At.Add(10 * time.Second)}, "", true,
			""},
	} {
		c.guard.Group = "app"
		got := verdict(c.guard, c.before, first, c.last, c.window)
		if fell, how := fall(c.guard, c.before, first, c.last, c.counter); got == "" && fell > 0 {
			got = fmt.Sprintf("fell by %.0f %%: from %s", 100*fell, how)
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A fall of throughput is held against how windows differed before, and wanted twice in a row unless it is total.
func TestFallsAreHeldAgainstTheSpread(t *testing.T) {
	const window = 10 * time.Second
	steady := []float64{100, 101, 99, 100, 102, 98, 100}
	rough := []float64{100, 60, 140, 110, 70, 130, 90}
	for name, c := range map[string]struct {
		before []float64
		after  []float64 // what each window does in a second
		want   string    // "" is content
	}{
		"as before":      {steady, []float64{100, 99}, ""},
		"once":           {steady, []float64{100, 60}, ""},
		"once, and back": {steady, []float64{60, 100}, ""},
		"twice": {steady, []float64{60, 60},
			"fell by 40 %, more than 30 %, in two windows in a row: from "},
		"how sure":                    {steady, []float64{60, 60}, "half of the 7 windows before were within 1 % of "},
		"the first window alone":      {steady, []float64{60}, ""},
		"total, at once":              {steady, []float64{3}, "fell by 97 %, more than 30 %, altogether: from "},
		"within what is usual":        {rough, []float64{61, 61}, ""},
		"far below what is usual":     {rough, []float64{2, 0}, "in two windows in a row"},
		"and once":                    {rough, []float64{90, 0}, ""},
		"too little is known before":  {steady[:4], []float64{20, 20}, ""},
		"less than what is forbidden": {steady, []float64{75, 75}, ""},
	} {
		var windows []state.Work
		for _, n := range c.before {
			windows = append(windows, state.Work{Counter: "Questions", DB: n})
		}
		var before state.Baseline
		if known := before.TakeIn(windows); known != (len(windows) >= state.LeastWindows) {
			t.Errorf("%s: known %t", name, known)
		}
		all := []metrics.Sample{used(0, 0, 0, 0, 0, 0, 0, 0)}
		done := 0.0
		for i, n := range c.after {
			for step := 1.0; step <= 10; step++ {
				all = append(all, used(float64(10*i)+step, 0, 0, 0, 0, 0, 0, int64(done+n*step)))
			}
			done += 10 * n
		}
		got := judge(policy.Guarded{Group: "app", Throughput: to(0.3)}, before, all, "Questions", window)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Samples that come late, by up to half a second each, leave two whole windows to judge by.
func TestTwoWindowsOfLateSamples(t *testing.T) {
	steady := []float64{100, 101, 99, 100, 102, 98, 100}
	var windows []state.Work
	for _, n := range steady {
		windows = append(windows, state.Work{Counter: "Questions", DB: n})
	}
	var before state.Baseline
	before.TakeIn(windows)
	for _, window := range []time.Duration{2 * time.Second, 5 * time.Second, 20 * time.Second} {
		var all []metrics.Sample
		for at, i := 0.0, 0; at < 5*window.Seconds()+10; at, i = at+1+float64(i%2)/2, i+1 {
			all = recent(append(all, used(at, 0, 0, 0, 0, 0, 0, int64(50*at))), window)
			got := judge(policy.Guarded{Group: "app", Throughput: to(0.3)}, before, all, "Questions", window)
			if at >= (2*window+uneven).Seconds() && got == "" {
				t.Fatalf("window %s: after %.1f s of half the throughput it says %q", window, at, got)
			}
		}
	}
}
