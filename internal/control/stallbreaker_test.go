package control

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/metrics"
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

// What is lifted stays so until somebody asks for it again, and history and status say why.
func TestHighIsLifted(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	const text = "groups:\n  jobs: {role: helper, match: [{exe: backup}], memory: {high: 256MiB, max: 1GiB}}\n"
	m.apply(text)
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	m.reads("applied", jobsSlice, "memory.high", "268435456")
	if got := m.memory.highs; len(got) == 0 {
		t.Error("nothing is watched")
	}
	m.must(m.liftHigh(t.Context(), "jobs", "it got nowhere"))
	m.reads("lifted", jobsSlice, "memory.high", "max")
	m.reads("lifted", jobsSlice, "memory.max", "1073741824")
	for range 2 {
		if done, err := m.full(); err != nil || done.Repaired > 0 {
			t.Fatalf("a look: %+v, %v", done, err)
		}
	}
	m.reads("after two looks", jobsSlice, "memory.high", "max")
	if got := m.memory.highs; len(got) != 0 {
		t.Errorf("still watched: %v", got)
	}
	m.must(m.liftHigh(t.Context(), "jobs", "it got nowhere")) // there is nothing left to lift
	st, err := m.Status(t.Context())
	if err != nil || len(st.Lifted) != 1 || st.Lifted[0].High != "256MiB" ||
		!strings.Contains(st.Lifted[0].String(), "it got nowhere") || st.Differs != 0 || len(st.Conflicts) > 0 {
		t.Errorf("status: %+v, differs %d, %v, %v", st.Lifted, st.Differs, st.Conflicts, err)
	}
	h, err := m.Store.History()
	if last := h[len(h)-1]; err != nil || last.Verb != "lift" || last.By != "agent" ||
		!strings.Contains(last.Reason, "256MiB") || len(last.Changes) == 0 {
		t.Errorf("history: %+v, %v", last, err)
	}
	if _, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:memory.high=300MiB"}}); err != nil {
		t.Fatal(err)
	}
	m.reads("set", jobsSlice, "memory.high", "314572800")
	if _, err := m.do(api.Request{Verb: "unset", Assign: []string{"jobs:memory.high"}}); err != nil {
		t.Fatal(err)
	}
	m.reads("unset", jobsSlice, "memory.high", "max")
	m.apply(text)
	m.reads("applied again", jobsSlice, "memory.high", "268435456")
	if st, err := m.Status(t.Context()); err != nil || len(st.Lifted) > 0 {
		t.Errorf("status after the apply: %+v, %v", st.Lifted, err)
	}
}
