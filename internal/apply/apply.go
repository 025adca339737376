// Package apply runs a plan: originals into the journal first, then the steps, each value read back.
// A plan is done as a whole or undone.
//
// How that holds: before the first step every original is read fresh from the kernel, written to
// the journal and synced. A step that fails, or a cancelled context, undoes the steps before it, last
// one first. A crash leaves the transaction without an end; Recover undoes it from the journal alone,
// and does the same again when it was itself cut off. So undoing never assumes how far things got: it
// looks at what is there, and changes what differs from the original.
package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
)

// errNoReason says that --force came alone.
var errNoReason = errors.New("a reason is needed to do what is refused for safety: --force --reason WHY")

// Run does the plan. Errors: *RefusedError before anything was done; an error of the journal or of a
// first look at the kernel, also before; *StepError after everything was undone; an error that wraps
// cgroup.ErrGone says that a group vanished meanwhile, so that a new look and plan may succeed.
func (r *Runner) Run(ctx context.Context, p plan.Plan, o Options) (Result, error) {
	if len(p.Refusals) > 0 && !o.Force {
		return Result{}, &RefusedError{Refusals: p.Refusals}
	}
	if len(p.Refusals) > 0 && strings.TrimSpace(o.Reason) == "" {
		return Result{}, errNoReason
	}
	if len(p.Steps) == 0 {
		return Result{}, nil
	}
	if _, pending := r.Journal.Pending(); pending && !o.DryRun {
		return Result{}, fmt.Errorf("run plan: %w", journal.ErrPending)
	}
	n := &run{Runner: r, ctx: ctx, plan: p, options: o}
	if err := (&preparer{n}).prepare(); err != nil {
		return Result{}, fmt.Errorf("look before the first change: %w", err)
	}
	if o.DryRun || !n.anything() {
		return n.result, nil
	}
	if err := n.begin(); err != nil {
		return Result{}, err
	}
	stoppable, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	n.ctx = stoppable
	settle, err := n.guard(stop)
	if err == nil {
		err = n.steps()
	}
	if err == nil {
		if err = settle(false); err == nil {
			settle = func(bool) error { return nil }
		}
	}
	if err != nil {
		defer func() { _ = settle(true) }()
		return n.result, n.fail(err)
	}
	switch err := r.Journal.End(n.result.Txn, journal.Committed, ""); {
	case errors.Is(err, statedir.ErrUncertain):
		// The next process may find in the journal that the plan was done. Undoing it now would leave neither with
		// what it believes, so it stays in force, and that process keeps or undoes it.
		return n.result, fmt.Errorf("%w: %w", ErrInForce, err)
	case err != nil:
		// Not known to be done means not done: a later Recover would undo it behind everybody's back.
		return n.result, n.fail(&StepError{Index: len(p.Steps), Of: len(p.Steps), Err: err})
	}
	n.record(journal.Committed, "")
	waitsOf(ctx).done(slices.Collect(maps.Keys(n.reclaims))...)
	return n.result, nil
}

// ErrInForce says that a plan was done, and that the journal may not know.
var ErrInForce = errors.New("it is not known whether the journal has the end of it")

func (n *run) anything() bool {
	for _, a := range n.actions {
		if !a.skip {
			return true
		}
	}
	return false
}

// begin puts the originals on disk. Nothing has been changed before it returns.
func (n *run) begin() error {
	n.txn = journal.Txn{
		Boot: n.Boot, Verb: n.options.Verb, What: n.options.What, By: n.options.By,
		Reason: n.options.Reason, Revision: n.options.Revision,
		Recorded: !n.options.Unrecorded, Homes: n.homes(), Docs: n.options.Docs,
	}
	var moves []journal.Change
	for _, a := range n.actions {
		if a.step.Moves() {
			moves = append(moves, a.changes...)
		} else {
			n.txn.Changes = append(n.txn.Changes, a.changes...)
		}
	}
	id, err := n.Journal.Begin(n.txn)
	if err != nil {
		return err
	}
	n.txn.ID, n.result.Txn = id, id
	if len(moves) == 0 {
		return nil
	}
	if err := n.Journal.Moves(id, moves); err != nil {
		return errors.Join(err, n.Journal.End(id, journal.Undone, "nothing was done: the journal could not be written"))
	}
	return nil
}

// homes is where the processes that are about to be moved come from, by group.
func (n *run) homes() []journal.Home {
	type key struct {
		id    procfs.ID
		group string
	}
	from := map[key]map[string]string{}
	var order []key
	for _, a := range n.actions {
		id, hierarchy, moves := cgroup.Member(a.step.Target)
		if !moves || a.step.Group == "" {
			continue
		}
		k := key{id, a.step.Group}
		if from[k] == nil {
			from[k] = map[string]string{}
			order = append(order, k)
		}
		from[k][hierarchy] = a.step.Old
	}
	homes := make([]journal.Home, len(order))
	for i, k := range order {
		homes[i] = journal.Home{Group: k.group, From: from[k]}
	}
	return homes
}

// steps does the steps in order.
func (n *run) steps() error {
	for i, a := range n.actions {
		if err := n.ctx.Err(); err != nil {
			return n.failed(i, fmt.Errorf("interrupted: %w", context.Cause(n.ctx)))
		}
		n.tried = i + 1
		err := n.step(a)
		if err == nil {
			err = n.reloadAfter(i)
		}
		if err != nil {
			if !a.step.Optional {
				return n.failed(i, err)
			}
			if err := n.forgo(i, err); err != nil {
				return n.failed(i, err)
			}
			if err := n.reloadAfter(i); err != nil { // of the steps before it
				n.leaveOut(a.step, err)
			}
		}
		systemd.Progress(n.ctx)
		if n.AfterStep != nil {
			n.AfterStep(i, a.step)
		}
	}
	return n.verify()
}

// forgo gives up an optional step; the error is the journal's.
func (n *run) forgo(i int, cause error) error {
	a := n.actions[i]
	if a.step.Removes() { // it left everything in its place
		n.kept = append(n.kept, a.step.Dir())
	} else {
		u := takeBack(n)
		if _, left := u.all(a.changes); len(left) > 0 {
			n.leaveOut(a.step, fmt.Errorf("%w; what it did could not be undone: %w", cause, errors.Join(left...)))
			return nil
		}
	}
	n.leaveOut(a.step, cause)
	n.actions[i].skip = true
	return n.Journal.Forgo(n.txn.ID, []int{seq(i, phaseBefore), seq(i, phaseStep)})
}

// fail undoes what was done and tells the journal.
func (n *run) fail(cause error) error {
	e := &StepError{Err: cause}
	errors.As(cause, &e)
	var done []journal.Change
	for i := range n.tried {
		done = append(done, n.actions[i].changes...)
	}
	n.txn.Changes = done
	outcome, note := journal.Undone, e.Err.Error()
	u := takeBack(n)
	if left, errs := u.all(done); len(errs) > 0 {
		e.Left, outcome = errs, journal.Failed
		note += "; could not undo: " + errors.Join(errs...).Error()
		if err := n.Journal.Leave(n.txn.ID, left); err != nil {
			n.log().Warn("record what is left", "err", err)
		}
	}
	end := (*journal.Store).End
	var use *UseError
	goesOn := errors.As(cause, &use) && use.Early && outcome == journal.Undone
	if goesOn {
		end = journal.EndUntold // the run that goes on tells what came of it
	}
	if err := end(n.Journal, n.txn.ID, outcome, note); err != nil {
		e.Open = true
		n.log().Warn("close the transaction; the next change looks at it again", "txn", n.txn.ID, "err", err)
		return e
	}
	if !goesOn {
		n.record(outcome, note)
	}
	return e
}

// record adds the run to the history. A history that cannot be written does not make the run fail: the
// journal has it, and the next lock of the state directory writes the entry.
func (n *run) record(outcome, note string) {
	if n.options.Unrecorded {
		return
	}
	t := n.txn
	t.Changes = nil
	for _, a := range n.actions {
		if !a.skip && !n.members.skipped(a.step.PID()) {
			t.Changes = append(t.Changes, a.changes...)
		}
	}
	entry, err := n.Journal.Record(journal.EntryOf(&t, outcome, note))
	if err != nil {
		n.result.Notes = append(n.result.Notes, fmt.Sprintf("the history could not be written yet: %v", err))
		n.log().Warn("record history", "err", err)
		return
	}
	n.result.Entry = entry
}
