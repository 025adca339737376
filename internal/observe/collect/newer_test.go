package collect

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/observe"
)

// Who waits for a newer sample gets each of them, every second, and the last one again when it waits too long.
func TestNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.start(Choice{})
		s.pass(3 * time.Second)
		at := time.Time{}
		for i := range 20 {
			var one *observe.Sample
			s.meanwhile(func() { one = s.r.Newer(t.Context(), at) })
			if !one.At.After(at) {
				t.Fatalf("sample %d is of %v, after %v", i, one.At, at)
			}
			if gap := one.At.Sub(at); i > 1 && gap != time.Second {
				t.Errorf("sample %d comes %v after the one before", i, gap)
			}
			at = one.At
		}
		ctx, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer end()
		var one *observe.Sample
		s.meanwhile(func() { one = s.r.Newer(ctx, at) })
		if !one.At.Equal(at) || one.Age != 500*time.Millisecond {
			t.Errorf("waiting too long gives the one of %v, %v old", one.At, one.Age)
		}
	})
}

// Who waits is not left waiting when the runner ends.
func TestNewerAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.start(Choice{})
		s.pass(3 * time.Second)
		last := make(chan *observe.Sample)
		go func() { last <- s.r.Newer(t.Context(), time.Now().Add(time.Hour)) }()
		s.meanwhile(synctest.Wait)
		s.end()
		if one := <-last; one == nil {
			t.Error("there is no sample")
		}
	})
}
