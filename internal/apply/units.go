package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// Units makes, ends and limits the units of systemd through which directories are made and written.
type Units interface {
	// Make starts a slice or a keeper of ours. One that runs already is fine.
	Make(ctx context.Context, unit string, d cgroup.Dir) error
	// Stop ends a unit of ours; one that is not there is fine. A slice in which others run is ErrBusy. It waits for a
	// scope.
	Stop(ctx context.Context, unit string) error
	Set(ctx context.Context, unit string, set []systemd.Assignment) error
}

// UnitFiles reads and writes what systemd keeps in files about units because of bulkhead. It counts once systemd has
// read it (Reload), which costs the same for one unit and for all.
type UnitFiles interface {
	Overrides(unit string) ([]systemd.Override, error)
	WriteOverrides(unit string, want []systemd.Override) error
	// WriteDropIn gives our drop-in one line, or takes it away ("").
	WriteDropIn(unit, line string) error
	// Reload has systemd read all that was written; units are those it was written about.
	Reload(ctx context.Context, units ...string) error
}

// unasked stands for a systemd that could not be asked: each step that needs it fails with that.
type unasked struct{}

func (unasked) Make(_ context.Context, unit string, _ cgroup.Dir) error {
	return fmt.Errorf("start %s: %w", unit, errNoSystemd)
}
func (unasked) Stop(_ context.Context, unit string) error {
	return fmt.Errorf("stop %s: %w", unit, errNoSystemd)
}
func (unasked) Set(_ context.Context, unit string, _ []systemd.Assignment) error {
	return fmt.Errorf("set properties of %s: %w", unit, errNoSystemd)
}
func (unasked) Overrides(unit string) ([]systemd.Override, error) {
	return nil, fmt.Errorf("look at what systemd holds of %s: %w", unit, errNoSystemd)
}
func (unasked) WriteOverrides(unit string, _ []systemd.Override) error {
	return fmt.Errorf("give %s back what it had: %w", unit, errNoSystemd)
}
func (unasked) WriteDropIn(unit, _ string) error {
	return fmt.Errorf("write drop-in of %s: %w", unit, errNoSystemd)
}
func (unasked) Reload(context.Context, ...string) error { return errNoSystemd }

// units and unitFiles are those of the Runner, or say why there are none.
func (r *Runner) units() Units {
	if r.Units == nil {
		return unasked{}
	}
	return r.Units
}

func (r *Runner) unitFiles() UnitFiles {
	if r.UnitFiles == nil {
		return unasked{}
	}
	return r.UnitFiles
}

// settleTime bounds the wait until systemd has written a property to the kernel's file, or made a directory: it does
// so a moment after it has answered.
const settleTime = 30 * time.Second

// errNoSystemd says that a step goes through systemd, which could not be asked.
var errNoSystemd = errors.New("systemd could not be asked")

// makeUnit starts a unit and waits for its directory.
func (r *Runner) makeUnit(ctx context.Context, unit string, d cgroup.Dir) error {
	if err := r.units().Make(ctx, unit, d); err != nil {
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
	if err := r.units().Stop(ctx, unit); err != nil {
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

// isScope says whether a unit is the scope of a command of `run`. No plan makes or stops its directory: it lasts as
// long as the command, or what that started.
func isScope(unit string) bool { return unitname.TypeOf(unit) == "scope" }

// emptyScope sends home who was born into the scope of a command since the plan was made.
func (n *run) emptyScope(c journal.Change) error {
	u := takeBack(n)
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

// settled asks until there is no error, for a while.
func settled(ctx context.Context, is func() error) error {
	pause := time.Millisecond
	for end := time.Now().Add(settleTime); ; pause = min(2*pause, 100*time.Millisecond) {
		err := is()
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// prepareUnitWrite is prepareWrite for a file that systemd writes. It may not be there yet: systemd hands a controller
// down when the first property asks for it.
func (n *preparer) prepareUnitWrite(c *journal.Change) error {
	_, err := n.prepareSet(c)
	if errors.Is(err, cgroup.ErrNoKnob) || errors.Is(err, cgroup.ErrGone) {
		err = nil
		if row := knob.RowOf(file(*c)); row != nil {
			c.Old, c.Undo = row.Default, row.Default
		}
	}
	return err
}

// writeUnit sets the properties of a write and waits until the kernel's file shows the value.
func (n *run) writeUnit(c journal.Change) error {
	if err := n.units().Set(n.ctx, c.Unit, c.Set); err != nil {
		return err
	}
	return settled(n.ctx, func() error { return n.check(c, c.New) })
}

// prepareRevert reads what systemd holds of a unit, for the undo.
func (n *preparer) prepareRevert(c *journal.Change) error {
	var err error
	c.Overrides, err = n.unitFiles().Overrides(c.Unit)
	return err
}

// revert gives a unit back what systemd was told of it before bulkhead.
func (n *run) revert(s plan.Step) error {
	var want []systemd.Override
	if s.Kept != nil {
		want = s.Kept.Overrides
	}
	if len(s.Settings) > 0 {
		now, err := n.unitFiles().Overrides(s.Unit)
		if err != nil {
			return err
		}
		isOne := func(o systemd.Override) bool { return slices.Contains(s.Settings, o.Setting()) }
		others := slices.DeleteFunc(now, isOne)
		other := func(o systemd.Override) bool { return !isOne(o) }
		want = slices.Concat(others, slices.DeleteFunc(slices.Clone(want), other))
	}
	return n.unitFiles().WriteOverrides(s.Unit, want)
}

// isUnitFile says whether a step writes files that systemd has to read.
func isUnitFile(s plan.Step) bool { return s.Op == plan.OpRevert || s.Op == plan.OpDropIn }

// reloadAfter has systemd read what the steps up to this one have written, unless the next step writes more: one
// reload for all units.
func (n *run) reloadAfter(i int) error {
	writes := func(i int) bool { return i >= 0 && i < len(n.actions) && isUnitFile(n.actions[i].step) }
	if !writes(i) || writes(i+1) {
		return nil
	}
	var units []string
	for ; writes(i); i-- {
		if !n.actions[i].skip {
			units = append(units, n.actions[i].step.Unit)
		}
	}
	if len(units) == 0 {
		return nil
	}
	return n.unitFiles().Reload(n.ctx, units...)
}

// reload has systemd read what undoing has written. It does so also when nothing was written: a recovery that was cut
// off before may have written the files already.
func (u *undoing) reload(undone []journal.Change) error {
	var units []string
	for _, c := range undone {
		if c.Op == journal.OpKeep || c.Op == journal.OpRevert || c.Op == journal.OpDropIn {
			units = append(units, c.Unit)
		}
	}
	if len(units) == 0 {
		return nil
	}
	return u.unitFiles().Reload(u.ctx, slices.Compact(units)...)
}

// unsetProperties gives a unit the properties that it had. It does not read them back: a unit of a group that has gone
// meanwhile has none.
func (u *undoing) unsetProperties(c journal.Change) error {
	if len(c.Unset) == 0 {
		return nil
	}
	u.undone++
	err := u.units().Set(u.ctx, c.Unit, c.Unset)
	// A unit that was masked, or whose file is refused, took no property in the first place. What it had before is
	// recorded.
	if errors.Is(err, systemd.ErrNoUnit) || errors.Is(err, systemd.ErrMasked) || errors.Is(err, systemd.ErrBadSetting) {
		return nil
	}
	return err
}

// unrevert brings back what a revert has taken away.
func (u *undoing) unrevert(c journal.Change) error {
	u.undone++
	want := c.Overrides
	if u.txn.Boot != u.Boot {
		want = systemd.Lasting(want)
	}
	return u.unitFiles().WriteOverrides(c.Unit, want)
}

func (u *undoing) undropIn(c journal.Change) error {
	u.undone++
	return u.unitFiles().WriteDropIn(c.Unit, c.Undo)
}
