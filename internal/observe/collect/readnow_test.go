package collect

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/observe"
)

// One that is asked to reads at once, in a sample of its own, and then with the others as before; a second time half a
// second later. One that is off does not.
func TestReadNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		begun := time.Now()
		s.start(Choice{})
		if err := s.r.Change(Change{Verb: Disable, Names: []string{"memory"}}); err != nil {
			t.Fatal(err)
		}
		s.pass(12 * time.Second)
		s.r.ReadNow(observe.Memory)
		s.r.ReadNow(observe.Limits)
		s.pass(time.Millisecond)
		if last := s.samples[len(s.samples)-1]; !slices.Equal(last.fresh, []observe.Part{observe.Limits}) {
			t.Errorf("after 12 s these are new: %q", last.fresh)
		}
		s.r.ReadNow(observe.Limits) // it has just read
		s.pass(20 * time.Second)
		at := []time.Duration{}
		for _, read := range s.read[observe.Limits] {
			at = append(at, read.Sub(begun)/(100*time.Millisecond))
		}
		if n := len(s.read[observe.Memory]); n != 1 || !slices.Equal(at, []time.Duration{0, 100, 120, 125, 200, 300}) {
			t.Errorf("limits were read at these tenths of a second: %d; memory %d times", at, n)
		}
	})
}
