package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/state"
	"bulkhead/internal/watchdog"
)

// settleTrial brings a verb and the change on trial together, under the lock: what is overdue is undone first, and
// whoever would change what is on trial learns whose it is. Done says that nothing is left to do.
func (c *Controller) settleTrial(ctx context.Context, r api.Request, reply *outcome) (done bool, err error) {
	if r.Verb == "rollback" { // the others have recovered already
		if text, err := c.unfinished(); err != nil || text != "" {
			return false, err // that comes first
		}
		if err := c.finish(false, &outcome{}); err != nil { // a change that is done may not be written down yet
			return false, err
		}
	}
	if err := state.Mend(c.Store, c.Log, state.DocTrial); err != nil {
		return false, err
	}
	t, err := state.OnTrial(c.Store)
	if err != nil || t == nil {
		return false, err
	}
	if t.Overdue(c.now()) && r.Verb != "release" {
		if err := c.revert(ctx, t, t.Late(), byItself, reply); err != nil {
			return true, err
		}
		reply.Recovered = "undid " + t.Named() + ": " + t.Late()
		return false, nil
	}
	if r.Verb == "rollback" && r.To == 0 {
		if err := c.revert(ctx, t, r.Reason, r.By, reply); err != nil {
			return true, err
		}
		reply.Text = "undid " + t.Named()
		if !t.Confirm.IsZero() {
			reply.Text += ", which waited to be confirmed"
		}
		return true, nil
	}
	err = keepsOut(t, r)
	return err != nil, err
}

// keepsOut says whose change a verb would meddle with.
func keepsOut(t *state.Trial, r api.Request) error {
	changes := slices.Contains(api.OnTrial, r.Verb)
	switch {
	case t.Canary != "" && (changes || r.Verb == "confirm"):
		return api.Errorf(api.CodeLocked,
			"the rest of the policy is applied then, when it did well; `bulkhead rollback` undoes it now",
			"%s is watched until %s", t.Named(), t.Guard.Until.Local().Format(time.DateTime))
	case !t.Confirm.IsZero() && changes:
		return api.Errorf(api.CodeLocked, "`bulkhead confirm` keeps it, `bulkhead rollback` undoes it now",
			"%s waits to be confirmed until %s", t.Named(), t.Confirm.Local().Format(time.DateTime))
	case r.Caller != nil && t.Owner == 0 && changes: // it would settle what root wants to see undone if it does harm
		return api.Errorf(api.CodeLocked, "`bulkhead status` says until when",
			"%s is watched, and nobody but root may change limits meanwhile", t.Named())
	}
	return nil
}

// byItself is who undoes what nobody confirmed.
const byItself = "bulkhead"

// onTrial runs a change with its documents and puts it on trial, when that is asked for: a watchdog, which is a process
// of its own, is there before anything is changed.
func (c *Controller) onTrial(ctx context.Context, v *View, r api.Request, reply *outcome, s *state.Documents,
	docs map[string]any, run func() error) error {
	return c.standTrial(ctx, v, r, reply, s, docs, guardOf(v), run)
}

// standTrial is onTrial with what is watched.
func (c *Controller) standTrial(ctx context.Context, v *View, r api.Request, reply *outcome, s *state.Documents,
	docs map[string]any, watch *state.Watch, run func() error) error {
	var notes []string
	if watch != nil && watch.Groups == nil {
		var err error
		if notes, err = c.takeBefore(ctx, v, watch); err != nil {
			return err
		}
	}
	if r.ConfirmWithin == 0 && watch == nil {
		if was, err := state.OnTrial(c.Store); err != nil || was != nil {
			state.TrialOver(docs) // whoever makes the next change is content with the one before
		}
		return c.commit(r, reply, docs, run)
	}
	now := c.now()
	t := state.Trial{ID: strconv.FormatInt(now.UnixNano(), 36), Verb: r.Verb, What: r.What(), By: r.By,
		Revision: reply.Revision, At: now, Guard: watch, Owner: r.Caller.OwnerID()}
	switch {
	case r.Verb == "canary":
		t.Canary = r.Canary
	case r.ConfirmWithin > 0:
		t.Confirm = now.Add(r.ConfirmWithin)
	}
	if watch != nil {
		watch.Until = now.Add(watch.For)
	}
	dog, err := c.startTrialDog(ctx, &t)
	if err != nil {
		return api.Errorf(api.CodeFailed,
			"nothing was changed; without --confirm-within and a guard it needs no watchdog", "%w",
			err)
	}
	if dog != nil {
		defer dog.Leave()
	}
	docs[state.DocTrial] = t
	docs[state.DocBefore] = state.Before{Trial: t.ID, Applied: s.Applied, Overrides: s.Overrides, Released: s.Released,
		Lifted: s.Lifted, Windows: s.Windows}
	if err := c.commit(r, reply, docs, run); err != nil {
		return err
	}
	if took := c.now().Sub(now); took > time.Second { // memory that was waited for
		t.Postpone(took)
		if err := c.Store.Save(state.DocTrial, t); err != nil {
			c.Log.Warn("the time that a change took counts as time on trial", "err", err)
			t.Postpone(-took)
		}
	}
	reply.Confirm, reply.Notes = t.Confirm, append(notes, reply.Notes...)
	if watch != nil {
		reply.Guarded = watch.Until
	}
	return nil
}

// startTrialDog starts the watchdog of a change on trial; nil where none is wanted.
func (c *Controller) startTrialDog(ctx context.Context, t *state.Trial) (*watchdog.Dog, error) {
	if len(c.watchdog) == 0 {
		return nil, nil //nolint:nilnil // tests do without
	}
	dog, err := watchdog.Start(ctx, append(slices.Clone(c.watchdog), "--trial", t.ID), watchdog.Order{Alone: true})
	if err != nil {
		return nil, err
	}
	procs, err := c.Host.Proc.Processes(procfs.Options{PIDs: []int{dog.PID()}})
	if err != nil || len(procs) != 1 {
		dog.Leave()
		return nil, errors.Join(errors.New("the watchdog is gone"), err)
	}
	t.Watchdog = procs[0].ID
	return dog, nil
}

// confirm keeps the change on trial.
func (c *Controller) confirm(_ context.Context, r api.Request, reply *outcome) error {
	t, err := state.OnTrial(c.Store)
	if err != nil {
		return api.Errorf(api.CodeFailed, "", "%w", err)
	}
	if t == nil || t.Confirm.IsZero() {
		hint := "`bulkhead apply --confirm-within 5m` makes a change that waits for it"
		if reply.Recovered != "" {
			return api.Errorf(api.CodeFailed, "it is too late; `bulkhead history` says what happened",
				"nothing waits to be confirmed: %s", reply.Recovered)
		}
		return api.Errorf(api.CodeUsage, hint, "nothing waits to be confirmed")
	}
	if r.DryRun {
		reply.Text = "would keep " + t.Named()
		return nil
	}
	r.Of = "the " + t.Verb + " of revision " + strconv.Itoa(t.Revision)
	if err := c.commit(r, reply, state.TrialOver(map[string]any{}), func() error { return nil }); err != nil {
		return api.Errorf(api.CodeFailed, "free space below the state directory and confirm again", "keep %s: %w",
			t.Named(), err)
	}
	reply.Recorded = false
	reply.Text = "kept " + t.Named()
	return nil
}

// endTrial forgets the change on trial: it stays.
func (c *Controller) endTrial() error {
	docs, err := state.Encode(state.TrialOver(map[string]any{}))
	if err == nil {
		_, err = c.Store.Change(journal.Txn{Docs: docs}, "")
	}
	return errors.Join(err, c.Store.Settle())
}

// revert puts in force again what was before the change on trial. Groups that were released since stay so.
func (c *Controller) revert(ctx context.Context, t *state.Trial, why, by string, reply *outcome) error {
	facts, s, err := c.recorded()
	if err != nil {
		return err
	}
	was, err := state.Load(c.Store, state.DocBefore)
	if err != nil || was.Before.Trial != t.ID {
		err = errors.Join(err, c.endTrial())
		return api.Errorf(api.CodeFailed,
			"`bulkhead history` lists the revisions, `bulkhead rollback --to N` goes back to one",
			"undo %s: what was in force before it is not known any more: %w", t.Named(), err)
	}
	b := was.Before
	r := api.Request{Verb: "revert", By: by, Reason: why, Of: journal.Entry{Verb: t.Verb, Revision: t.Revision}.Title()}
	released := maps.Clone(b.Released)
	maps.Copy(released, s.Released)
	docs := state.TrialOver(map[string]any{state.DocApplied: state.Applied{}, state.DocOverrides: b.Overrides,
		state.DocReleased: released, state.DocLifted: b.Lifted})
	if b.Applied != nil {
		docs[state.DocApplied], reply.Revision = *b.Applied, b.Applied.Revision
	}
	if b.Applied == nil || released[""] {
		maps.Copy(docs, withoutKey(without(s, []string{""}), state.DocReleased))
		return c.commit(r, reply, docs, func() error { return c.releaseNow(ctx, facts, s, []string{""}, r, reply) })
	}
	l := lookOver(s, b.Applied.Sources)
	l.overrides, l.released, l.facts, l.lenient, l.shares = living(b.Overrides, c.now()), released, facts, true, true
	l.canary, l.lifted, l.conflicts = nil, b.Lifted, nil // what came since belongs to what is undone
	l.root = b.Applied.Root()
	if t.Verb == scheduleVerb {
		p, err := parse.Policy(b.Applied.Sources)
		if err != nil {
			return err
		}
		l.skipped = skip(s, p, t, b.Windows, why, c.now())
		docs[state.DocSkipped] = l.skipped
	}
	v, err := c.view(ctx, l)
	if err != nil {
		return err
	}
	if refusals(v.Plan, false) != nil {
		for _, refusal := range v.Plan.Refusals {
			stays := fmt.Sprintf("group %q stays as it is: %s", refusal.Group, refusal.Reason)
			reply.Notes, r.Reason = append(reply.Notes, stays), strings.TrimPrefix(r.Reason+"; "+stays, "; ")
		}
		if err := v.leaveOut(); err != nil {
			return err
		}
	}
	docs[state.DocWindows] = policy.ScheduleNames(v.Open)
	return c.commit(r, reply, docs, func() error {
		err := reply.withhold(len(b.Released) > 0,
			func() error { return c.runOthers(ctx, v, r, reply.Revision, reply, nil) })
		if err != nil || len(b.Released) == 0 {
			return err
		}
		// The change governed them again.
		return c.releaseNow(ctx, facts, s, slices.Sorted(maps.Keys(b.Released)), r, reply)
	})
}

func withoutKey(docs map[string]any, key string) map[string]any {
	delete(docs, key)
	return docs
}

// releaseNow lifts groups, as a part of another change.
func (c *Controller) releaseNow(ctx context.Context, f *host.Facts, s *state.Documents, groups []string, r api.Request,
	reply *outcome) error {
	v, err := c.releaseView(ctx, f, s, groups, r)
	if err != nil {
		return err
	}
	if v != nil {
		if err := c.releaseGroups(ctx, v, s, groups, r, reply); err != nil {
			return err
		}
	}
	return stillHeld(reply)
}

// living are the overrides whose end is still to come.
func living(overrides []state.Override, now time.Time) []state.Override {
	return slices.DeleteFunc(slices.Clone(overrides), func(o state.Override) bool { return o.Ended(now) })
}

// Supervisor takes care of one change on trial until it is settled: in the watchdog, and in an agent whose watchdog was
// killed.
type Supervisor struct {
	c     *Controller
	id    string
	wait  time.Duration // after a failure
	next  time.Time
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
func (c *Controller) NewSupervisor(id string, rest ApplyRest) *Supervisor {
	return &Supervisor{c: c, id: id, rest: rest, lockWait: cmp.Or(c.LockWait, defaultLockWait), guard: guardian{c: c}}
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

// retryAtMost is the longest time between two attempts to undo a change.
const retryAtMost = time.Minute

// Once looks once. Over says that there is nothing more to take care of.
func (t *Supervisor) Once(ctx context.Context) (over bool, err error) {
	now := time.Now()
	if t.Clock != nil {
		now = t.Clock()
	}
	if now.Before(t.next) {
		return false, nil
	}
	defer func() {
		if err != nil {
			t.wait = min(max(2*t.wait, time.Second), retryAtMost)
			t.next = now.Add(t.wait)
		}
	}()
	trial, err := state.OnTrial(t.c.Store)
	if err != nil {
		return false, err
	}
	if trial == nil || trial.ID != t.id {
		return t.unsettled(ctx)
	}
	if t.since.IsZero() {
		t.since, t.left = now, trial.Confirm.Sub(t.c.now())
	}
	if trial.Overdue(t.c.now()) || !trial.Confirm.IsZero() && now.Sub(t.since) >= t.left { // whatever the guard can see
		return t.revert(ctx, trial.Late())
	}
	if trial.Guard == nil {
		return false, nil
	}
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

// watched says whether a guard's time is over. Without a whole window it has judged nothing: a clock that jumps
// forward, a change that took long and a watchdog that was started anew do not shorten that; two samples more are for
// their uneven times.
func (t *Supervisor) watched(trial *state.Trial, now time.Time) bool {
	seen := now.Sub(t.since)
	return seen >= trial.Guard.Window+2*sampleEvery &&
		(!t.c.now().Before(trial.Guard.Until) || seen > trial.Guard.Until.Sub(trial.At))
}

// passed ends the watch of a guard that saw no harm.
func (t *Supervisor) passed(ctx context.Context) (over bool, err error) {
	t.guard.sampler.Close()
	t.guard = guardian{c: t.c}
	return t.settle(ctx, "guard", func(trial *state.Trial) (over bool, err error) {
		t.c.Log.Info("the guard saw no harm", "change", trial.Named())
		if trial.Confirm.IsZero() {
			return true, t.c.endTrial()
		}
		trial.Guard = nil
		return false, t.c.Store.Save(state.DocTrial, trial)
	})
}

// settle does something about the trial under the lock, unless somebody has settled it meanwhile.
func (t *Supervisor) settle(ctx context.Context, verb string, do func(*state.Trial) (over bool, err error)) (over bool,
	err error) {
	lock, err := t.c.lockWithin(ctx, t.lockWait, verb, byItself)
	if err != nil {
		return false, err
	}
	defer lock.Release()
	if err := t.c.recover(ctx, &outcome{}); err != nil { // what somebody else left is no fault of this change
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
		if err := t.c.revert(ctx, trial, why, byItself, &outcome{}); err != nil {
			return false, err
		}
		t.c.Log.Warn("undid a change on trial", "change", trial.Named(), "why", why)
		return true, nil
	})
}

// promote applies the rest of the policy that a canary went before.
func (t *Supervisor) promote(ctx context.Context) (over bool, err error) {
	t.guard.sampler.Close()
	return t.settle(ctx, "apply", func(trial *state.Trial) (over bool, err error) {
		d, err := state.Load(t.c.Store, state.DocCanary)
		if err != nil || d.Prune(state.Moment{}).Canary == nil {
			return true, fmt.Errorf("the policy of the canary is not known any more: %w",
				errors.Join(err, t.c.endTrial()))
		}
		revision, err := t.rest(ctx, d.Canary)
		if err != nil {
			err := t.c.revert(ctx, trial, "canary: the rest could not be applied: "+strings.SplitN(err.Error(), "\n",
				2)[0], byItself, &outcome{})
			return err == nil, err
		}
		t.c.Log.Info("a canary did well; the rest is applied", "group", d.Canary.Group, "revision", revision)
		return true, nil
	})
}

// unsettled undoes a change that was cut off before it was on trial.
func (t *Supervisor) unsettled(ctx context.Context) (over bool, err error) {
	again, err := t.c.takeOver(ctx, "revert", byItself)
	return err == nil && !again, err // else look again: the change may have been done, and be on trial
}

// slack is how long past its time a watchdog may be before the agent does its work.
const slack = 5 * time.Second

// Fallback takes care of changes on trial, one after the other, where their watchdogs do not: for an agent. It is for
// one goroutine.
type Fallback struct {
	c          *Controller
	rest       ApplyRest
	supervisor *Supervisor // of the last one
	// Clock is that of its supervisors, in tests.
	Clock func() time.Time
}

// NewFallback makes one.
func (c *Controller) NewFallback(rest ApplyRest) *Fallback { return &Fallback{c: c, rest: rest} }

// Once looks once: it starts a new watchdog when that of the trial is gone, and does its work when it hangs. It does
// not wait for the lock.
func (f *Fallback) Once(ctx context.Context) error {
	t, err := state.OnTrial(f.c.Store)
	if err != nil || t == nil {
		return err
	}
	alive := t.Watchdog != (procfs.ID{}) && f.c.Host.Proc.Alive(t.Watchdog)
	if !alive && len(f.c.watchdog) > 0 {
		return f.c.replaceDog(ctx, t)
	}
	if alive && !t.Overdue(f.c.now().Add(-slack)) {
		return nil
	}
	if f.supervisor == nil || f.supervisor.id != t.ID {
		f.supervisor = f.c.NewSupervisor(t.ID, f.rest)
		f.supervisor.lockWait, f.supervisor.Clock = 0, f.Clock // the agent's loop does not wait
	}
	_, err = f.supervisor.Once(ctx)
	return err
}

// replaceDog starts another watchdog for a change on trial.
func (c *Controller) replaceDog(ctx context.Context, t *state.Trial) error {
	lock, err := c.lockWithin(ctx, 0, "look", "agent")
	if err != nil {
		return err
	}
	defer lock.Release()
	now, err := state.OnTrial(c.Store)
	if err != nil || now == nil || now.ID != t.ID || now.Watchdog != t.Watchdog {
		return err
	}
	dog, err := c.startTrialDog(ctx, now)
	if err != nil {
		return err
	}
	defer dog.Leave()
	return c.Store.Save(state.DocTrial, now)
}
