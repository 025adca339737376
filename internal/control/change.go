package control

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/state"
)

// outcome is what a verb has done so far: its reply, and what only the rest of the verb needs.
type outcome struct {
	api.Reply

	ran     bool                       // a plan, which has its own entry in the history
	docs    map[string]json.RawMessage // to be committed with the next plan
	leftOut []plan.Step                // optional steps that failed, as Notes says
}

// Do does a changing verb.
func (c *Controller) Do(ctx context.Context, r api.Request) (*api.Reply, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	lock, err := c.lock(ctx, r.Verb, r.By)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	reply := &outcome{}
	if r.DryRun {
		return &reply.Reply, c.carry(ctx, r, reply)
	}
	if r.Verb == "apply" || r.Verb == "release" {
		c.sweepBeforeChange(r.Verb)
		if err := state.Mend(c.Store, c.Log); err != nil {
			if r.Verb != "release" {
				return &reply.Reply, api.Errorf(api.CodeFailed, "move it away to go on without it", "%w", err)
			}
			c.Log.Warn("releasing with what can be read", "err", err)
		}
	}
	if r.Verb != "rollback" {
		if err := c.recover(ctx, reply); err != nil && !c.releaseAnyway(r, err) {
			return &reply.Reply, err
		}
	}
	if done, err := c.settleTrial(ctx, r, reply); done || err != nil {
		return &reply.Reply, err
	}
	// thaw and release wake whom they name themselves.
	if r.Verb != "rollback" && r.Verb != "thaw" && r.Verb != "release" {
		if err := c.wakeDue(ctx, time.Now()); err != nil {
			c.Log.Warn("a freeze that is over could not be ended", "err", err)
		}
	}
	return &reply.Reply, c.carry(ctx, r, reply)
}

// carry does a verb that is due.
func (c *Controller) carry(ctx context.Context, r api.Request, reply *outcome) error {
	switch r.Verb {
	case "apply":
		return c.apply(ctx, r, reply)
	case "set":
		return c.set(ctx, r, reply)
	case "unset":
		return c.unset(ctx, r, reply)
	case "release":
		return c.release(ctx, r, reply)
	case "rollback":
		return c.rollback(ctx, r, reply)
	case "move":
		return c.move(ctx, r, reply)
	case "move-back":
		return c.moveBack(ctx, r, reply)
	case "freeze":
		return c.freeze(ctx, r, reply)
	case "thaw":
		return c.thaw(ctx, r, reply)
	}
	return c.confirm(ctx, r, reply)
}

// run does the plan of a view and fills in the reply.
func (c *Controller) run(ctx context.Context, v *View, r api.Request, revision int, reply *outcome) error {
	reply.Plan, reply.Root = v.Plan, v.Policy.Host.Root
	if err := impossible(v); err != nil {
		return err
	}
	reply.Changed = len(v.Plan.Steps) > 0
	if r.DryRun {
		return refusals(v.Plan, r.Force)
	}
	err := errors.Join(c.dropStale(v), c.keepUnits(ctx, v), c.keepNetwork(v))
	if err != nil && !c.releaseAnyway(r, err) {
		return api.Errorf(api.CodeFailed, "nothing was changed",
			"record what systemd holds of the units, and what is on interfaces: %w", err)
	}
	runner := c.runner(ctx, v)
	defer closeDoor(runner)
	result, err := runner.Run(ctx, v.Plan, apply.Options{
		Verb: r.Verb, What: r.What(), By: r.By, Reason: r.Reason, Revision: revision, Force: r.Force,
		Unrecorded: onlyMoves(v.Plan) && r.By == "agent" && r.Reason == "", Docs: reply.docs,
	})
	reply.Skipped, reply.Notes, reply.leftOut = result.Skipped, result.Notes, result.LeftOut
	reply.ran = result.Txn != 0
	err = inTime(err)
	if err == nil && reply.ran {
		reply.docs = nil // committed
	}
	if err == nil {
		err = errors.Join(c.forgetUnits(v, result.LeftOut), c.settleNetwork(v, result.LeftOut))
	}
	return err
}

// impossible says what no --force gets past: nothing could be put in force.
func impossible(v *View) error {
	if v.releasing {
		return nil
	}
	if v.Facts.Systemd && v.Systemd == nil {
		return errUnasked(v.Unasked)
	}
	for _, d := range v.Layout.Dirs() {
		if d.Parent().Path == "/" && v.Observed.Foreign[d] {
			return api.Errorf(api.CodeRefused, hintTaken(v, d), "%s already exists and bulkhead did not make it",
				v.Tree.Abs(d))
		}
	}
	return nil
}

// onlyMoves says whether a plan places processes and does nothing else: the agent's everyday work,
// which would bury the changes of people in the history.
func onlyMoves(p plan.Plan) bool {
	return !slices.ContainsFunc(p.Steps, func(s plan.Step) bool {
		return s.Op != plan.OpMove &&
			s.Op != plan.OpOOMScore
	})
}

// refusals is the error a plan ends in without --force.
func refusals(p plan.Plan, force bool) error {
	if len(p.Refusals) == 0 || force {
		return nil
	}
	return &apply.RefusedError{Refusals: p.Refusals}
}

// apply puts a policy in force.
func (c *Controller) apply(ctx context.Context, r api.Request, reply *outcome) error {
	if r.Canary != "" {
		return c.applyCanary(ctx, r, reply)
	}
	return c.applySources(ctx, r, reply, r.Sources)
}

// applySources puts sources in force as a new revision; the same policy again changes nothing.
func (c *Controller) applySources(ctx context.Context, r api.Request, reply *outcome, sources []policy.Source) error {
	facts, s, err := c.recorded()
	if err != nil {
		return err
	}
	// A group that was released is governed again by apply; freezes and overrides stay.
	l := lookOver(s, sources)
	l.released, l.lifted, l.skipped, l.conflicts, l.facts, l.shares, l.canary, l.root = nil, nil, nil, nil, facts, true,
		nil, ""
	l.askNodes = r.Verb == "apply" && !r.Migrate
	v, err := c.view(ctx, l)
	if err != nil {
		return err
	}
	same := s.Applied != nil && s.Applied.Root() == "" && slices.Equal(s.Applied.Sources, sources) &&
		len(s.Released)+len(s.Lifted)+len(s.Skipped) == 0
	revision, err := revision(c.Store, s, same)
	if err != nil {
		return err
	}
	reply.Revision, reply.Like = revision, r.To
	reply.Overrides = v.InForce(s.Overrides)
	run := func() error {
		err := c.run(ctx, v, r, revision, reply)
		if err == nil && !r.DryRun {
			c.forgive(s)
		}
		return err
	}
	if r.DryRun || same {
		err := run()
		if same && r.ConfirmWithin > 0 {
			reply.Notes = append(reply.Notes, "nothing waits to be confirmed: this policy is in force already")
		}
		return err
	}
	// The sources are kept under their number together with the rest: one that is there was in force.
	docs := map[string]any{
		state.DocApplied: state.Applied{Revision: revision, Sources: sources, At: time.Now(), By: r.By,
			Reason: r.Reason, Like: r.To, Flat: true},
		state.DocReleased:             map[string]bool{},
		state.DocSkipped:              []state.Skipped{},
		state.DocWindows:              policy.ScheduleNames(v.Open),
		journal.VersionName(revision): sources,
	}
	if s.Canary != nil {
		docs[state.DocCanary] = state.Canary{}
	}
	if err = c.onTrial(ctx, v, r, reply, s, docs, run); err == nil {
		if err := retain(c.Store, v.Policy.Host.History); err != nil {
			reply.Notes = append(reply.Notes, err.Error())
		}
	}
	return err
}

// revision numbers what is applied: as before when nothing changed, else by a number that no other policy ever
// had, not even one whose apply was undone: the history names it.
func revision(store *journal.Store, s *state.Documents, same bool) (int, error) {
	if same {
		return s.Applied.Revision, nil
	}
	entries, err := store.Heads()
	if err != nil {
		return 0, api.Errorf(api.CodeFailed, "", "number the revision: %w", err)
	}
	last := 0
	if s.Applied != nil {
		last = s.Applied.Revision
	}
	d, err := state.Load(store, state.DocGone)
	if err != nil {
		return 0, api.Errorf(api.CodeFailed, "", "number the revision: %w", err)
	}
	last = max(last, d.Gone)
	for _, e := range entries {
		last = max(last, e.Revision)
	}
	for next := last + 1; ; next++ { // what was applied and the history may be lost, and its revisions still there
		kept, err := kept(store, next)
		if err != nil {
			return 0, api.Errorf(api.CodeFailed, "", "number the revision: %w", err)
		}
		if !kept {
			return next, nil
		}
	}
}

// kept says whether the sources of a revision are there, sound or damaged.
func kept(store *journal.Store, revision int) (bool, error) {
	_, err := state.Sources(store, revision)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, journal.ErrDamaged):
		return true, nil
	}
	return err == nil, err
}

// set lays overrides over the policy, all of them or none.
func (c *Controller) set(ctx context.Context, r api.Request, reply *outcome) error {
	v, s, err := c.membership(ctx)
	if err != nil {
		return err
	}
	now := c.now()
	overrides := slices.Clone(s.Overrides)
	for _, text := range r.Assign {
		group, setting, err := parse.Assignment(text, r.On)
		if err != nil {
			return err
		}
		if !v.HasGroup(group) {
			return errNoGroup(v, group)
		}
		if err := errors.Join(refuseReleased(s, group), may(r.Caller, v.Snapshot, group, policy.MaySet)); err != nil {
			return err
		}
		if err := errors.Join(maySet(r.Caller, v.Snapshot, group, setting),
			mayReplace(r.Caller, overrides, group, setting.Key)); err != nil {
			return err
		}
		o := state.Override{
			Group: group, Key: setting.Key, On: r.On, Text: text, At: now, By: r.By, Reason: r.Reason,
			Owner: r.Caller.OwnerID(),
		}
		if r.For > 0 {
			o.Ends = now.Add(r.For)
		}
		overrides = slices.DeleteFunc(overrides, o.SameLimit)
		overrides = append(overrides, o)
	}
	return c.lay(ctx, r, reply, s, overrides, v)
}

// unset takes overrides away.
func (c *Controller) unset(ctx context.Context, r api.Request, reply *outcome) error {
	_, s, err := c.recorded()
	if err != nil {
		return err
	}
	overrides := slices.Clone(s.Overrides)
	for _, text := range r.Assign {
		group, key, err := parse.Target(text)
		if err != nil {
			return err
		}
		if err := c.mayUnset(ctx, r, overrides, group, key); err != nil {
			return err
		}
		target := state.Override{Group: group, Key: key, On: r.On}
		kept := slices.DeleteFunc(slices.Clone(overrides), target.SameLimit)
		if len(kept) == len(overrides) {
			return api.Errorf(api.CodeUsage, "`bulkhead status` lists the overrides in force",
				"no override is set for %s", text)
		}
		overrides = kept
	}
	return c.lay(ctx, r, reply, s, overrides, nil)
}

// lay puts a new list of overrides in force and records it. It goes by the facts and processes of seen, when the caller
// has looked already.
func (c *Controller) lay(
	ctx context.Context, r api.Request, reply *outcome, s *state.Documents, overrides []state.Override, seen *View,
) error {
	if s.Applied == nil {
		return errNotApplied()
	}
	given, err := state.Load(c.Store, state.DocNumbers)
	if err != nil {
		return api.Errorf(api.CodeFailed, "`bulkhead apply` puts it aside and goes on without", "%w", err)
	}
	s.Numbers = given.Numbers
	numbers := s.Number(overrides)
	l := lookOver(s, s.Applied.Sources)
	l.overrides, l.shares, l.lenient = overrides, true, true
	l.askNodes = r.Verb == "set" && !r.Migrate
	l.goBy(seen)
	v, err := c.view(ctx, l)
	if err != nil {
		return err
	}
	reply.Problems = v.Problems
	reply.Revision = s.Applied.Revision
	reply.Overrides = v.InForce(overrides)
	if r.DryRun {
		return c.run(ctx, v, r, reply.Revision, reply)
	}
	var own []string
	for _, text := range r.Assign {
		group, _, _ := strings.Cut(text, ":")
		own = append(own, group)
	}
	return c.onTrial(ctx, v, r, reply, s, map[string]any{state.DocOverrides: overrides, state.DocNumbers: numbers},
		func() error {
			return c.runOthers(ctx, v, r, reply.Revision, reply, nil, own...)
		})
}

// errNoGroup says that a group is not in the applied policy, and which ones are.
func errNoGroup(v *View, name string) error {
	var names []string
	for _, g := range v.Classified.Groups {
		names = append(names, g.Path)
	}
	return api.NoGroup(name, names)
}
