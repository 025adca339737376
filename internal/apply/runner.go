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
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
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
	wants   map[change.Target]plan.Wanted // the plan's Want by target
	// reclaims is when memory of a directory was first waited for.
	reclaims map[cgroup.Dir]fall
}

// fall is when a run began to wait for a directory, and how long those before it had.
type fall struct {
	begun  time.Time
	before time.Duration
}

// action is a step with what was found out about it.
type action struct {
	step plan.Step
	skip bool // it is so already, or the process is gone
	// changes are what the journal holds for it; the last one is the step itself, those before it
	// are values that the kernel changes or forgets with it.
	changes []journal.Change
}

func (n *run) failed(i int, err error) *StepError {
	return &StepError{Step: n.actions[i].step, Index: i, Of: len(n.actions), Err: err}
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

// Guarded is what somebody needs who is to take back the changes of interfaces in our place.
type Guarded struct {
	Txn uint64 // of the journal
	// Devices are the interfaces.
	Devices []string
	Undo    []NetworkUndo
}

// NetworkUndo is one change with those that take it back; the last ones of a list are taken back first.
type NetworkUndo struct {
	Change netshape.Change
	Undo   []netshape.Change
}

// Phases of a step, for the order of changes: undone last to first.
const (
	phaseBefore = iota // values that the step makes the kernel change or forget
	phaseLate          // processes that were born into a directory that is about to be removed
	phaseStep
	phases
)

func seq(i, phase int) int { return i*phases + phase + 1 }

// preparer turns the steps of a run into actions with the originals that undoing needs. It changes nothing.
type preparer struct{ *run }

// file is the knob file of a change.
func file(c journal.Change) cgroup.File {
	f, _ := cgroup.FileOf(c.Target)
	return f
}

// dir is the directory that a change makes or removes.
func dir(c journal.Change) cgroup.Dir {
	d, _ := cgroup.DirOf(c.Target)
	return d
}

// wanted is what the plan wants a target to hold when it is done.
func (n *run) wanted(t change.Target) (plan.Wanted, bool) {
	if n.wants == nil {
		n.wants = n.plan.Wants()
	}
	w, ok := n.wants[t]
	return w, ok
}

// handed is which controllers changes so far have handed to the children of which directories. Their files
// there come with the controller, hold defaults, and go when it is taken away again.
type handed map[cgroup.Dir]map[string]bool

// membership is how far each process of the plan has got.
type membership struct {
	left   map[procfs.ID]int // moves that are still to do
	moved  map[procfs.ID][]plan.Step
	reason map[procfs.ID]string // of those that are skipped
}

// expect counts a move that is to come.
func (m *membership) expect(s plan.Step) {
	if m.left == nil {
		m.left, m.moved, m.reason = map[procfs.ID]int{}, map[procfs.ID][]plan.Step{}, map[procfs.ID]string{}
	}
	m.left[s.PID()]++
}

func (m *membership) skipped(id procfs.ID) bool { return m.reason[id] != "" }

// undoing takes changes back. It assumes nothing about which of them were made.
type undoing struct {
	*Runner
	txn    journal.Txn
	ctx    context.Context // its end stops a recovery; what a run takes back is not stopped
	undone int

	changes []journal.Change
	where   map[int]procfs.Process // the moved ones, when it was first asked for
	astray  []journal.Change       // moves whose place did not take the process back yet
	homes   *homes
}

// Units makes, ends and limits the units of systemd through which directories are made and written.
type Units interface {
	// Make starts a slice or a keeper of ours. One that runs already is fine.
	Make(ctx context.Context, unit string, d cgroup.Dir) error
	// Stop ends a unit of ours; one that is not there is fine. A slice in which others run is ErrBusy. It waits for a
	// scope.
	Stop(ctx context.Context, unit string) error
	Set(ctx context.Context, unit string, set []systemd.Assignment) error
}

func (n *run) read(c journal.Change) (string, error) {
	a, err := n.Actuators.Of(c.Target)
	if err != nil {
		return "", err
	}
	return a.Read(n.ctx, c.Addr)
}

// check reads a value once more.
func (n *run) check(c journal.Change, want string) error {
	a, err := n.Actuators.Of(c.Target)
	if err != nil {
		return err
	}
	return change.Check(n.ctx, a, c.Target, want)
}

// isValue says whether an actuator reads and writes what a change is about. Directories, places of processes and
// requests to the network have none.
func isValue(c journal.Change) bool {
	return c.Kind != cgroup.KindDir && c.Kind != cgroup.KindMembership && c.Kind != request.Kind
}

// lasts says whether the value that a step sets is compared again when all steps are done. One that is optional, or of
// a process, may be gone by then; what systemd keeps in files changes with the properties that are set later.
func (r *Runner) lasts(a action) bool {
	_, loaded := r.Actuators[a.step.Kind].(change.Loaded)
	return !a.skip && !a.step.Optional && isValue(a.own()) && a.step.Kind != cgroup.KindControllers &&
		a.step.PID() == procfs.ID{} && !loaded
}

// own is the change that a step makes, after those that are only for its undo.
func (a action) own() journal.Change { return a.changes[len(a.changes)-1] }

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
	return errors.Is(cause, change.ErrGone) ||
		s.Kind != unitfiles.KindDropIn && errors.Is(cause, systemd.ErrNoUnit) ||
		s.Old != "" && errors.Is(cause, cgroup.ErrNoKnob)
}

// homes says where processes go that are found in a directory which is about to be removed.
type homes struct {
	process map[int]map[string]string // pid → hierarchy → path
	group   map[string]map[string]string
}
