package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
)

// Units makes, ends and limits the units of systemd through which directories are made and written.
type Units interface {
	// Make starts a slice or a keeper of ours. One that runs already is fine.
	Make(ctx context.Context, unit string, d cgroup.Dir) error
	// Stop ends a unit of ours; one that is not there is fine. A slice in which others run is ErrBusy. A scope is waited for.
	Stop(ctx context.Context, unit string) error
	Set(ctx context.Context, unit string, set []systemd.Assignment) error
}

// UnitFiles is what systemd keeps in files about a unit because of bulkhead.
type UnitFiles interface {
	Overrides(unit string) ([]systemd.Override, error)
	RestoreOverrides(ctx context.Context, unit string, want []systemd.Override) error
	// DropIn gives our drop-in one line, or takes it away ("").
	DropIn(ctx context.Context, unit, line string) error
}

// settleTime bounds the wait until systemd has written a property to the kernel's file, or made a directory: it does
// so a moment after it has answered.
const settleTime = 30 * time.Second

// errNoSystemd says that a step goes through systemd, which could not be asked.
var errNoSystemd = errors.New("systemd could not be asked")

// makeUnit starts a unit and waits for its directory.
func (r *Runner) makeUnit(ctx context.Context, unit string, d cgroup.Dir) error {
	if r.Units == nil {
		return fmt.Errorf("start %s: %w", unit, errNoSystemd)
	}
	if err := r.Units.Make(ctx, unit, d); err != nil {
		return err
	}
	return settled(ctx, func() error {
		there, err := r.Dirs.Exists(d)
		if err == nil && !there {
			err = fmt.Errorf("start %s: systemd made no directory %q", unit, d)
		}
		return err
	})
}

// removeUnit ends a unit and with it its directory.
func (r *Runner) removeUnit(ctx context.Context, unit string, d cgroup.Dir) error {
	if r.Units == nil {
		return fmt.Errorf("stop %s: %w", unit, errNoSystemd)
	}
	if err := r.Units.Stop(ctx, unit); err != nil {
		return err
	}
	return settled(ctx, func() error {
		// systemd removes it a moment later; on v1 it may leave the one of a controller behind.
		if err := r.Dirs.Remove(d); err != nil && !errors.Is(err, cgroup.ErrGone) {
			return err
		}
		return nil
	})
}

// isScope says whether a unit is a command's of `run`. Its directory is not made or stopped by a plan: it is there as long as
// the command, or what that started, and goes with the last of them.
func isScope(unit string) bool { return systemd.TypeOf(unit) == "scope" }

// emptyScope sends home who was born into the scope of a command since the plan was made.
func (n *run) emptyScope(c journal.Change) error {
	u := undoing{Runner: n.Runner, txn: n.txn}
	for try := 1; ; try++ {
		late, err := u.leaving(c)
		switch {
		case errors.Is(err, cgroup.ErrGone), err == nil && len(late) == 0:
			return nil
		case err != nil:
			return err
		case try == evacuations:
			return fmt.Errorf("empty %s: processes keep being born in it, %d now", c.Unit, len(late))
		}
		if err := n.sendLate(&u, c, late); err != nil {
			return err
		}
	}
}

// setUnit sets properties of a unit.
func (r *Runner) setUnit(ctx context.Context, unit string, set []systemd.Assignment) error {
	if r.Units == nil {
		return fmt.Errorf("set properties of %s: %w", unit, errNoSystemd)
	}
	return r.Units.Set(ctx, unit, set)
}

// settled asks until there is no error, for a while.
func settled(ctx context.Context, is func() error) error {
	pause := time.Millisecond
	for end := time.Now().Add(settleTime); ; pause = min(2*pause, 100*time.Millisecond) {
		err := is()
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
		time.Sleep(pause)
	}
}

// prepareUnitWrite is prepareWrite for a file that systemd writes. It may not be there yet: systemd hands a controller
// down when the first property asks for it.
func (n *run) prepareUnitWrite(c *journal.Change) error {
	got, err := n.Files.Read(file(*c))
	row := n.row(*c)
	switch {
	case errors.Is(err, cgroup.ErrNoKnob), errors.Is(err, cgroup.ErrGone):
		if row.Row != nil {
			c.Old, c.Undo = row.Default, row.Default
		}
		return nil
	case err != nil:
		return err
	}
	c.Old, c.Undo = row.old(got), row.undo(got)
	return nil
}

// writeUnit sets the properties of a write and waits until the kernel's file shows the value.
func (n *run) writeUnit(c journal.Change) error {
	if err := n.setUnit(n.ctx, c.Unit, c.Set); err != nil {
		return err
	}
	return settled(n.ctx, func() error { return n.readBack(c, c.New) })
}

// prepareRevert reads what systemd holds of a unit, for the undo.
func (n *run) prepareRevert(c *journal.Change) error {
	if n.UnitFiles == nil {
		return fmt.Errorf("revert %s: %w", c.Unit, errNoSystemd)
	}
	var err error
	c.Overrides, err = n.UnitFiles.Overrides(c.Unit)
	return err
}

// revert gives a unit back what systemd was told of it before bulkhead.
func (n *run) revert(s plan.Step) error {
	var want []systemd.Override
	if s.Kept != nil {
		want = s.Kept.Overrides
	}
	if len(s.Settings) > 0 {
		now, err := n.UnitFiles.Overrides(s.Unit)
		if err != nil {
			return err
		}
		isOne := func(o systemd.Override) bool { return slices.Contains(s.Settings, o.Setting()) }
		others := slices.DeleteFunc(now, isOne)
		want = slices.Concat(others, slices.DeleteFunc(slices.Clone(want), func(o systemd.Override) bool { return !isOne(o) }))
	}
	return n.UnitFiles.RestoreOverrides(n.ctx, s.Unit, want)
}

func (n *run) dropIn(c journal.Change) error {
	if n.UnitFiles == nil {
		return fmt.Errorf("write drop-in of %s: %w", c.Unit, errNoSystemd)
	}
	return n.UnitFiles.DropIn(n.ctx, c.Unit, c.New)
}

// undoContext is for undoing, which goes on after a Ctrl-C.
func (u *undoing) undoContext() context.Context {
	if u.ctx != nil {
		return u.ctx
	}
	return context.Background()
}

// unset gives a unit the properties that it had. What they come to is asked no more: a unit of a group that has
// gone meanwhile has none.
func (u *undoing) unset(c journal.Change) error {
	if len(c.Unset) == 0 {
		return nil
	}
	u.undone++
	err := u.setUnit(u.undoContext(), c.Unit, c.Unset)
	if errors.Is(err, systemd.ErrNoUnit) {
		return nil
	}
	return err
}

// unrevert brings back what a revert has taken away.
func (u *undoing) unrevert(c journal.Change) error {
	if u.UnitFiles == nil {
		return fmt.Errorf("undo the revert of %s: %w", c.Unit, errNoSystemd)
	}
	u.undone++
	want := c.Overrides
	if u.txn.Boot != u.Boot {
		want = systemd.Lasting(want)
	}
	return u.UnitFiles.RestoreOverrides(u.undoContext(), c.Unit, want)
}

func (u *undoing) undropIn(c journal.Change) error {
	if u.UnitFiles == nil {
		return fmt.Errorf("undo the drop-in of %s: %w", c.Unit, errNoSystemd)
	}
	u.undone++
	return u.UnitFiles.DropIn(u.undoContext(), c.Unit, c.Undo)
}
