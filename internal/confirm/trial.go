// Package confirm puts changes on trial (commit-confirm): a change is undone unless it is confirmed in time, or when
// the policy's guard sees it do harm. A watchdog, which is a process of its own, looks after each (Supervisor); the
// agent stands in for one that is gone (Fallback).
package confirm

import (
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
	"bulkhead/internal/release"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
	"bulkhead/internal/watchdog"
)

// Settle brings a verb and the change on trial together, under the lock: what is overdue is undone first, and
// whoever would change what is on trial learns whose it is. Done says that nothing is left to do.
func Settle(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) (done bool,
	err error) {
	if r.Verb == "rollback" { // the others have recovered already
		if first, err := interrupted(ctx, c, r); err != nil || first {
			return false, err
		}
		if err := transaction.Finish(c, false,
			&transaction.Outcome{}); err != nil { // a change that is done may not be written down yet
			return false, err
		}
	}
	if err := state.Mend(c.Store, c.Log, state.DocTrial); err != nil {
		return false, err
	}
	t, err := state.OnTrial(c.Store)
	if err == nil {
		err = isMeant(t, r)
	}
	if err != nil || t == nil {
		return false, err
	}
	if t.Overdue(c.Now()) && r.Verb != "release" {
		if err := revert(ctx, c, t, t.Late(), byItself, reply); err != nil {
			return true, err
		}
		reply.Recovered = "undid " + t.Named() + ": " + t.Late()
		return false, nil
	}
	if r.Verb == "rollback" && r.To == 0 {
		if err := revert(ctx, c, t, r.Reason, r.By, reply); err != nil {
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

// interrupted says whether a rollback is first about a change that was interrupted. One that is about another change,
// which is still on trial, has that undone here.
func interrupted(ctx context.Context, c *transaction.Controller, r api.Request) (first bool, err error) {
	text, err := transaction.Unfinished(c)
	if err != nil || text == "" || r.Waits.IsZero() {
		return text != "", err
	}
	return false, c.Recover(ctx, &transaction.Outcome{})
}

// isMeant says whether the change on trial is the one that a verb is about, where that names one.
func isMeant(t *state.Trial, r api.Request) error {
	if r.Waits.IsZero() || t != nil && t.Confirm.Equal(r.Waits) {
		return nil
	}
	return api.Errorf(api.CodeFailed, "`bulkhead history` says what happened",
		"the change is not on trial any more: it was undone or confirmed by somebody else")
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

// Commit runs a change with its documents and puts it on trial, when that is asked for: a watchdog, which is a process
// of its own, is there before anything is changed.
func Commit(ctx context.Context, c *transaction.Controller, v *transaction.View, r api.Request,
	reply *transaction.Outcome, s *state.Documents, docs map[string]any, run func() error) error {
	watch := GuardOf(v)
	if r.Unguarded && r.ConfirmWithin > 0 {
		watch = nil
	}
	return CommitWatched(ctx, c, v, r, reply, s, docs, watch, run)
}

// CommitWatched is OnTrial with what is watched.
func CommitWatched(ctx context.Context, c *transaction.Controller, v *transaction.View, r api.Request,
	reply *transaction.Outcome, s *state.Documents, docs map[string]any, watch *state.Watch, run func() error) error {
	var notes []string
	if watch != nil && watch.Groups == nil {
		var err error
		if notes, err = TakeBefore(ctx, c, v, watch); err != nil {
			return err
		}
	}
	if r.ConfirmWithin == 0 && watch == nil {
		if was, err := state.OnTrial(c.Store); err != nil || was != nil {
			state.TrialOver(docs) // whoever makes the next change is content with the one before
		}
		return c.Commit(r, reply, docs, run)
	}
	now := c.Now()
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
	wd, err := startWatchdog(ctx, c, &t)
	if err != nil {
		return api.Errorf(api.CodeFailed,
			"nothing was changed; without --confirm-within and a guard it needs no watchdog", "%w", err)
	}
	if wd != nil {
		defer wd.Leave()
	}
	docs[state.DocTrial] = t
	docs[state.DocBefore] = state.Before{Trial: t.ID, Applied: s.Applied, Overrides: s.Overrides, Released: s.Released,
		Lifted: s.Lifted, Windows: s.Windows, Tuned: s.Tuned}
	if err := c.Commit(r, reply, docs, run); err != nil {
		return err
	}
	if took := c.Now().Sub(now); took > time.Second { // memory that was waited for
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

// startWatchdog starts the watchdog of a change on trial; nil where none is wanted.
func startWatchdog(ctx context.Context, c *transaction.Controller, t *state.Trial) (*watchdog.Watchdog, error) {
	wd, err := transaction.StartAlone(ctx, c, "--trial", t.ID)
	if wd == nil || err != nil {
		return nil, err
	}
	procs, err := c.Host.Proc.Processes(procfs.Options{PIDs: []int{wd.PID()}})
	if err != nil || len(procs) != 1 {
		wd.Leave()
		return nil, errors.Join(errors.New("the watchdog is gone"), err)
	}
	t.Watchdog = procs[0].ID
	return wd, nil
}

// Keep keeps the change on trial.
func Keep(_ context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
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
	if err := c.Commit(r, reply, state.TrialOver(map[string]any{}), func() error { return nil }); err != nil {
		return api.Errorf(api.CodeFailed, "free space below the state directory and confirm again", "keep %s: %w",
			t.Named(), err)
	}
	reply.Recorded = false
	reply.Text = "kept " + t.Named()
	return nil
}

// End forgets the change on trial: it stays.
func End(c *transaction.Controller) error {
	docs, err := state.Encode(state.TrialOver(map[string]any{}))
	if err == nil {
		_, err = c.Store.Change(journal.Txn{Docs: docs}, "")
	}
	return errors.Join(err, c.Store.Settle())
}

// revert puts in force again what was before the change on trial. Groups that were released since stay so.
func revert(ctx context.Context, c *transaction.Controller, t *state.Trial, why, by string,
	reply *transaction.Outcome) error {
	facts, s, err := c.Recorded()
	if err != nil {
		return err
	}
	was, err := state.Load(c.Store, state.DocBefore)
	if err != nil || was.Before.Trial != t.ID {
		err = errors.Join(err, End(c))
		return api.Errorf(api.CodeFailed,
			"`bulkhead history` lists the revisions, `bulkhead rollback --to N` goes back to one",
			"undo %s: what was in force before it is not known any more: %w", t.Named(), err)
	}
	b := was.Before
	r := api.Request{Verb: "revert", By: by, Reason: why, Of: journal.Entry{Verb: t.Verb, Revision: t.Revision}.Title()}
	released := maps.Clone(b.Released)
	maps.Copy(released, s.Released)
	docs := state.TrialOver(map[string]any{state.DocApplied: state.Applied{}, state.DocOverrides: b.Overrides,
		state.DocReleased: released, state.DocLifted: b.Lifted, state.DocTuned: b.Tuned})
	if b.Applied != nil {
		docs[state.DocApplied], reply.Revision = *b.Applied, b.Applied.Revision
	}
	if b.Applied == nil || released[""] {
		maps.Copy(docs, withoutKey(release.Without(s, []string{""}), state.DocReleased))
		return c.Commit(r, reply, docs, func() error { return releaseNow(ctx, c, facts, s, []string{""}, r, reply) })
	}
	l := transaction.OptionsOver(s, b.Applied.Sources)
	l.Tuned = askedAgain(b.Tuned, s.Tuned)
	l.Overrides, l.Released, l.Facts, l.Lenient, l.Shares = living(b.Overrides, c.Now()), released, facts, true, true
	l.Canary, l.Lifted, l.Conflicts = nil, b.Lifted, nil // what came since belongs to what is undone
	l.Root = b.Applied.Root()
	if t.Verb == ScheduleVerb {
		p, err := parse.Policy(b.Applied.Sources)
		if err != nil {
			return err
		}
		l.Skipped = skip(s, p, t, b.Windows, why, c.Now())
		docs[state.DocSkipped] = l.Skipped
	}
	v, err := c.View(ctx, l)
	if err != nil {
		return err
	}
	if transaction.Refused(v.Plan, false) != nil {
		for _, refusal := range v.Plan.Refusals {
			stays := fmt.Sprintf("group %q stays as it is: %s", refusal.Group, refusal.Reason)
			reply.Notes, r.Reason = append(reply.Notes, stays), strings.TrimPrefix(r.Reason+"; "+stays, "; ")
		}
		if err := v.LeaveOut(); err != nil {
			return err
		}
	}
	docs[state.DocWindows] = policy.ScheduleNames(v.Open)
	return c.Commit(r, reply, docs, func() error {
		err := reply.Withhold(len(b.Released) > 0,
			func() error { return c.RunOthers(ctx, v, r, reply.Revision, reply, nil) })
		if err != nil || len(b.Released) == 0 {
			return err
		}
		// The change governed them again.
		return releaseNow(ctx, c, facts, s, slices.Sorted(maps.Keys(b.Released)), r, reply)
	})
}

// askedAgain has settings asked for that a change took back or changed: of others, what somebody else has changed since
// stays.
func askedAgain(before, now []state.Tuned) []state.Tuned {
	all := slices.Clone(before)
	for i := range all {
		t := &all[i]
		t.Asked = !slices.ContainsFunc(now, func(o state.Tuned) bool { return o.Name == t.Name && o.Value == t.Value })
	}
	return all
}

func withoutKey(docs map[string]any, key string) map[string]any {
	delete(docs, key)
	return docs
}

// releaseNow lifts groups, as a part of another change.
func releaseNow(ctx context.Context, c *transaction.Controller, f *host.Facts, s *state.Documents, groups []string,
	r api.Request, reply *transaction.Outcome) error {
	v, err := release.View(ctx, c, f, s, groups, r)
	if err != nil {
		return err
	}
	if v != nil {
		if err := release.Groups(ctx, c, v, s, groups, r, reply); err != nil {
			return err
		}
	}
	return release.StillHeld(reply)
}

// living are the overrides whose end is still to come.
func living(overrides []state.Override, now time.Time) []state.Override {
	return slices.DeleteFunc(slices.Clone(overrides), func(o state.Override) bool { return o.Ended(now) })
}

// ScheduleVerb is what the history calls a change that a window makes.
const ScheduleVerb = "schedule"

// skip lays the windows aside that a trial is about, until they close.
func skip(s *state.Documents, p *policy.Policy, t *state.Trial, before []string, why string,
	now time.Time) []state.Skipped {
	skipped := slices.Clone(s.Skipped)
	for _, one := range p.Open(now) {
		if slices.Contains(before, one.Name) {
			continue
		}
		_, until, _ := one.Windows.Open(now)
		skipped = append(skipped, state.Skipped{Schedule: one.Name, Revision: t.Revision, Until: until, Why: why})
	}
	return skipped
}
