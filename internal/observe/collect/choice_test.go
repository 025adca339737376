package collect

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/observe"
)

// usual are the collectors that are on at first.
func usual() []observe.Part {
	return slices.DeleteFunc(slices.Clone(observe.Parts), observe.Part.Asked)
}

func TestUnknown(t *testing.T) {
	_, err := Choice{}.With(Change{Verb: Enable, Names: []string{"cpu", "disks", "nets"}}, time.Now())
	if want := `there is no collector "disks", "nets"; nothing was changed`; fmt.Sprint(err) != want {
		t.Errorf("%v", err)
	}
	if next, err := (Choice{}).With(Change{Verb: Disable, Names: []string{"cpu"}, For: -1}, time.Now()); err == nil {
		t.Errorf("a time below zero gives %+v", next)
	}
	next, err := Choice{}.With(Change{Verb: Set, Names: []string{"lr"}}, time.Now())
	if err != nil || len(next.Set) != 8 {
		t.Errorf("a tier stands for %v: %v", next.Set, err)
	}
}

// All collectors, one after the other, are as all of them: then one that a later version brings is on, too.
func TestAllByName(t *testing.T) {
	var c Choice
	for _, change := range []Change{{Verb: Disable, Names: []string{"cpu"}}, {Verb: Enable, Names: []string{"cpu"}}} {
		var err error
		if c, err = c.With(change, time.Now()); err != nil {
			t.Fatal(err)
		}
		if all := c.Set == nil; all != (change.Verb == Enable) {
			t.Errorf("after %s: %v", change.Verb, c.Set)
		}
	}
}

// What is off until it is asked for is switched on by its name alone, and the others stay all that there are.
func TestAskedFor(t *testing.T) {
	now := time.Now()
	var c Choice
	on := func(when time.Time) bool { is, _ := c.On(observe.Blamed, when); return is }
	if cpu, _ := c.On(observe.CPU, now); on(now) || !cpu {
		t.Error("at first it is on, or another one is not")
	}
	for i, step := range []struct {
		change Change
		want   bool
	}{
		{Change{Verb: Enable, Names: []string{"mr"}}, false},
		{Change{Verb: Enable, Names: []string{"blame"}}, true},
		{Change{Verb: Disable, Names: []string{"cpu"}}, true},
		{Change{Verb: Enable, Names: []string{"hr"}}, true},
		{Change{Verb: Disable, Names: []string{"mr"}}, false},
		{Change{Verb: Set, Names: []string{"mr", "blame"}}, true},
		{Change{Verb: Set, Names: []string{"hr", "mr", "lr"}}, false},
		{Change{Verb: Enable, Names: []string{"blame"}}, true},
		{Change{Verb: Reset}, false},
		{Change{Verb: Enable, Names: []string{"blame"}, For: time.Hour}, true},
	} {
		var err error
		if c, err = c.With(step.change, now); err != nil {
			t.Fatal(err)
		}
		if on(now) != step.want {
			t.Errorf("after step %d, %+v: %+v", i, step.change, c)
		}
		if i == 1 && (c.Set != nil || len(c.Asked) != 1) {
			t.Errorf("one that a later version brings would be off: %+v", c)
		}
	}
	if on(now.Add(2 * time.Hour)) {
		t.Error("an hour later it is still on")
	}
}

// What a reading lacks is told with its collector until there is a better one.
func TestRemark(t *testing.T) {
	text := "nothing counts"
	r := New(Options{Sources: map[observe.Part]Source{observe.CPU: func(_ context.Context, m *Meter) (Put, error) {
		m.Remark(text)
		return func(*observe.Sample) {}, nil
	}}})
	for _, text = range []string{"nothing counts", ""} {
		m := NewMeter(func() (int, time.Duration) { return 0, 0 })
		put, err := r.all[0].attempt(t.Context(), m)
		r.end(r.all[0], put, err, time.Now(), m)
		if got := r.Readings()[0].Remark; got != text {
			t.Errorf("it says %q, not %q", got, text)
		}
	}
}
