package systemd_test

import (
	"context"
	"testing"
	"time"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/systemdfake"
)

// next waits for a reason of that kind and lets others pass.
func next(t *testing.T, reasons <-chan systemd.Reason, want systemd.ReasonKind) systemd.Reason {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		select {
		case r, ok := <-reasons:
			if !ok {
				t.Fatalf("the watch ended before %q", want)
			}
			if r.Kind == want {
				return r
			}
		case <-limit:
			t.Fatalf("never told of %q", want)
		}
	}
}

func watchOptions(m *systemdfake.Manager) systemd.WatchOptions {
	return systemd.WatchOptions{Options: m.Options(), MinWait: time.Millisecond, MaxWait: 20 * time.Millisecond,
		Every: 20 * time.Millisecond}
}

func TestWatchOutlivesTheBus(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	lost := make(chan error, 1000)
	o := watchOptions(m)
	o.Lost = func(err error) { lost <- err }
	reasons := systemd.Watch(t.Context(), o)
	next(t, reasons, systemd.Missed)
	for range 3 {
		m.Drop()
		next(t, reasons, systemd.Missed)
		if err := <-lost; err == nil {
			t.Error("lost for no reason")
		}
		eventually(t, "a reload works", func() bool { return client.Reload(t.Context()) == nil })
		next(t, reasons, systemd.ReloadEnded)
	}
	m.Away(true)
	<-lost
	m.Away(false)
	next(t, reasons, systemd.Missed)
}

// A bus that is there and silent counts as lost.
func TestWatchNoticesSilence(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	o := watchOptions(m)
	o.Timeout = 50 * time.Millisecond
	lost := make(chan error, 1000)
	o.Lost = func(err error) { lost <- err }
	reasons := systemd.Watch(t.Context(), o)
	next(t, reasons, systemd.Missed)
	m.Hang(true)
	wantError(t, <-lost, systemd.ErrNoAnswer)
	m.Hang(false)
	next(t, reasons, systemd.Missed)
}

// Before there is a systemd, and after.
func TestWatchBeforeTheBus(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	m.Away(true)
	o := watchOptions(m)
	lost := make(chan error, 1000)
	o.Lost = func(err error) { lost <- err }
	ctx, cancel := context.WithCancel(t.Context())
	reasons := systemd.Watch(ctx, o)
	<-lost
	m.Away(false)
	next(t, reasons, systemd.Missed)
	cancel()
	eventually(t, "the channel is closed", func() bool {
		select {
		case _, ok := <-reasons:
			return !ok
		default:
			return false
		}
	})
	eventually(t, "the connection is closed", func() bool { return m.Clients() == 0 })
}

// Nothing is lost on a reader who is busy, and the same is told once.
func TestWatchAddsUp(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	o := watchOptions(m)
	o.Every = time.Hour
	reasons := systemd.Watch(t.Context(), o)
	next(t, reasons, systemd.Missed)
	for range 50 {
		if err := client.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	slices := []string{"a.slice", "b.slice"}
	for _, name := range slices {
		if err := client.StartTransient(t.Context(), systemd.Transient{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	told := map[systemd.Reason]int{}
	job := func(unit string) int { return told[systemd.Reason{Kind: systemd.JobRemoved, Unit: unit}] }
	for job("a.slice") == 0 || job("b.slice") == 0 { // the model ends two calls in any order
		told[<-reasons]++
	}
	if n := told[systemd.Reason{Kind: systemd.ReloadEnded}]; n < 1 || n > 10 {
		t.Errorf("told %d times of 50 reloads that nobody waited for", n)
	}
	if job("a.slice") != 1 || job("b.slice") != 1 {
		t.Errorf("told %v", told)
	}
}
