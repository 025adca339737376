package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal"
	"bulkhead/internal/knob"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
	"bulkhead/internal/systemd/unitname"
)

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

// units are those of the Runner, or say why there are none.
func (r *Runner) units() Units {
	if r.Units == nil {
		return unasked{}
	}
	return r.Units
}

// settleTime bounds the wait until systemd has written a property to the kernel's file, or made a directory: it does
// so a moment after it has answered.
const settleTime = 30 * time.Second

// errNoSystemd says that a step goes through systemd, which could not be asked.
var errNoSystemd = unitfiles.ErrMute

// makeUnit starts a unit and waits for its directory.
func (r *Runner) makeUnit(ctx context.Context, unit string, d cgroup.Dir) error {
	if err := r.units().Make(ctx, unit, d); err != nil {
		return err
	}
	return settled(ctx, settleTime, func() error {
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
	return settled(ctx, settleTime, func() error {
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

// settled asks until there is no error, for a time.
func settled(ctx context.Context, within time.Duration, is func() error) error {
	pause := time.Millisecond
	for end := time.Now().Add(within); ; pause = min(2*pause, 100*time.Millisecond) {
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

// writeUnit sets the properties of a write and waits until the kernel's file shows the value.
func (n *run) writeUnit(c journal.Change) error {
	set, err := systemd.Assignments(c.Do)
	if err == nil {
		err = n.units().Set(n.ctx, c.Unit, set)
	}
	if err != nil {
		return err
	}
	return settled(n.ctx, settleTime, func() error {
		err := n.check(c, c.New)
		if errors.Is(err, change.ErrDiffers) && (lifts(c, c.New) || counts(set)) {
			err = n.put(n.ctx, c, c.New)
		}
		return err
	})
}

// counts says whether properties have systemd make the directory of a unit alone: then the file in it is written here.
func counts(set []systemd.Assignment) bool {
	return len(set) == 1 && slices.Contains(systemd.AccountingSettings(), set[0].Name)
}

// lifts says whether a value takes the limit of one device away.
func lifts(c journal.Change, value string) bool {
	row := knob.RowOf(file(c))
	return row != nil && row.PerDevice && value == row.Default
}

// put writes the file of a unit past systemd. That leaves the line of a device where IODeviceWeight= names the device
// no more (cgroup_context_apply of core/cgroup.c writes what a unit has, and there it has nothing).
func (r *Runner) put(ctx context.Context, c journal.Change, value string) error {
	a, err := r.Actuators.Of(c.Target)
	if err == nil {
		err = change.Set(ctx, a, c.Target, value)
	}
	return err
}

// loader is who has to read what a change writes; nil for values that count at once.
func (r *Runner) loader(c journal.Change) change.Loader {
	if a, is := r.Actuators[c.Kind].(change.Loaded); is {
		return a.Loader()
	}
	return nil
}

// reloadAfter has what the steps up to this one have written read, unless the next step writes more: once for all.
func (n *run) reloadAfter(i int) error {
	writes := func(i int) change.Loader {
		if i < 0 || i >= len(n.actions) || n.actions[i].skip ||
			unitfiles.Keeps(n.actions[i].own().Change) {
			return nil
		}
		return n.loader(n.actions[i].own())
	}
	loader := writes(i)
	if loader == nil || writes(i+1) == loader {
		return nil
	}
	var addrs []string
	for ; writes(i) == loader; i-- {
		addrs = append(addrs, n.actions[i].own().Addr)
	}
	return loader.Reload(n.ctx, addrs...)
}

// reload has what undoing has written read. It does so also when nothing was written: a recovery that was cut off
// before may have written the files already.
func (u *undoing) reload(undone []journal.Change) error {
	var loaders []change.Loader
	addrs := map[change.Loader][]string{}
	for _, c := range undone {
		l := u.loader(c)
		if l == nil {
			continue
		}
		if addrs[l] == nil {
			loaders = append(loaders, l)
		}
		addrs[l] = append(addrs[l], c.Addr)
	}
	var errs []error
	for _, l := range loaders {
		errs = append(errs, l.Reload(u.ctx, slices.Compact(addrs[l])...))
	}
	return errors.Join(errs...)
}

// unsetProperties gives a unit the properties that it had. It does not read them back: a unit of a group that has gone
// meanwhile has none.
func (u *undoing) unsetProperties(c journal.Change) error {
	set, err := systemd.Assignments(c.Undo)
	if err != nil || len(set) == 0 {
		return err
	}
	u.undone++
	err = u.units().Set(u.ctx, c.Unit, set)
	if err == nil && lifts(c, c.Old) {
		if err = u.put(u.ctx, c, c.Old); errors.Is(err, change.ErrGone) || errors.Is(err, cgroup.ErrNoKnob) {
			err = nil
		}
	}
	// A unit that was masked, or whose file is refused, took no property in the first place. What it had before is
	// recorded.
	if errors.Is(err, systemd.ErrNoUnit) || errors.Is(err, systemd.ErrMasked) || errors.Is(err, systemd.ErrBadSetting) {
		return nil
	}
	return err
}
