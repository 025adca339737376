package sampling

import (
	"context"
	"math"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/policy"
)

// What an observer samples is recorded, to the last sample, and the record says what the sample does.
func TestRecorded(t *testing.T) {
	state := t.TempDir()
	o := NewObserver(Options{Host: host.New("/"), State: state, Every: 50 * time.Millisecond,
		Self:  func() (observe.Agent, error) { return observe.Agent{}, nil },
		Tasks: func() (map[string]metrics.TaskStates, metrics.Loads) { return nil, nil }})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	began := time.Now()
	o.See(ctx, Nothing(&policy.Record{}))
	for reach := (record.Reach{}); reach.Ticks < 5; time.Sleep(10 * time.Millisecond) {
		var err error
		if reach, err = o.Record.Reach(); err != nil || time.Since(began) > time.Minute {
			t.Fatalf("after %v there is %+v, %v", time.Since(began), reach, err)
		}
	}
	end()
	o.Wait(time.Minute)
	last := o.Last()
	segments, err := record.Open(RecordIn(state), began, last.At)
	if err != nil {
		t.Fatal(err)
	}
	defer segments.Close()
	known, err := record.At(segments, last.At)
	if err != nil || !known.At.Equal(last.At.Truncate(time.Millisecond)) {
		t.Fatalf("the record knows what was at %v, the sample is of %v: %v", known.At, last.At, err)
	}
	recorded := map[record.Key]float64{}
	for _, p := range known.Parts {
		for _, f := range p.Figures {
			recorded[f.Key] = f.Value
		}
	}
	n := 0
	for i := range observe.Table {
		r := &observe.Table[i]
		if r.Part == observe.OfAgent { // it tells of the sample, too, in which others are new
			continue
		}
		r.Each(last, func(value float64, labels ...string) {
			n++
			got, is := recorded[record.KeyOf(r.Name, labels...)]
			if !is || math.Abs(got-value) > 1e-12*math.Abs(value) {
				t.Errorf("%s%q is %v, and was recorded as %v (%v)", r.Name, labels, value, got, is)
			}
		})
	}
	if n < 20 {
		t.Errorf("the sample has %d figures", n)
	}
}

// Limits that changed are in the record at once, also those of a group that is new; what did not change waits for its
// turn.
func TestNewLimitsAreRecorded(t *testing.T) {
	o := NewObserver(Options{Host: host.New("/"), State: t.TempDir(), Every: time.Hour,
		Self:  func() (observe.Agent, error) { return observe.Agent{}, nil },
		Tasks: func() (map[string]metrics.TaskStates, metrics.Loads) { return nil, nil }})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	group := func(name string, limit float64) watchedGroup {
		return watchedGroup{Group: observe.Group{Group: name,
			Limits: []observe.Limit{{Key: "cpu.limit", Asked: &limit, Held: &limit, InForce: true}}}}
	}
	seen := func(groups ...watchedGroup) time.Time {
		t.Helper()
		at := time.Now()
		o.See(ctx, &Watched{record: &policy.Record{}, groups: groups})
		return at
	}
	sampled := func(after time.Time) {
		t.Helper()
		wait, done := context.WithTimeout(ctx, time.Minute)
		defer done()
		if s := o.Newer(wait, after); s == nil || !s.At.After(after) {
			t.Fatal("no sample came")
		}
	}
	sampled(seen(group("a", 1)))
	sampled(seen(group("a", 2)))
	first := seen(group("a", 2), group("b", 3))
	sampled(first)
	if o.kernel.Watch(&Watched{groups: []watchedGroup{group("a", 2), group("b", 3)}}) {
		t.Error("the same limits count as changed")
	}
	end()
	o.Wait(time.Minute)
	last := o.Last().At
	segments, err := record.Open(o.directory, first, last)
	if err != nil {
		t.Fatal(err)
	}
	defer segments.Close()
	known, err := record.At(segments, last)
	if err != nil {
		t.Fatal(err)
	}
	got := map[record.Key]float64{}
	for _, p := range known.Parts {
		for _, f := range p.Figures {
			got[f.Key] = f.Value
		}
	}
	for name, want := range map[string]float64{"a": 2, "b": 3} {
		key := record.KeyOf("bulkhead_group_limit", name, "", "", "cpu.limit", "")
		if v, is := got[key]; !is || v != want {
			t.Errorf("the limit of %s is recorded as %v (%v), want %v: %v", name, v, is, want, got)
		}
	}
}

// While the disk takes nothing so many samples wait, and those that come then are lost and counted; who samples goes
// on.
func TestFullQueue(t *testing.T) {
	wait := make(chan taken, waiting)
	recorder := record.New(record.Options{Dir: t.TempDir()})
	for range waiting + 3 {
		pass(wait, taken{}, recorder.Lose)
	}
	if at, err := recorder.Reach(); err != nil || at.Lost != 3 || len(wait) != waiting {
		t.Errorf("%d wait, %+v, %v", len(wait), at, err)
	}
}
