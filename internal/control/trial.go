package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
	"bulkhead/internal/watchdog"
)

// docTrial is the change that is on trial, and docBefore what was in force before it: apart, since the first is read every second and
// the second holds a whole policy.
const (
	docTrial  = "trial"
	docBefore = "before"
)

// Trial is a change that is in force and is undone by itself unless somebody confirms it in time, or when the policy's guard sees it do harm.
type Trial struct {
	ID       string    `json:"id"` // "" is no trial
	Verb     string    `json:"verb"`
	What     string    `json:"what,omitempty"`
	By       string    `json:"by,omitempty"`
	Revision int       `json:"revision,omitempty"`
	At       time.Time `json:"at"`
	// Confirm is when it is undone unless it was confirmed; zero: nobody need confirm it.
	Confirm time.Time `json:"confirm,omitzero"`
	// Canary is the group that goes before the rest of a policy, which is applied when it did well; "" is no canary.
	Canary string `json:"canary,omitempty"`
	// Guard is what the policy's guard watches; nil when it does not, or does no more.
	Guard *Watch `json:"guard,omitempty"`
	// Owner is the user id of the owner of a group who made it; 0 is root, or a schedule.
	Owner int `json:"owner,omitempty"`
	// Watchdog is the process that undoes it in time, the agent alive or not.
	Watchdog host.ProcID `json:"watchdog,omitzero"`
}

// before is what was in force before a change on trial.
type before struct {
	Trial     string          `json:"trial"`   // its id
	Applied   *Applied        `json:"applied"` // nil: nothing
	Overrides []Override      `json:"overrides"`
	Released  map[string]bool `json:"released"`
	Lifted    []Lifted        `json:"lifted,omitempty"`
	Windows   []string        `json:"windows,omitempty"` // schedules that were open
}

// named is the change in words.
func (t *Trial) named() string {
	return named(journal.Entry{Verb: t.Verb, Revision: t.Revision}) + " by " + t.By
}

// overdue says whether the time to confirm it is over. A clock that stands before the change began tells nothing, and then it is.
func (t *Trial) overdue(now time.Time) bool {
	return !t.Confirm.IsZero() && (!now.Before(t.Confirm) || now.Before(t.At.Add(-time.Minute)))
}

// postpone has its times begin later.
func (t *Trial) postpone(d time.Duration) {
	t.At = t.At.Add(d)
	if !t.Confirm.IsZero() {
		t.Confirm = t.Confirm.Add(d)
	}
	if t.Guard != nil {
		t.Guard.Until = t.Guard.Until.Add(d)
	}
}

// The bounds of a time to confirm in.
const (
	minConfirm = time.Second
	maxConfirm = 30 * 24 * time.Hour
)

// trial is the change on trial; nil when there is none.
func (c *Controller) trial() (*Trial, error) {
	var t Trial
	if _, err := c.Store.Load(docTrial, &t); err != nil || t.ID == "" {
		return nil, err
	}
	return &t, nil
}

// settleTrial brings a verb and the change on trial together, under the lock: what is overdue is undone first, and whoever would change
// what is on trial learns whose it is. Done says that nothing is left to do.
func (c *Controller) settleTrial(ctx context.Context, r Request, reply *Reply) (done bool, err error) {
	if r.Verb == "rollback" { // the others have recovered already
		if text, err := c.unfinished(); err != nil || text != "" {
			return false, err // that comes first
		}
		if err := c.finish(false, &Reply{}); err != nil { // a change that is done may not be written down yet
			return false, err
		}
	}
	var kept Trial
	if err := c.loadOrSetAside(docTrial, &kept); err != nil || kept.ID == "" {
		return false, err
	}
	t := &kept
	if t.overdue(c.now()) && r.Verb != "release" {
		if err := c.revert(ctx, t, t.late(), byItself, reply); err != nil {
			return true, err
		}
		reply.Recovered = "undid " + t.named() + ": " + t.late()
		return false, nil
	}
	if r.Verb == "rollback" && r.To == 0 {
		if err := c.revert(ctx, t, r.Reason, r.By, reply); err != nil {
			return true, err
		}
		reply.Text = "undid " + t.named()
		if !t.Confirm.IsZero() {
			reply.Text += ", which waited to be confirmed"
		}
		return true, nil
	}
	err = t.keepsOut(r)
	return err != nil, err
}

// keepsOut says whose change a verb would meddle with.
func (t *Trial) keepsOut(r Request) error {
	changes := slices.Contains(onTrialVerbs, r.Verb)
	switch {
	case t.Canary != "" && (changes || r.Verb == "confirm"):
		return fail(CodeLocked, "the rest of the policy is applied then, when it did well; `bulkhead rollback` undoes it now",
			"%s is watched until %s", t.named(), t.Guard.Until.Local().Format(time.DateTime))
	case !t.Confirm.IsZero() && changes:
		return fail(CodeLocked, "`bulkhead confirm` keeps it, `bulkhead rollback` undoes it now",
			"%s waits to be confirmed until %s", t.named(), t.Confirm.Local().Format(time.DateTime))
	case r.Caller != nil && t.Owner == 0 && changes: // it would settle what root wants to see undone if it does harm
		return fail(CodeLocked, "`bulkhead status` says until when", "%s is watched, and nobody but root may change limits meanwhile", t.named())
	}
	return nil
}

// late is why an overdue change is undone.
func (t *Trial) late() string {
	return "nobody confirmed it by " + t.Confirm.Local().Format(time.DateTime)
}

// byItself is who undoes what nobody confirmed.
const byItself = "bulkhead"

// onTrial runs a change with its documents and puts it on trial, when that is asked for: a watchdog, which is a process of its own, is
// there before anything is changed.
func (c *Controller) onTrial(ctx context.Context, v *View, r Request, reply *Reply, s *state, docs map[string]any, run func() error) error {
	return c.standTrial(ctx, v, r, reply, s, docs, guardOf(v), run)
}

// standTrial is onTrial with what is watched.
func (c *Controller) standTrial(ctx context.Context, v *View, r Request, reply *Reply, s *state, docs map[string]any, watch *Watch, run func() error) error {
	var notes []string
	if watch != nil && watch.Groups == nil {
		var err error
		if notes, err = c.takeBefore(ctx, v, watch); err != nil {
			return err
		}
	}
	if r.ConfirmWithin == 0 && watch == nil {
		if was, err := c.trial(); err != nil || was != nil {
			trialOver(docs) // whoever makes the next change is content with the one before
		}
		return c.commit(r, reply, docs, run)
	}
	now := c.now()
	t := Trial{ID: strconv.FormatInt(now.UnixNano(), 36), Verb: r.Verb, What: r.what(), By: r.By, Revision: reply.Revision, At: now, Guard: watch, Owner: r.Caller.uid()}
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
		return fail(CodeFailed, "nothing was changed; without --confirm-within and a guard it needs no watchdog", "%w", err)
	}
	if dog != nil {
		defer dog.Leave()
	}
	docs[docTrial] = t
	docs[docBefore] = before{Trial: t.ID, Applied: s.applied, Overrides: s.overrides, Released: s.released, Lifted: s.lifted, Windows: s.windows}
	if err := c.commit(r, reply, docs, run); err != nil {
		return err
	}
	if took := c.now().Sub(now); took > time.Second { // memory that was waited for
		t.postpone(took)
		if err := c.Store.Save(docTrial, t); err != nil {
			c.Log.Warn("the time that a change took counts as time on trial", "err", err)
			t.postpone(-took)
		}
	}
	reply.Confirm, reply.Notes = t.Confirm, append(notes, reply.Notes...)
	if watch != nil {
		reply.Guarded = watch.Until
	}
	return nil
}

// startTrialDog starts the watchdog of a change on trial; nil where none is wanted.
func (c *Controller) startTrialDog(ctx context.Context, t *Trial) (*watchdog.Dog, error) {
	if len(c.watchdog) == 0 {
		return nil, nil //nolint:nilnil // tests do without
	}
	dog, err := watchdog.Start(ctx, append(slices.Clone(c.watchdog), "--trial", t.ID), watchdog.Order{Alone: true})
	if err != nil {
		return nil, err
	}
	procs, err := c.Host.Processes(host.ProcessOptions{PIDs: []int{dog.PID()}})
	if err != nil || len(procs) != 1 {
		dog.Leave()
		return nil, errors.Join(errors.New("the watchdog is gone"), err)
	}
	t.Watchdog = procs[0].ProcID
	return dog, nil
}

// confirm keeps the change on trial.
func (c *Controller) confirm(_ context.Context, r Request, reply *Reply) error {
	t, err := c.trial()
	if err != nil {
		return fail(CodeFailed, "", "%w", err)
	}
	if t == nil || t.Confirm.IsZero() {
		hint := "`bulkhead apply --confirm-within 5m` makes a change that waits for it"
		if reply.Recovered != "" {
			return fail(CodeFailed, "it is too late; `bulkhead history` says what happened", "nothing waits to be confirmed: %s", reply.Recovered)
		}
		return fail(CodeUsage, hint, "nothing waits to be confirmed")
	}
	if r.DryRun {
		reply.Text = "would keep " + t.named()
		return nil
	}
	c.remember(journal.Entry{Time: c.now(), Verb: r.Verb, What: "the " + t.Verb + " of revision " + strconv.Itoa(t.Revision), By: r.By, Reason: r.Reason, Outcome: journal.Committed}, reply)
	if err := c.endTrial(); err != nil {
		return fail(CodeFailed, "free space below the state directory and confirm again", "keep %s: %w", t.named(), err)
	}
	reply.Text = "kept " + t.named()
	return nil
}

// endTrial forgets the change on trial: it stays.
func (c *Controller) endTrial() error {
	return errors.Join(c.Store.Save(docTrial, Trial{}), c.Store.Save(docBefore, before{}), c.Store.Save(docCanary, Canary{}))
}

// trialOver is the documents once nothing is on trial.
func trialOver(docs map[string]any) map[string]any {
	docs[docTrial], docs[docBefore], docs[docCanary] = Trial{}, before{}, Canary{}
	return docs
}

// revert puts in force again what was before the change on trial. Groups that were released since stay so.
func (c *Controller) revert(ctx context.Context, t *Trial, why, by string, reply *Reply) error {
	facts, s, err := c.recorded()
	if err != nil {
		return err
	}
	var b before
	if _, err := c.Store.Load(docBefore, &b); err != nil || b.Trial != t.ID {
		err = errors.Join(err, c.endTrial())
		return fail(CodeFailed, "`bulkhead history` lists the revisions, `bulkhead rollback --to N` goes back to one", "undo %s: what was in force before it is not known any more: %w", t.named(), err)
	}
	r := Request{Verb: "revert", By: by, Reason: why, of: named(journal.Entry{Verb: t.Verb, Revision: t.Revision})}
	released := maps.Clone(b.Released)
	maps.Copy(released, s.released)
	docs := trialOver(map[string]any{docApplied: Applied{}, docOverrides: b.Overrides, docReleased: released, docLifted: b.Lifted})
	if b.Applied != nil {
		docs[docApplied], reply.Revision = *b.Applied, b.Applied.Revision
	}
	if b.Applied == nil || released[""] {
		maps.Copy(docs, withoutKey(s.without([]string{""}), docReleased))
		return c.commit(r, reply, docs, func() error { return c.releaseNow(ctx, facts, s, []string{""}, r, reply) })
	}
	l := s.look(b.Applied.Sources)
	l.overrides, l.released, l.facts, l.lenient, l.shares = living(b.Overrides, c.now()), released, facts, true, true
	l.canary, l.lifted, l.conflicts = nil, b.Lifted, nil // what came since belongs to what is undone
	if t.Verb == scheduleVerb {
		p, err := policy.Parse(b.Applied.Sources)
		if err != nil {
			return err
		}
		l.skipped = s.skip(p, t, b.Windows, why, c.now())
		docs[docSkipped] = l.skipped
	}
	v, err := c.view(ctx, l)
	if err != nil {
		return err
	}
	if c.refusals(v.Plan, false) != nil {
		for _, refusal := range v.Plan.Refusals {
			stays := fmt.Sprintf("group %q stays as it is: %s", refusal.Group, refusal.Reason)
			reply.Notes, r.Reason = append(reply.Notes, stays), strings.TrimPrefix(r.Reason+"; "+stays, "; ")
		}
		if err := c.leaveOut(v); err != nil {
			return err
		}
	}
	docs[docWindows] = namesOf(v.Open)
	return c.commit(r, reply, docs, func() error {
		if err := c.runOthers(ctx, v, r, reply.Revision, reply); err != nil {
			return err
		}
		if len(b.Released) == 0 {
			return nil
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
func (c *Controller) releaseNow(ctx context.Context, f *host.Facts, s *state, groups []string, r Request, reply *Reply) error {
	views, err := c.releaseViews(ctx, f, s, groups, r)
	if err != nil {
		return err
	}
	for _, v := range views {
		if err := c.releaseOne(ctx, v, s, groups, r, reply); err != nil {
			return err
		}
	}
	return stillHeld(reply)
}

// living are the overrides whose end is still to come.
func living(overrides []Override, now time.Time) []Override {
	return slices.DeleteFunc(slices.Clone(overrides), func(o Override) bool { return o.ended(now) })
}

// Tender takes care of one change on trial until it is settled: in the watchdog, and in an agent whose watchdog was killed.
type Tender struct {
	c     *Controller
	id    string
	wait  time.Duration // after a failure
	next  time.Time
	since time.Time // it knows the trial; its own clock, which nobody sets
	left  time.Duration
	guard guardian
}

// NewTender makes one for the trial with this id.
func (c *Controller) NewTender(id string) *Tender {
	return &Tender{c: c, id: id, guard: guardian{c: c}}
}

// tendEvery is how often a trial is looked at.
const tendEvery = 500 * time.Millisecond

// Tend takes care of the trial until it is over or ctx ends.
func (t *Tender) Tend(ctx context.Context) error {
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
func (t *Tender) Once(ctx context.Context) (over bool, err error) {
	now := time.Now()
	if now.Before(t.next) {
		return false, nil
	}
	defer func() {
		if err != nil {
			t.wait = min(max(2*t.wait, time.Second), retryAtMost)
			t.next = now.Add(t.wait)
		}
	}()
	trial, err := t.c.trial()
	if err != nil {
		return false, err
	}
	if trial == nil || trial.ID != t.id {
		return t.unsettled(ctx)
	}
	if t.since.IsZero() {
		t.since, t.left = now, trial.Confirm.Sub(t.c.now())
	}
	if trial.overdue(t.c.now()) || !trial.Confirm.IsZero() && now.Sub(t.since) >= t.left { // whatever the guard can see
		return t.revert(ctx, trial.late())
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

// watched says whether a guard's time is over. Without a whole window it has judged nothing: a clock that jumps forward, a change that took
// long and a watchdog that was started anew do not shorten that; two pulses more are for their uneven times.
func (t *Tender) watched(trial *Trial, now time.Time) bool {
	seen := now.Sub(t.since)
	return seen >= trial.Guard.Window+2*pulseEvery && (!t.c.now().Before(trial.Guard.Until) || seen > trial.Guard.Until.Sub(trial.At))
}

// passed ends the watch of a guard that saw no harm.
func (t *Tender) passed(ctx context.Context) (over bool, err error) {
	t.guard.gauge.close()
	t.guard = guardian{c: t.c}
	return t.settle(ctx, "guard", func(trial *Trial) (over bool, err error) {
		t.c.Log.Info("the guard saw no harm", "change", trial.named())
		if trial.Confirm.IsZero() {
			return true, t.c.endTrial()
		}
		trial.Guard = nil
		return false, t.c.Store.Save(docTrial, trial)
	})
}

// settle does something about the trial under the lock, unless somebody has settled it meanwhile.
func (t *Tender) settle(ctx context.Context, verb string, do func(*Trial) (over bool, err error)) (over bool, err error) {
	lock, err := t.c.lock(ctx, verb, byItself)
	if err != nil {
		return false, err
	}
	defer lock.Release()
	if err := t.c.recover(ctx, &Reply{}); err != nil { // what somebody else left is no fault of this change
		return false, err
	}
	trial, err := t.c.trial()
	if err != nil || trial == nil || trial.ID != t.id {
		return err == nil, err
	}
	return do(trial)
}

// revert undoes the change.
func (t *Tender) revert(ctx context.Context, why string) (over bool, err error) {
	return t.settle(ctx, "revert", func(trial *Trial) (over bool, err error) {
		if err := t.c.revert(ctx, trial, why, byItself, &Reply{}); err != nil {
			return false, err
		}
		t.c.Log.Warn("undid a change on trial", "change", trial.named(), "why", why)
		return true, nil
	})
}

// unsettled undoes a change that was cut off before it was on trial.
func (t *Tender) unsettled(ctx context.Context) (over bool, err error) {
	left := false
	busy, err := t.c.Store.Quiet(func() (err error) {
		left, err = t.c.leftBehind()
		return err
	})
	if err != nil || busy != nil || !left {
		return err == nil && busy == nil, err
	}
	lock, err := t.c.lock(ctx, "revert", byItself)
	if err != nil {
		var locked *journal.LockedError
		if errors.As(err, &locked) { // whoever has it is about it, or undoes it first
			return false, nil
		}
		return false, err
	}
	defer lock.Release()
	return false, t.c.recover(ctx, &Reply{}) // and look again: it may have been done, and be on trial
}

// slack is how long past its time a watchdog may be before the agent does its work.
const slack = 5 * time.Second

// MindTrial is the agent's part: it starts a new watchdog when that of the trial is gone, and does its work when it hangs.
func (c *Controller) MindTrial(ctx context.Context) error {
	t, err := c.trial()
	if err != nil || t == nil {
		return err
	}
	alive := t.Watchdog != (host.ProcID{}) && c.Host.Alive(t.Watchdog)
	if !alive && len(c.watchdog) > 0 {
		return c.replaceDog(ctx, t)
	}
	if alive && !t.overdue(c.now().Add(-slack)) {
		return nil
	}
	if c.tender == nil || c.tender.id != t.ID {
		c.tender = c.NewTender(t.ID)
	}
	_, err = c.tender.Once(ctx)
	return err
}

// replaceDog starts another watchdog for a change on trial.
func (c *Controller) replaceDog(ctx context.Context, t *Trial) error {
	lock, err := c.lock(ctx, "look", "agent")
	if err != nil {
		return err
	}
	defer lock.Release()
	now, err := c.trial()
	if err != nil || now == nil || now.ID != t.ID || now.Watchdog != t.Watchdog {
		return err
	}
	dog, err := c.startTrialDog(ctx, now)
	if err != nil {
		return err
	}
	defer dog.Leave()
	return c.Store.Save(docTrial, now)
}
