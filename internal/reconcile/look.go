package reconcile

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change/flat"
	"bulkhead/internal/confirm"
	"bulkhead/internal/host"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
	"bulkhead/internal/transaction"
)

// LookOptions is what the agent knows when it looks.
type LookOptions struct {
	Processes []procfs.Process
	Changed   bool // processes came or went since the look before
	Full      bool // read every limit too
	// Forks are those that events told of since the look before, in their order; without those of a parent
	// that has run another program since.
	Forks []Fork
}

// LookResult is what a look put right.
type LookResult struct {
	Moved    []int // pids; what is known of their membership is out of date
	Repaired int
	// Inherited counts members that are in their groups, were not there at the last look, and were not moved.
	Inherited int
	// Retry says that something was left undone that the next look may get done.
	Retry bool
	// Servers are the main processes of the instances there are: their children write their titles late. It is
	// nil when nothing was looked at.
	Servers []int
}

// Look brings the host back to the applied policy where it differs. It does nothing, and reads little,
// when there is nothing to do: no knob is read while every member is where it belongs, until a full
// look. Nothing is applied, or everything was released: nothing is done.
func (c *Reconciler) Look(ctx context.Context, o LookOptions) (LookResult, error) {
	ctx, heard := c.memory.patient(ctx)
	defer heard()
	o.Full = c.disksChanged(time.Now()) || o.Full
	o.Full = c.linksChanged(time.Now()) || o.Full
	if o.Full {
		if _, err := transaction.TakeOver(ctx, c.Controller, "look", "agent"); err != nil {
			return LookResult{}, err
		}
	}
	at := c.Now()
	due := c.due.any(c.Store, c.memory.Resolved, at) || c.memory.goesOn(time.Now())
	if !o.Changed && !o.Full && !due {
		return LookResult{}, nil
	}
	facts, err := c.facts(o.Full)
	if err != nil {
		return LookResult{}, err
	}
	stamp := stamp(c.Controller)
	s, err := c.LoadState(facts.BootID, at)
	if err != nil {
		return LookResult{}, err
	}
	c.memory.remember(stamp, s)
	if s.Rests() {
		c.due.dealtWith(c.memory.Resolved, at, nil)
		c.memory.barred = nil
		c.Admitted.Shut()
		if o.Full || !c.memory.seen.Rests {
			c.memory.seen = Seen{Rests: true, Record: recordOf(s)}
		}
		return LookResult{}, nil
	}
	l := transaction.OptionsOver(s, s.Applied.Sources)
	l.Processes, l.Facts, l.Lenient = o.Processes, facts, true
	c.memory.forks = o.Forks
	defer func() { c.memory.forks = nil }()
	v, done, err := c.lookAt(ctx, l, s, o.Full || due, at)
	if v == nil {
		return done, err
	}
	done.Inherited = c.memory.inherited(v, done.Moved, err == nil)
	done.Servers = make([]int, 0, len(v.Instances))
	for i := range v.Instances {
		done.Servers = append(done.Servers, v.Instances[i].Main.PID)
	}
	return done, err
}

// How long a look waits for the answers of systemd, together, and how long when it did not answer the last one. Who
// changes something waits longer (systemd.Options): a look holds up those that come after it, and the next one asks
// again, and waits twice as long, as a systemd that is only slow may answer then. While it reloads its files systemd
// answers nobody, for a second or more on a large host.
const answerTime, silentTime = 3 * time.Second, 100 * time.Millisecond

// patient bounds how long what the agent does waits for the answers of systemd; heard keeps whether it answered.
func (m *memory) patient(ctx context.Context) (bound context.Context, heard func()) {
	wait := cmp.Or(m.patience, answerTime)
	bound, silent := systemd.WithPatience(ctx, wait)
	return bound, func() { m.patience = patienceAfter(wait, silent()) }
}

// patienceAfter is how long a look waits after one that waited so long.
func patienceAfter(wait time.Duration, silent bool) time.Duration {
	switch {
	case !silent:
		return answerTime
	case wait == answerTime:
		return silentTime
	}
	return min(2*wait, answerTime)
}

// lookAt looks at members, or at every limit too, and puts right what differs. The view is nil when nothing was looked
// at.
func (c *Reconciler) lookAt(
	ctx context.Context, l transaction.ViewOptions, s *state.Documents, whole bool, at time.Time,
) (v *transaction.View, done LookResult, err error) {
	if whole {
		v, done, err = c.putRight(ctx, l, nil, nil)
		c.due.dealtWith(c.memory.Resolved, at, err)
	}
	if v == nil { // a look at members alone will do, or is all there can be while somebody else is about a change
		var locked *statedir.LockedError
		if err != nil && !errors.As(err, &locked) {
			return nil, done, err
		}
		members, wrong := c.members(ctx, l)
		if wrong != nil {
			return nil, LookResult{}, wrong
		}
		v = members
	}
	switch {
	case whole:
	case !c.memory.sameUnits(v):
		_, done, err = c.putRight(ctx, l, v, s)
		c.due.dealtWith(c.memory.Resolved, at, err)
	case len(misplaced(v)) == 0:
		err = troubles(v)
	default:
		var ok bool
		if done, ok, err = c.place(ctx, v, s); !ok {
			_, done, err = c.putRight(ctx, l, v, s)
		} else {
			err = errors.Join(troubles(v), err)
		}
	}
	return v, done, err
}

// inherited counts the members that are in place, were none at the last look, and were not moved; of the first look
// none. Held says that the moves were not undone.
func (m *memory) inherited(v *transaction.View, moved []int, held bool) (count int) {
	before, now := m.members, m.spare
	if now == nil {
		now = make(map[procfs.ID]string, len(v.Classified.Placements))
	}
	clear(now)
	for i := range v.Classified.Placements {
		p := &v.Classified.Placements[i]
		placed, wasMoved := v.Layout.Placed(&p.Process, p.Group), slices.Contains(moved, p.Process.PID)
		now[p.Process.ID] = ""
		if placed || held && wasMoved {
			now[p.Process.ID] = p.Group
		}
		if _, known := before[p.Process.ID]; !known && before != nil && !wasMoved && placed {
			count++
		}
	}
	m.members, m.spare = now, before
	return count
}

// sameUnits says whether the units that groups claim are those of the last full look. Those of a released group count
// too; they change nothing.
func (m *memory) sameUnits(v *transaction.View) bool {
	return v.Systemd == nil || maps.Equal(m.governed, v.Systemd.Governed)
}

// facts gives the facts of the host; the agent reads them again only on a full look.
func (c *Reconciler) facts(fresh bool) (*host.Facts, error) {
	if c.known != nil && !fresh {
		return c.known, nil
	}
	f, err := c.Host.Facts()
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
	}
	c.known = f
	return f, nil
}

// putRight looks at every limit under the lock, plans, and does it. It does not wait for the lock: whoever holds it
// changes the host, and the next look sees the result. It goes on from seen, which may be nil, as long as the documents
// that it was made from, before, are what they were. The view is nil when nothing was looked at.
func (c *Reconciler) putRight(
	ctx context.Context, l transaction.ViewOptions, seen *transaction.View, before *state.Documents,
) (v *transaction.View, done LookResult, err error) {
	lock, err := c.LockWithin(ctx, 0, "look", "agent")
	if err != nil {
		return nil, LookResult{Retry: true}, err
	}
	defer lock.Release()
	var reply transaction.Outcome
	if err := c.Recover(ctx, &reply); err != nil {
		return nil, LookResult{}, err
	}
	s, err := c.LoadState(l.Facts.BootID, c.Now())
	if err != nil {
		return nil, LookResult{}, err
	}
	if s.Rests() || transaction.GoingDown(ctx, c.Controller, l.Facts) {
		return nil, LookResult{}, nil
	}
	c.memory.observed = nil
	barred, said := c.memory.stillBarred(s.Applied.Revision)
	if v = seen; v != nil && reply.Recovered == "" && reflect.DeepEqual(s, before) {
		v.Release(barred...)
		err = c.limits(ctx, v)
	} else {
		now := transaction.OptionsOver(s, s.Applied.Sources)
		now.Processes, now.Facts, now.Lenient, now.LeftAlone = l.Processes, l.Facts, true, barred
		v, err = c.whole(ctx, now)
	}
	if err != nil {
		return nil, LookResult{}, err
	}
	c.memory.seen = Seen{View: v, Revision: s.Applied.Revision}
	highs := highsOf(v.Plan)
	for d, group := range c.memory.highs {
		if slices.Contains(barred, group) {
			highs[d] = group // it has what it had
		}
	}
	c.memory.highs = highs
	done, err = c.settle(ctx, v, s, &reply)
	return v, done, errors.Join(said, err)
}

// settle brings the host to what a view plans, but for what is refused, or left to others.
func (c *Reconciler) settle(ctx context.Context, v *transaction.View, s *state.Documents,
	reply *transaction.Outcome) (LookResult, error) {
	if v.Systemd != nil {
		c.memory.governed = v.Systemd.Governed
	}
	conflicts := c.handleConflicts(ctx, v, s)
	c.memory.settled = nil
	trouble := errors.Join(troubles(v), conflicts)
	c.memory.refused = map[string]bool{}
	for _, r := range v.Plan.Refusals {
		c.memory.refused[r.Group] = true
	}
	if err := transaction.Refused(v.Plan, false); err != nil {
		trouble = errors.Join(trouble, err)
		if err := v.LeaveOut(); err != nil {
			return LookResult{}, errors.Join(trouble, err)
		}
	}
	done, err := c.carryOut(ctx, v, s, reply)
	return done, errors.Join(trouble, err)
}

// carryOut does what a look found to do, and has the history say which windows opened or closed with it.
func (c *Reconciler) carryOut(ctx context.Context, v *transaction.View, s *state.Documents,
	reply *transaction.Outcome) (done LookResult, err error) {
	r, right := agentsRequest(v.Plan, c.due.over)
	reply.Revision = s.Applied.Revision
	open := policy.ScheduleNames(v.Open)
	switched := switches(s.Windows, open)
	if switched != "" {
		r = api.Request{Verb: confirm.ScheduleVerb, By: r.By, Reason: switched}
	} else if r.Reason == "" {
		r.Reason = c.memory.broughtBack(v, time.Now())
	}
	docs, err := endedDocs(c.Store, v, s)
	if err != nil {
		return done, err
	}
	if len(v.Plan.Steps) > 0 {
		err = runWith(ctx, c, v, s, r, reply, docs)
		// What goes on is told of, and counted, when it is done.
		right.Steps = slices.DeleteFunc(slices.Clone(right.Steps),
			func(s plan.Step) bool { return c.memory.barred[s.Group].falls })
		done = puts(right, c.memory.members)
		c.tell(right, err, time.Now())
	} else {
		for name, doc := range docs {
			err = errors.Join(err, c.Store.Save(name, doc))
		}
	}
	if err == nil {
		c.memory.settleLook(v, reply.LeftOut)
		c.retainDue(v)
	}
	// While memory is on its way down the windows are not in force: the look that goes on has them so, under the guard.
	if err == nil && switched != "" && !c.memory.falls() {
		err = errors.Join(closeGuarded(c.Controller, s.Windows, open),
			tellWindows(c.Controller, r, reply, s.Applied.Revision, open))
	}
	if slices.ContainsFunc(v.Plan.Steps, func(s plan.Step) bool { return s.Kind == cgroup.KindDir }) {
		c.memory.observed = nil // it was seen before
	}
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return done, err
}

// runWith runs the plan of a look together with documents, without the groups that hold the others up.
func runWith(ctx context.Context, c *Reconciler, v *transaction.View, s *state.Documents, r api.Request,
	reply *transaction.Outcome, docs map[string]any) error {
	var stale error // documents that are not as they are to be
	leave := func(group string, cause error) {
		c.memory.bar(group, s.Applied.Revision, cause)
		v.Release(group)
		stale = errors.Join(stale, redo(c.Store, v, s, reply))
	}
	run := func() error { return c.RunOthers(ctx, v, r, s.Applied.Revision, reply, leave) }
	guarded, err := openGuarded(ctx, c.Controller, v, s, r, reply, docs, run)
	if !guarded && err == nil {
		err = c.Commit(r, reply, docs, run)
	}
	return errors.Join(err, stale)
}

// tellAgain is how long the same correction is not told again: two that each put a value right would fill the log.
const tellAgain = 10 * time.Minute

// tell logs what a look did to groups and units: whoever changed them behind bulkhead's back finds out here. Moves are
// counted by status; a directory counts once for all hierarchies.
func (c *Reconciler) tell(p plan.Plan, failed error, now time.Time) {
	for t, at := range c.memory.told {
		if now.Sub(at) >= tellAgain {
			delete(c.memory.told, t)
		}
	}
	for _, s := range p.Steps {
		if s.PID() != (procfs.ID{}) {
			continue
		}
		f, beside := flat.Of(s.Change, s.Unit)
		opposite := ""
		if s.Kind == cgroup.KindDir {
			opposite, beside.Old, beside.New = beside.Undo, "", ""
		}
		this := told{f.Op, s.Unit, f.Dir.Path, f.File, f.Key, f.Target, beside.New, failed != nil}
		if _, again := c.memory.told[this]; again {
			continue
		}
		undone := this
		undone.op = opposite
		delete(c.memory.told, undone)
		if c.memory.told == nil {
			c.memory.told = map[told]time.Time{}
		}
		c.memory.told[this] = now
		what := []any{"do", f.Op, "group", cmp.Or(s.Group, "(root group)")}
		for _, a := range []struct{ key, value string }{
			{"dir", f.Dir.Path}, {"file", f.File}, {"device", f.Key}, {"unit", s.Unit}, {"kind", string(f.Target.Kind)},
			{"address", f.Target.Addr}, {"from", beside.Old}, {"to", beside.New}, {"why", s.Reason},
		} {
			if a.value != "" {
				what = append(what, a.key, strings.TrimSpace(a.value))
			}
		}
		if failed != nil {
			c.Log.Warn("tried to put right", what...)
		} else {
			c.Log.Info("put right", what...)
		}
	}
}

// puts is what a plan puts right. A process that was no member at the last look is given its score with its group;
// nobody had changed that.
func puts(p plan.Plan, members map[procfs.ID]string) (done LookResult) {
	for _, step := range p.Steps {
		switch flat.Op(step.Change) {
		case "oom_score_adj":
			if _, member := members[step.PID()]; member {
				done.Repaired++
			}
		case "write", "set":
			done.Repaired++
		}
	}
	done.Moved = p.Moved()
	return done
}

// troubles is what keeps the policy from being wholly in force, as an error; nil when nothing does.
func troubles(v *transaction.View) error {
	if len(v.Problems) == 0 {
		return nil
	}
	return v.Problems
}

// place puts processes that have just come into their groups, and reads no knob: it plans with what the last
// full look saw, and leaves all but the moves to the next one. Where a group has no directory yet, or anything
// has changed since, ok is false and nothing was done: then the host must be looked at as a whole.
func (c *Reconciler) place(ctx context.Context, v *transaction.View, s *state.Documents) (done LookResult, ok bool,
	err error) {
	if c.memory.observed == nil || c.memory.Facts != v.Facts {
		return done, false, nil
	}
	lock, err := c.LockWithin(ctx, 0, "look", "agent")
	if err != nil {
		return LookResult{Retry: true}, true, err
	}
	defer lock.Release()
	if _, pending := c.Store.Pending(); pending {
		return done, false, nil
	}
	now, err := c.LoadState(v.Facts.BootID, c.Now())
	if err != nil {
		return done, true, err
	}
	if !reflect.DeepEqual(now, s) {
		return done, false, nil
	}
	w := &transaction.View{Snapshot: c.Reader().Narrow(v.Snapshot, misplaced(v), *c.memory.observed),
		Released: v.Released}
	w.MakePlan()
	if len(w.Plan.Refusals) > 0 || slices.ContainsFunc(w.Plan.Steps, plan.Step.Makes) {
		return done, false, nil
	}
	w.Plan.Steps = slices.DeleteFunc(w.Plan.Steps, func(s plan.Step) bool { return s.PID() == procfs.ID{} })
	if len(w.Plan.Steps) == 0 { // a zombie, or a task that the kernel does not let in
		return done, true, nil
	}
	done = puts(w.Plan, c.memory.members)
	r := api.Request{Verb: "look", By: "agent", Reason: c.memory.broughtBack(w, time.Now())}
	err = c.Run(ctx, w, r, s.Applied.Revision, &transaction.Outcome{})
	switch {
	case errors.Is(err, context.Canceled):
		err = nil
	case errors.Is(err, cgroup.ErrGone): // somebody else removed a directory; everything was undone
		c.memory.observed = nil
		return LookResult{}, false, nil
	case err != nil:
		c.memory.observed, done.Retry = nil, true
	}
	return done, true, err
}
