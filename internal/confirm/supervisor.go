package confirm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Supervisor takes care of one change on trial until it is settled: in the watchdog, and in an agent whose watchdog was
// killed.
type Supervisor struct {
	c     *transaction.Controller
	id    string
	look  pause     // after a look that failed, or what followed from it
	late  pause     // after an undoing that failed of what nobody confirmed
	since time.Time // it knows the trial; its own clock, which nobody sets
	left  time.Duration
	guard guardian
	rest  ApplyRest

	lockWait time.Duration
	// Clock is another one than the host's, in tests; nil is that one.
	Clock func() time.Time
}

// ApplyRest applies the rest of the policy that a canary went before, and gives its revision. The caller holds the
// lock.
type ApplyRest func(ctx context.Context, canary *state.Canary) (revision int, err error)

// NewSupervisor makes one for the trial with this id.
func NewSupervisor(c *transaction.Controller, id string, rest ApplyRest) *Supervisor {
	return &Supervisor{c: c, id: id, rest: rest, lockWait: cmp.Or(c.LockWait, transaction.DefaultLockWait),
		guard: guardian{c: c}}
}

// tendEvery is how often a trial is looked at.
const tendEvery = 500 * time.Millisecond

// Run takes care of the trial until it is over or ctx ends.
func (t *Supervisor) Run(ctx context.Context) error {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		over, err := t.Once(ctx)
		if err != nil {
			t.c.Log.Error("a change on trial could not be undone; trying again", "err", err)
		}
		if over {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// retryAtMost is the longest time between two attempts to undo a change, or to look at it.
const retryAtMost = time.Minute

// pause is the time between two attempts, twice as long after each that fails.
type pause struct {
	wait time.Duration
	next time.Time
}

// after takes in what came of an attempt.
func (p *pause) after(err error, now time.Time) {
	if err == nil {
		*p = pause{}
		return
	}
	p.wait = min(max(2*p.wait, time.Second), retryAtMost)
	p.next = now.Add(p.wait)
}

// Once looks once. Over says that there is nothing more to take care of.
func (t *Supervisor) Once(ctx context.Context) (over bool, err error) {
	now := time.Now()
	if t.Clock != nil {
		now = t.Clock()
	}
	trial, err := state.OnTrial(t.c.Store)
	known := err == nil && trial != nil && trial.ID == t.id
	if known && t.since.IsZero() {
		t.since, t.left = now, trial.Confirm.Sub(t.c.Now())
	}
	// Whatever the guard can see, and however long it rests.
	late := known && (trial.Overdue(t.c.Now()) || !trial.Confirm.IsZero() && now.Sub(t.since) >= t.left)
	rests := &t.look
	if late {
		rests = &t.late
	}
	if now.Before(rests.next) {
		return false, nil
	}
	defer func() { rests.after(err, now) }()
	switch {
	case err != nil:
		return false, err
	case !known:
		return t.unsettled(ctx)
	case late:
		return t.revert(ctx, trial.Late())
	case trial.Guard == nil:
		return false, nil
	}
	return t.guarded(ctx, trial, now)
}

// guarded looks once for the guard of the trial.
func (t *Supervisor) guarded(ctx context.Context, trial *state.Trial, now time.Time) (over bool, err error) {
	why, err := t.guard.look(ctx, trial.Guard)
	switch {
	case why != "":
		return t.revert(ctx, "guard: "+why)
	case err != nil:
		return false, fmt.Errorf("look at what the guard watches: %w", err)
	case !t.watched(trial, now):
		return false, nil
	case trial.Canary != "":
		return t.promote(ctx)
	}
	return t.passed(ctx)
}

// watched says whether a guard's time is over. Without a whole window, or two for throughput, it has judged nothing: a
// clock that jumps forward, a change that took long and a watchdog that was started anew do not shorten that.
func (t *Supervisor) watched(trial *state.Trial, now time.Time) bool {
	seen, least := now.Sub(t.since), trial.Guard.Window
	if slices.ContainsFunc(trial.Guard.Clauses, func(g policy.Guarded) bool { return g.Throughput != nil }) {
		least *= 2
	}
	return seen >= least+uneven &&
		(!t.c.Now().Before(trial.Guard.Until) || seen > trial.Guard.Until.Sub(trial.At))
}

// passed ends the watch of a guard that saw no harm.
func (t *Supervisor) passed(ctx context.Context) (over bool, err error) {
	t.guard.close()
	t.guard = guardian{c: t.c}
	return t.settle(ctx, "guard", func(trial *state.Trial) (over bool, err error) {
		t.c.Log.Info("the guard saw no harm", "change", trial.Named())
		if trial.Confirm.IsZero() {
			return true, End(t.c)
		}
		trial.Guard = nil
		return false, t.c.Store.Save(state.DocTrial, trial)
	})
}

// settle does something about the trial under the lock, unless somebody has settled it meanwhile.
func (t *Supervisor) settle(ctx context.Context, verb string, do func(*state.Trial) (over bool, err error)) (over bool,
	err error) {
	lock, err := t.c.LockWithin(ctx, t.lockWait, verb, byItself)
	if err != nil {
		return false, err
	}
	defer lock.Release()
	if err := t.c.Recover(ctx,
		&transaction.Outcome{}); err != nil { // what somebody else left is no fault of this change
		return false, err
	}
	trial, err := state.OnTrial(t.c.Store)
	if err != nil || trial == nil || trial.ID != t.id {
		return err == nil, err
	}
	return do(trial)
}

// revert undoes the change.
func (t *Supervisor) revert(ctx context.Context, why string) (over bool, err error) {
	return t.settle(ctx, "revert", func(trial *state.Trial) (over bool, err error) {
		if err := revert(ctx, t.c, trial, why, byItself, &transaction.Outcome{}); err != nil {
			return false, err
		}
		t.c.Log.Warn("undid a change on trial", "change", trial.Named(), "why", why)
		return true, nil
	})
}

// promote applies the rest of the policy that a canary went before.
func (t *Supervisor) promote(ctx context.Context) (over bool, err error) {
	t.guard.close()
	return t.settle(ctx, "apply", func(trial *state.Trial) (over bool, err error) {
		d, err := state.Load(t.c.Store, state.DocCanary)
		if err != nil || d.Prune(state.Moment{}).Canary == nil {
			return true, fmt.Errorf("the policy of the canary is not known any more: %w", errors.Join(err, End(t.c)))
		}
		revision, err := t.rest(ctx, d.Canary)
		if _, falls := transaction.StillFalls(err); falls {
			return false, err // it goes on
		}
		if err != nil {
			err := revert(ctx, t.c, trial, "canary: the rest could not be applied: "+strings.SplitN(err.Error(), "\n",
				2)[0], byItself, &transaction.Outcome{})
			return err == nil, err
		}
		t.c.Log.Info("a canary did well; the rest is applied", "group", d.Canary.Group, "revision", revision)
		return true, nil
	})
}

// unsettled undoes a change that was cut off before it was on trial.
func (t *Supervisor) unsettled(ctx context.Context) (over bool, err error) {
	again, err := transaction.TakeOver(ctx, t.c, "revert", byItself)
	return err == nil && !again, err // else look again: the change may have been done, and be on trial
}

// slack is how long past its time a watchdog may be before the agent does its work.
const slack = 5 * time.Second

// Fallback takes care of changes on trial, one after the other, where their watchdogs do not: for an agent. It is for
// one goroutine.
type Fallback struct {
	c          *transaction.Controller
	rest       ApplyRest
	supervisor *Supervisor // of the last one
	seen       *state.Trial
	from       int  // the last entry of the history when that was seen first
	blind      bool // the history could not be read then: from is older
	known      Trials
	// Clock is that of its supervisors, in tests.
	Clock func() time.Time
}

// NewFallback makes one.
func NewFallback(c *transaction.Controller, rest ApplyRest) *Fallback {
	return &Fallback{c: c, rest: rest}
}

// Trials is what is known of changes on trial.
type Trials struct {
	Guarded bool  // the guard watches one now
	Waits   bool  // one waits now to be confirmed
	Undone  int64 // how many were undone
}

// Known is what Once saw so far.
func (f *Fallback) Known() Trials { return f.known }

// see takes in what is on trial; nil is nothing. What became of the one before says the history; where that cannot be
// read, which others tell, it is not counted.
func (f *Fallback) see(t *state.Trial) {
	before, same := f.seen, f.seen != nil && t != nil && t.ID == f.seen.ID
	f.seen, f.known.Guarded, f.known.Waits = t, t != nil && t.Guard != nil, t != nil && !t.Confirm.IsZero()
	if same || before == nil && t == nil {
		return
	}
	heads, err := f.c.Store.Heads()
	told := before != nil && !f.blind
	f.blind = err != nil
	for _, e := range heads {
		if told && e.N > f.from && e.Verb == "revert" {
			f.known.Undone++
		}
		f.from = max(f.from, e.N)
	}
}

// Once looks once: it starts a new watchdog when that of the trial is gone, and does its work when none can be started,
// and when it hangs. It does not wait for the lock.
func (f *Fallback) Once(ctx context.Context) error {
	t, err := state.OnTrial(f.c.Store)
	if err != nil {
		return err
	}
	if f.see(t); t == nil {
		return nil
	}
	alive := t.Watchdog != (procfs.ID{}) && f.c.Host.Proc.Alive(t.Watchdog)
	var none error // why there is no watchdog
	if !alive && len(f.c.Watchdog) > 0 {
		none = replaceWatchdog(ctx, f.c, t)
		if locked := (*statedir.LockedError)(nil); none == nil || errors.As(none, &locked) {
			return none
		}
		none = fmt.Errorf("a change on trial has no watchdog, and the agent does its work: %w", none)
	}
	if alive && !t.Overdue(f.c.Now().Add(-slack)) {
		return nil
	}
	if f.supervisor == nil || f.supervisor.id != t.ID {
		f.supervisor = NewSupervisor(f.c, t.ID, f.rest)
		f.supervisor.lockWait, f.supervisor.Clock = 0, f.Clock // the agent's loop does not wait
	}
	_, err = f.supervisor.Once(ctx)
	return errors.Join(err, none)
}

// replaceWatchdog starts another watchdog for a change on trial.
func replaceWatchdog(ctx context.Context, c *transaction.Controller, t *state.Trial) error {
	lock, err := c.LockWithin(ctx, 0, "look", "agent")
	if err != nil {
		return err
	}
	defer lock.Release()
	now, err := state.OnTrial(c.Store)
	if err != nil || now == nil || now.ID != t.ID || now.Watchdog != t.Watchdog {
		return err
	}
	// One that cannot be written down would be followed by another at each look.
	if err := c.Store.Save(state.DocTrial, now); err != nil {
		return err
	}
	wd, err := startWatchdog(ctx, c, now)
	if err != nil {
		return err
	}
	defer wd.Leave()
	return c.Store.Save(state.DocTrial, now)
}
