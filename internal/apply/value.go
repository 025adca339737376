package apply

import (
	"cmp"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
)

// prepareValue reads the original of a value and what the kernel changes with it.
func (n *preparer) prepareValue(i int, c *journal.Change, fresh bool, handed handed) (
	before []journal.Change, skip bool, err error,
) {
	switch {
	case handed.brings(*c): // the file is not there yet, and has no original
	case fresh && c.Kind == cgroup.KindControllers:
		cgroup.Handed(&c.Change, "")
	case fresh:
	case c.Unit != "":
		err = n.prepareUnitWrite(c)
	case c.Kind == cgroup.KindControllers:
		before, skip, err = n.prepareHandDown(i, c)
	case c.Kind == cgroup.KindFile:
		before, err = n.prepareFile(i, c)
	default:
		skip, err = n.prepareSet(c)
	}
	handed.note(*c)
	return before, skip, err
}

// prepareSet reads the original of a value that has an actuator. A process that has exited needs nothing.
func (n *preparer) prepareSet(c *journal.Change) (skip bool, err error) {
	got, err := n.read(*c)
	if exited(err) {
		return true, nil
	}
	if err == nil {
		c.Old, c.Undo = got, got
	}
	return false, err
}

func (n *run) read(c journal.Change) (string, error) {
	a, err := n.Actuators.Of(c.Target)
	if err != nil {
		return "", err
	}
	return a.Read(n.ctx, c.Addr)
}

// set writes a value by its actuator and reads it back.
func (n *run) set(c journal.Change) error {
	a, err := n.Actuators.Of(c.Target)
	if err == nil {
		err = change.Set(n.ctx, a, c.Target, cmp.Or(c.Do, c.New))
	}
	if exited(err) {
		n.skip(n.actions[n.tried-1].step.PID, c.Name, gone)
		return nil
	}
	return err
}

// unset has the actuator of a value give the original back.
func (u *undoing) unset(c journal.Change) error {
	a, err := u.Actuators.Of(c.Target)
	if err != nil {
		return err
	}
	undone, err := a.Undo(u.ctx, c.Change)
	if undone {
		u.undone++
	}
	return err
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

// isLasting says whether the value that a step sets is compared again when all steps are done. One that is optional, or
// of a process, may be gone by then.
func (a action) isLasting() bool {
	if a.skip || a.step.Optional || a.step.File == cgroup.SubtreeControl {
		return false
	}
	return a.step.Op == plan.OpWrite || a.step.Op == plan.OpSet
}

// own is the change that a step makes, after those that are only for its undo.
func (a action) own() journal.Change { return a.changes[len(a.changes)-1] }
