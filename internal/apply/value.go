package apply

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
)

// hasActuator says whether an actuator reads and writes the value of a change. Controllers that a directory hands
// down, and files that systemd writes, have none.
func hasActuator(c journal.Change) bool {
	return c.At().Kind != "" && c.File != subtreeControl && c.Unit == ""
}

// prepareValue reads the original of a value and what the kernel changes with it.
func (n *preparer) prepareValue(i int, c *journal.Change, fresh bool, handed handed) (
	before []journal.Change, skip bool, err error,
) {
	switch {
	case handed.brings(*c): // the file is not there yet, and has no original
	case fresh && c.File == subtreeControl:
		newSubtree(c, "")
	case fresh:
	case c.Unit != "":
		err = n.prepareUnitWrite(c)
	case c.File == subtreeControl:
		before, skip, err = n.prepareHandDown(i, c)
	case c.At().Kind == cgroup.KindFile:
		before, err = n.prepareFile(i, c)
	default:
		skip, err = n.prepareSet(c)
	}
	handed.note(*c)
	return before, skip, err
}

// prepareSet reads the original of a value that has an actuator. A process that has exited needs nothing.
func (n *preparer) prepareSet(c *journal.Change) (skip bool, err error) {
	a, err := n.Actuators.Of(c.At())
	if err != nil {
		return false, err
	}
	got, err := a.Read(n.ctx, c.At().Addr)
	if c.PID != (procfs.ID{}) && exited(err) {
		return true, nil
	}
	if err == nil {
		c.Old, c.Undo = got, got
	}
	return false, err
}

// set writes a value by its actuator and reads it back.
func (n *run) set(c journal.Change) error {
	if n.members.skipped(c.PID) {
		return nil
	}
	a, err := n.Actuators.Of(c.At())
	if err == nil {
		err = change.Set(n.ctx, a, c.At(), c.New)
	}
	if c.PID != (procfs.ID{}) && exited(err) {
		n.skip(c.PID, c.Comm, gone)
		return nil
	}
	return err
}

// unset has the actuator of a value give the original back.
func (u *undoing) unset(c journal.Change) error {
	a, err := u.Actuators.Of(c.At())
	if err != nil {
		return err
	}
	undone, err := a.Undo(u.ctx, change.Change{Target: c.At(), Old: c.Old, New: c.New, Undo: c.Undo})
	if undone {
		u.undone++
	}
	return err
}

// check reads a value once more.
func (n *run) check(c journal.Change, want string) error {
	a, err := n.Actuators.Of(c.At())
	if err != nil {
		return err
	}
	return change.Check(n.ctx, a, c.At(), want)
}

// isLasting says whether the value that a step sets is compared again when all steps are done. One that is optional, or
// of a process, may be gone by then.
func (a action) isLasting() bool {
	if a.skip || a.step.Optional || a.step.File == subtreeControl {
		return false
	}
	return a.step.Op == plan.OpWrite || a.step.Op == plan.OpSet
}
