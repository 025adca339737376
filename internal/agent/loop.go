package agent

import (
	"context"
	"errors"
	"time"

	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/transaction"
)

// loop looks when something happened, and at fixed times, and has looked called after each.
func (a *Agent) loop(ctx context.Context, looked func()) {
	t := newTimers(a.o.Every, a.notifier.beat)
	defer t.stop()
	full := time.Time{}
	rest := budget{left: maxBurst, at: time.Now()}
	for why := becauseTick; why != becauseEnd; {
		now := time.Now()
		if why == becauseChange {
			full = time.Time{}
		}
		whole := now.Sub(full) >= a.o.Full || why == becauseTick && !a.notifier.isReady()
		if whole {
			full = now
		}
		before := cpuTime()
		a.locked = false
		pass := reconcile.Impatient(ctx, a.control)
		a.look(a.notifier.during(pass, now), whole, why)
		looked()
		if whole && a.locked {
			full = time.Time{}
		}
		a.shareLimits(ctx)
		if why == becauseTick || why == becauseChange { // a storm of events is no reason to read files
			a.control.SampleGuarded(ctx, now)
			a.mindTrial(pass)
			a.slo.Tick(pass, now)
		}
		a.watchHigh(pass)
		if whole && ctx.Err() == nil {
			trouble := a.trouble()
			if trouble == "" && a.locked && !a.notifier.isReady() {
				trouble = "somebody else is changing the host"
			}
			a.notifier.looked(transaction.Standing(a.control.Controller), trouble, time.Now())
		}
		if a.locked {
			t.retry.Reset(lockRetry)
		}
		t.pause(rest.spend(cpuTime()-before, time.Now()))
		if at := nextLate(a.late); !at.IsZero() {
			t.title.Reset(time.Until(at))
		}
		a.sampleLoads(now)
		a.see(ctx)
		why = a.wait(ctx, t)
	}
	a.notifier.stopping()
}

// timers are what the loop waits for beside events.
type timers struct {
	tick        *time.Ticker
	rest, title *time.Timer // until events are taken again; until a title is written
	retry       *time.Timer // until the lock is tried again
	resting     bool
	beat        *time.Ticker // for the next sign of life
}

// pause leaves events waiting for a while.
func (t *timers) pause(d time.Duration) {
	if t.resting = d > 0; t.resting {
		t.rest.Reset(d)
	}
}

func newTimers(tick, beat time.Duration) *timers {
	t := &timers{
		tick: time.NewTicker(tick), rest: time.NewTimer(0), title: time.NewTimer(0), retry: time.NewTimer(time.Hour),
		beat: time.NewTicker(time.Hour),
	}
	if beat > 0 {
		t.beat.Reset(beat)
	}
	return t
}

func (t *timers) stop() {
	t.beat.Stop()
	t.tick.Stop()
	t.rest.Stop()
	t.title.Stop()
	t.retry.Stop()
}

// lockRetry is the time between two attempts to take the lock of the state directory. The loop never waits for it.
const lockRetry = 100 * time.Millisecond

// lockTrouble is for how long it is no trouble that somebody else holds the lock.
const lockTrouble = 5 * time.Second

// unlessLocked drops the error of what the loop could not do because somebody else holds the lock. It is tried again
// soon. A lock that is held for long is trouble.
func (a *Agent) unlessLocked(err error) error {
	var locked *statedir.LockedError
	if !errors.As(err, &locked) {
		return err
	}
	if a.locked = true; a.lockedSince.IsZero() {
		a.lockedSince = time.Now()
	}
	if time.Since(a.lockedSince) < lockTrouble {
		return nil
	}
	return err
}

// reason is why the loop looks.
type reason int

const (
	becauseTick   reason = iota // it is time
	becauseEvent                // of the kernel
	becauseChange               // a verb changed something
	becauseRetry                // the lock was held by somebody else
	becauseEnd                  // it does not: the agent ends
)

// wait waits for a reason to look.
func (a *Agent) wait(ctx context.Context, t *timers) reason {
	for {
		var woken <-chan struct{} // not before the rest is over
		if a.queue != nil && !t.resting {
			woken = a.queue.wake
		}
		a.notifier.alive(time.Now())
		select {
		case <-ctx.Done():
			return becauseEnd
		case <-t.beat.C: // to say so
		case <-t.rest.C:
			t.resting = false
		case <-a.wake:
			return becauseChange
		case <-woken:
			return becauseEvent
		case <-t.title.C:
			if len(a.late) > 0 {
				return becauseEvent
			}
		case <-t.tick.C:
			return becauseTick
		case <-t.retry.C:
			return becauseRetry
		}
	}
}
