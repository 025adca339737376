package agent

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/linux/procevents"
)

// An event source that ended is opened again, at growing intervals while that fails. All processes are looked at then.
func TestEventsThatEndAreOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened, broken := 0, false
		var stream *scripted
		open := func() (source, error) {
			opened++
			if broken {
				return nil, errors.New("broken for a test")
			}
			stream = &scripted{reads: make(chan []procevents.Event), within: make(chan time.Duration, 100)}
			return stream, nil
		}
		o := Options{Every: time.Second, Log: slog.New(slog.DiscardHandler), events: open, traces: open}
		a := &Agent{held: newBatch(), o: o}
		a.listenEvents()
		close(stream.reads)
		synctest.Wait()
		broken = true
		for range 30 {
			a.takeEvents(false, becauseRetry)
			time.Sleep(time.Second)
		}
		if opened < 1+2*3 || opened > 1+2*5 || !strings.HasPrefix(a.status.Source, "a look every 1s") {
			t.Errorf("tried %d times in 30 s; %s", opened, a.status.Source)
		}
		a.held = newBatch()
		broken = false
		for range 40 {
			a.takeEvents(false, becauseRetry)
			time.Sleep(time.Second)
		}
		if a.queue == nil || a.status.Source != "events of the kernel" || !a.held.whole {
			t.Errorf("not opened again: %s, everything is looked at: %t", a.status.Source, a.held.whole)
		}
		if a.queue != nil {
			close(stream.reads)
		}
	})
}
