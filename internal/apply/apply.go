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
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
)

// Files reads and writes files of groups. *cgroup.Tree is one.
type Files interface {
	Read(cgroup.File) (string, error)
	Write(cgroup.File, string) error
}

// Dirs makes and removes cgroup directories. *cgroup.Tree is one.
type Dirs interface {
	Make(cgroup.Dir) error
	Remove(cgroup.Dir) error
	Exists(cgroup.Dir) (bool, error)
	// Files names the files of a directory.
	Files(cgroup.Dir) ([]string, error)
}

// Members looks at and changes who is in a directory. *cgroup.Tree is one.
type Members interface {
	Procs(cgroup.Dir) ([]int, error)
	// Move checks the start time just before, unless it is 0.
	Move(cgroup.Dir, procfs.ID) error
}

// Processes looks at processes. *host.Host is one.
type Processes interface {
	Alive(procfs.ID) bool
	// Processes reads what /proc says of the processes asked for, where they are among it.
	Processes(procfs.Options) ([]procfs.Process, error)
}

// Network looks at interfaces and changes what is on them. *netshape.Kernel is one.
type Network interface {
	Do(netshape.Change) error
	// Undo takes a change back, if it was made, by the changes that its step names.
	Undo(c netshape.Change, undo []netshape.Change) (undone bool, err error)
	// Look reads what an interface has, and our programs on cgroup2 directories.
	Look(device string, cgroups []string) (netshape.State, error)
}

// Runner runs plans on one host. The caller holds the lock of the journal. It runs one plan at a time.
type Runner struct {
	Files     Files
	Actuators change.Actuators // of everything but directories, members, properties of units and interfaces
	Dirs      Dirs
	Members   Members
	Processes Processes
	Units     Units   // nil where systemd does not own the tree, or cannot be asked
	Network   Network // nil where no plan has to do with interfaces
	// Guard is called before the first change of an interface. It gets what takes all these changes back, and gives a
	// function that is called when the plan is done or undone. An error of Guard keeps the plan from being run. An
	// error of that function undoes the plan; the function is then called once more. Stop, with a reason, ends the run
	// before its next step. nil guards nothing.
	Guard   func(g Guarded, stop context.CancelCauseFunc) (settle func(failed bool) error, err error)
	Journal *journal.Store
	Boot    string       // boot ID of the running kernel
	Log     *slog.Logger // nil is silent

	// AfterStep and AfterUndo are called after each step and after each change that was undone.
	// They are for tests, which crash there; nil otherwise.
	AfterStep func(i int, s plan.Step)
	AfterUndo func(c journal.Change)
}

// Options says on whose behalf a plan is run.
type Options struct {
	Verb     string // "apply", "set", …
	What     string // the verb's arguments, for the history
	By       string // who asked
	Reason   string
	Revision int  // of the policy, for the history
	Force    bool // do it in spite of refusals; needs a Reason
	DryRun   bool // check and read, write nothing
	// Docs are the documents that take effect with the plan.
	Docs map[string]json.RawMessage
	// Unrecorded leaves the run out of the history: the agent's placing of new processes.
	Unrecorded bool
}

// Result is what a run did.
type Result struct {
	Txn     uint64   // of the journal; 0 when nothing was to do
	Entry   int      // of the history; 0 when there is none
	Steps   int      // done, without those that turned out to be done already
	Skipped []string // processes that could not be moved, with the reason
	Exited  int      // processes that exited between look and move; they are part of Skipped
	Notes   []string // what a person should know: optional steps that failed, a history that is full
	// LeftOut is the optional steps that failed, each with its cause in Notes; without what was no
	// longer there.
	LeftOut []plan.Step
}

// RefusedError says that a plan is refused for safety.
type RefusedError struct {
	Refusals []plan.Refusal
}

func (e *RefusedError) Error() string {
	var texts []string
	for _, r := range e.Refusals {
		text := r.Reason
		if r.Group != "" {
			text = fmt.Sprintf("group %q: %s", r.Group, r.Reason)
		}
		texts = append(texts, text)
	}
	return "refused for safety: " + strings.Join(texts, "; ")
}

// Hint gives the refusals' own hints, and how to do it nevertheless.
func (e *RefusedError) Hint() string {
	var hints []string
	for _, r := range e.Refusals {
		if r.Hint != "" {
			hints = append(hints, r.Hint)
		}
	}
	return strings.Join(append(hints, "--force --reason WHY does it nevertheless"), "; ")
}

// errNoReason says that --force came alone.
var errNoReason = errors.New("a reason is needed to do what is refused for safety: --force --reason WHY")

// StepError says which step failed, why, and what became of the others.
type StepError struct {
	Step  plan.Step
	Index int // from 0; Of when all steps were done and only their end could not be recorded
	Of    int
	Err   error
	// Left is what could not be undone; nil when the host is as it was before.
	Left []error
	// Open says that the journal could not be told: Recover will look again, and find nothing to do.
	Open bool
}

func (e *StepError) Error() string {
	var b strings.Builder
	if e.Index < e.Of {
		fmt.Fprintf(&b, "step %d of %d", e.Index+1, e.Of)
	} else {
		fmt.Fprintf(&b, "after the last of %d steps", e.Of)
	}
	if e.Step.Reason != "" {
		fmt.Fprintf(&b, " (%s)", e.Step.Reason)
	}
	fmt.Fprintf(&b, ": %v; ", e.Err)
	if len(e.Left) == 0 {
		b.WriteString("everything was undone")
	} else {
		fmt.Fprintf(&b, "undone but for: %v", errors.Join(e.Left...))
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *StepError) Unwrap() error { return e.Err }

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
	return n.result, nil
}

// ErrInForce says that a plan was done, and that the journal may not know.
var ErrInForce = errors.New("it is not known whether the journal has the end of it")

// run is one plan on its way.
type run struct {
	*Runner
	ctx     context.Context
	plan    plan.Plan
	options Options
	result  Result

	txn     journal.Txn
	actions []action
	tried   int          // actions that may have changed something
	kept    []cgroup.Dir // directories whose removal failed, and may
	members membership
	wants   map[cgroup.File]plan.Wanted // the plan's Want by file
	// reclaims is when memory of a directory was first waited for.
	reclaims map[cgroup.Dir]time.Time
}

// action is a step with what was found out about it.
type action struct {
	step plan.Step
	skip bool // it is so already, or the process is gone
	// changes are what the journal holds for it; the last one is the step itself, those before it
	// are values that the kernel changes or forgets with it.
	changes []journal.Change
}

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
		if a.step.Op == plan.OpMove {
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
		if a.step.Op != plan.OpMove || a.step.Group == "" {
			continue
		}
		k := key{a.step.PID, a.step.Group}
		if from[k] == nil {
			from[k] = map[string]string{}
			order = append(order, k)
		}
		from[k][a.step.Dir.Hierarchy] = a.step.Old
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

func (n *run) failed(i int, err error) *StepError {
	return &StepError{Step: n.actions[i].step, Index: i, Of: len(n.actions), Err: err}
}

// forgo gives up an optional step; the error is the journal's.
func (n *run) forgo(i int, cause error) error {
	a := n.actions[i]
	if a.step.Op == plan.OpRemoveDir { // it left everything in its place
		n.kept = append(n.kept, a.step.Dir)
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

// leaveOut tells of an optional step that failed.
func (n *run) leaveOut(s plan.Step, cause error) {
	n.result.Notes = append(n.result.Notes, fmt.Sprintf("not done (%s): %v", s.Reason, cause))
	if !noLongerThere(s, cause) {
		n.result.LeftOut = append(n.result.LeftOut, s)
	}
}

// noLongerThere says whether a step failed because its target vanished after the plan was made, so that nothing is
// left to do: a directory, a unit, or a file that was there, which systemd removes when it takes a controller away.
func noLongerThere(s plan.Step, cause error) bool {
	return errors.Is(cause, change.ErrGone) || s.Op != plan.OpDropIn && errors.Is(cause, systemd.ErrNoUnit) ||
		s.Op == plan.OpWrite && s.Old != "" && errors.Is(cause, cgroup.ErrNoKnob)
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
	if err := n.Journal.End(n.txn.ID, outcome, note); err != nil {
		e.Open = true
		n.log().Warn("close the transaction; the next change looks at it again", "txn", n.txn.ID, "err", err)
		return e
	}
	n.record(outcome, note)
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
		if !a.skip && !n.members.skipped(a.step.PID) {
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

func (r *Runner) log() *slog.Logger {
	if r.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return r.Log
}

// exited says whether an error means that the process is gone.
func exited(err error) bool {
	return errors.Is(err, cgroup.ErrExited) || errors.Is(err, procfs.ErrExited)
}
