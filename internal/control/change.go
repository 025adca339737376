package control

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/apply"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/state"
)

// Request is one changing verb, as the command line and the agent's socket hand it over.
type Request struct {
	Verb   string `json:"verb"`
	By     string `json:"by,omitempty"` // who; the agent fills it in from the peer's credentials
	Reason string `json:"reason,omitempty"`
	Force  bool   `json:"force,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`

	Sources []policy.Source `json:"sources,omitempty"` // apply; release, which looks for its root group when none is recorded
	Assign  []string        `json:"assign,omitempty"`  // set, unset: "group:key=value", "group:key"
	On      string          `json:"on,omitempty"`      // set, unset: the io target
	For     time.Duration   `json:"for,omitempty"`     // set, move, freeze
	Groups  []string        `json:"groups,omitempty"`  // release, freeze, thaw
	All     bool            `json:"all,omitempty"`     // release
	Group   string          `json:"group,omitempty"`   // move
	PIDs    []int           `json:"pids,omitempty"`    // move, move-back
	Tree    bool            `json:"tree,omitempty"`    // move: with descendants
	To      int             `json:"to,omitempty"`      // rollback: a revision; 0 is the one before
	// ConfirmWithin is for how long an apply, set, unset or rollback waits to be confirmed before it is undone; 0: it
	// stays.
	ConfirmWithin time.Duration `json:"confirm_within,omitempty"`

	// Canary is the group that an apply goes before the others with, and CanaryFor how long it is watched; 0 is a
	// minute.
	Canary    string        `json:"canary,omitempty"`
	CanaryFor time.Duration `json:"canary_for,omitempty"`
	Migrate   bool          `json:"migrate,omitempty"` // apply, set: NUMA nodes may change under memory that is there

	// Caller is who asks, when that is not root; the agent fills it in.
	Caller *Caller `json:"-"`

	// Of is the change that a revert undoes, or a canary or confirm is about; only bulkhead itself fills it in.
	Of string `json:"-"`
}

// what is the arguments of a request as a person would have typed them, for the history.
func (r Request) what() string {
	words := slices.Clone(r.Assign)
	if r.Of != "" {
		words = append(words, r.Of)
	}
	if r.On != "" {
		words = append(words, "--on", r.On)
	}
	if r.Group != "" {
		words = append(words, r.Group)
	}
	words = append(words, r.Groups...)
	for _, pid := range r.PIDs {
		words = append(words, strconv.Itoa(pid))
	}
	if r.Tree {
		words = append(words, "--tree")
	}
	if r.All {
		words = append(words, "--all")
	}
	if r.To > 0 {
		words = append(words, "--to", strconv.Itoa(r.To))
	}
	if r.Migrate {
		words = append(words, "--migrate")
	}
	if r.For > 0 {
		words = append(words, "--for", r.For.String())
	}
	if r.ConfirmWithin > 0 {
		words = append(words, "--confirm-within", r.ConfirmWithin.String())
	}
	return strings.Join(words, " ")
}

// missing says for each verb what it cannot do without: when it lacks that, what to say, and how to say it.
var missing = map[string]struct {
	lacks      func(r Request) bool
	text, hint string
}{
	"apply": {func(r Request) bool { return len(r.Sources) == 0 }, "say which policy to apply",
		"`bulkhead apply --policy FILE`"},
	"set": {func(r Request) bool { return len(r.Assign) == 0 }, "say which limit to set",
		"`bulkhead set GROUP:KEY=VALUE`"},
	"unset": {func(r Request) bool { return len(r.Assign) == 0 }, "say which limit to unset",
		"`bulkhead unset GROUP:KEY`"},
	"release": {func(r Request) bool { return r.All == (len(r.Groups) > 0) }, "say what to release",
		"`bulkhead release GROUP…` or `bulkhead release --all`"},
	"move": {func(r Request) bool { return r.Group == "" || len(r.PIDs) == 0 },
		"say which processes to move, and where", "`bulkhead move GROUP PID…`"},
	"move-back": {func(r Request) bool { return len(r.PIDs) == 0 }, "say which processes to send back",
		"`bulkhead move --back PID…`"},
	"freeze": {func(r Request) bool { return len(r.Groups) == 0 }, "say which group to freeze",
		"`bulkhead freeze GROUP --for 10m`"},
	"thaw": {func(r Request) bool { return len(r.Groups) == 0 }, "say which group to thaw", "`bulkhead thaw GROUP`"},
}

// validate says what is missing or makes no sense, whoever asks: the command line or a program at the socket.
func (r Request) validate() error {
	if m, ok := missing[r.Verb]; ok && m.lacks(r) {
		return fail(CodeUsage, m.hint, "%s", m.text)
	}
	wrong := slices.IndexFunc(r.PIDs, func(pid int) bool { return pid < 1 })
	switch {
	case r.Force && strings.TrimSpace(r.Reason) == "":
		return fail(CodeUsage, "say why with --reason; the history keeps it", "--force needs a reason")
	case r.For < 0:
		return fail(CodeUsage, "say how long: --for 10m", "%s for %s: a time is longer than none", r.Verb, r.For)
	case r.Verb == "freeze" && r.For == 0:
		return fail(CodeUsage, "say how long: --for 10m", "a freeze always has an end")
	case slices.Contains(r.Groups, ""): // for release that would be everything
		return fail(CodeUsage, "`bulkhead status` lists the groups", "%s: a group has a name", r.Verb)
	case wrong >= 0:
		return fail(CodeUsage, "they count from 1", "%s: %d is not a process id", r.Verb, r.PIDs[wrong])
	case r.To < 0 || r.To > 0 && r.Verb != "rollback":
		return fail(CodeUsage, "`bulkhead rollback --to N`, with N from 1", "%s: no revision %d to go back to", r.Verb,
			r.To)
	}
	return errors.Join(r.validateCaller(), r.validateTrial())
}

// validateTrial says what makes no sense about how a change is tried.
func (r Request) validateTrial() error {
	within := func(d time.Duration) bool { return d >= minConfirm && d <= maxConfirm }
	switch {
	case r.ConfirmWithin != 0 && !within(r.ConfirmWithin):
		return fail(CodeUsage, "--confirm-within 5m", "%s --confirm-within %s: a change waits for 1s to 720h", r.Verb,
			r.ConfirmWithin)
	case r.ConfirmWithin != 0 && !slices.Contains(onTrialVerbs, r.Verb):
		return fail(CodeUsage, "", "%s does not wait to be confirmed", r.Verb)
	case r.Canary == "" && r.CanaryFor == 0:
	case r.Verb != "apply" || r.Canary == "" || r.CanaryFor != 0 && !within(r.CanaryFor):
		return fail(CodeUsage, "`bulkhead apply --canary GROUP --canary-for 2m`",
			"%s: a canary is a group that an apply tries first, for 1s to 720h", r.Verb)
	}
	return nil
}

// onTrialVerbs are those that may wait to be confirmed.
var onTrialVerbs = []string{"apply", "set", "unset", "rollback"}

// Reply is what a changing verb did.
type Reply struct {
	Plan     plan.Plan `json:"plan"`
	Changed  bool      `json:"changed"`
	Revision int       `json:"revision,omitempty"`
	Like     int       `json:"like,omitempty"`     // rollback: the revision it went back to, which Revision repeats
	Recorded bool      `json:"recorded,omitempty"` // written down, with nothing to change on the host
	Root     string    `json:"root"`               // name of the root group
	Skipped  []string  `json:"skipped,omitempty"`  // processes that exited or could not be moved
	Notes    []string  `json:"notes,omitempty"`    // what could not be done and undoes nothing else
	// Problems of the applied policy on the host as it is now, which kept nothing else from being done.
	Problems  policy.Problems `json:"problems,omitempty"`
	Overrides []string        `json:"overrides,omitempty"` // those still in force, for people
	Recovered string          `json:"recovered,omitempty"` // an interrupted change that was undone first
	Text      string          `json:"text,omitempty"`
	// Confirm is when the change is undone unless `confirm` comes; zero: it stays.
	Confirm time.Time `json:"confirm_until,omitzero"`
	// Guarded is until when the policy's guard watches it; zero: it does not.
	Guarded time.Time `json:"guarded_until,omitzero"`

	// Frozen are the freezes that this verb began. Without an agent the caller ends them.
	Frozen []state.Freeze `json:"-"`
}

// outcome is what a verb has done so far: its reply, and what only the rest of the verb needs.
type outcome struct {
	Reply

	ran     bool                       // a plan, which has its own entry in the history
	docs    map[string]json.RawMessage // to be committed with the next plan
	leftOut []plan.Step                // optional steps that failed, as Notes says
}

// Do does a changing verb.
func (c *Controller) Do(ctx context.Context, r Request) (*Reply, error) {
	do, ok := map[string]func(context.Context, Request, *outcome) error{
		"apply": c.apply, "set": c.set, "unset": c.unset, "release": c.release, "rollback": c.rollback,
		"move": c.move, "move-back": c.moveBack, "freeze": c.freeze, "thaw": c.thaw, "confirm": c.confirm,
	}[r.Verb]
	if !ok {
		return nil, fail(CodeUsage, "", "unknown verb %q", r.Verb)
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	lock, err := c.lock(ctx, r.Verb, r.By)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	reply := &outcome{}
	if r.DryRun {
		return &reply.Reply, do(ctx, r, reply)
	}
	if r.Verb == "apply" || r.Verb == "release" {
		c.sweepBeforeChange(r.Verb)
		if err := state.Mend(c.Store, c.Log); err != nil {
			if r.Verb != "release" {
				return &reply.Reply, fail(CodeFailed, "move it away to go on without it", "%w", err)
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
	return &reply.Reply, do(ctx, r, reply)
}

// run does the plan of a view and fills in the reply.
func (c *Controller) run(ctx context.Context, v *View, r Request, revision int, reply *outcome) error {
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
		return fail(CodeFailed, "nothing was changed",
			"record what systemd holds of the units, and what is on interfaces: %w", err)
	}
	runner := c.runner(ctx, v)
	defer closeDoor(runner)
	result, err := runner.Run(ctx, v.Plan, apply.Options{
		Verb: r.Verb, What: r.what(), By: r.By, Reason: r.Reason, Revision: revision, Force: r.Force,
		Unrecorded: onlyMoves(v.Plan) && r.By == "agent", Docs: reply.docs,
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
			return fail(CodeRefused, hintTaken(v, d), "%s already exists and bulkhead did not make it", v.Tree.Abs(d))
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
func (c *Controller) apply(ctx context.Context, r Request, reply *outcome) error {
	if r.Canary != "" {
		return c.applyCanary(ctx, r, reply)
	}
	return c.applySources(ctx, r, reply, r.Sources)
}

// applySources puts sources in force as a new revision; the same policy again changes nothing.
func (c *Controller) applySources(ctx context.Context, r Request, reply *outcome, sources []policy.Source) error {
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
	revision, err := c.revision(s, same)
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
		state.DocWindows:              namesOf(v.Open),
		journal.VersionName(revision): sources,
	}
	if s.Canary != nil {
		docs[state.DocCanary] = state.Canary{}
	}
	if err = c.onTrial(ctx, v, r, reply, s, docs, run); err == nil {
		if err := c.retain(v.Policy.Host.History); err != nil {
			reply.Notes = append(reply.Notes, err.Error())
		}
	}
	return err
}

// revision numbers what is applied: as before when nothing changed, else by a number that no other policy ever
// had, not even one whose apply was undone: the history names it.
func (c *Controller) revision(s *state.Documents, same bool) (int, error) {
	if same {
		return s.Applied.Revision, nil
	}
	entries, err := c.Store.Heads()
	if err != nil {
		return 0, fail(CodeFailed, "", "number the revision: %w", err)
	}
	last := 0
	if s.Applied != nil {
		last = s.Applied.Revision
	}
	d, err := state.Load(c.Store, state.DocGone)
	if err != nil {
		return 0, fail(CodeFailed, "", "number the revision: %w", err)
	}
	last = max(last, d.Gone)
	for _, e := range entries {
		last = max(last, e.Revision)
	}
	for next := last + 1; ; next++ { // what was applied and the history may be lost, and its revisions still there
		kept, err := kept(c.Store, next)
		if err != nil {
			return 0, fail(CodeFailed, "", "number the revision: %w", err)
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
func (c *Controller) set(ctx context.Context, r Request, reply *outcome) error {
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
		if !hasGroup(v, group) {
			return errNoGroup(v, group)
		}
		if err := errors.Join(refuseReleased(s, group), r.Caller.may(v, group, policy.MaySet)); err != nil {
			return err
		}
		if err := errors.Join(r.Caller.maySet(v, group, setting),
			r.Caller.mayReplace(overrides, group, setting.Key)); err != nil {
			return err
		}
		o := state.Override{
			Group: group, Key: setting.Key, On: r.On, Text: text, At: now, By: r.By, Reason: r.Reason,
			Owner: r.Caller.uid(),
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
func (c *Controller) unset(ctx context.Context, r Request, reply *outcome) error {
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
			return fail(CodeUsage, "`bulkhead status` lists the overrides in force", "no override is set for %s", text)
		}
		overrides = kept
	}
	return c.lay(ctx, r, reply, s, overrides, nil)
}

// lay puts a new list of overrides in force and records it. It goes by the facts and processes of seen, when the caller
// has looked already.
func (c *Controller) lay(
	ctx context.Context, r Request, reply *outcome, s *state.Documents, overrides []state.Override, seen *View,
) error {
	if s.Applied == nil {
		return errNotApplied()
	}
	given, err := state.Load(c.Store, state.DocNumbers)
	if err != nil {
		return fail(CodeFailed, "`bulkhead apply` puts it aside and goes on without", "%w", err)
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
			return c.runOthers(ctx, v, r, reply.Revision, reply, own...)
		})
}

func hasGroup(v *View, name string) bool {
	for _, g := range v.Classified.Groups {
		if g.Path == name {
			return true
		}
	}
	return false
}

// errNoGroup says that a group is not in the applied policy, and which ones are.
func errNoGroup(v *View, name string) error {
	var names []string
	for _, g := range v.Classified.Groups {
		names = append(names, g.Path)
	}
	return NoGroup(name, names)
}

// NoGroup is the error for a name that none of the groups has.
func NoGroup(name string, names []string) error {
	slices.Sort(names)
	hint := "the applied policy has no group now"
	if len(names) > 0 {
		hint = "the groups are " + strings.Join(names, ", ")
	}
	return fail(CodeUsage, hint, "no group %q", name)
}
