package apply

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd/unitfiles"
)

// prepare reads the original of every step fresh from the kernel. Nothing is changed.
func (n *preparer) prepare() error {
	made := n.Journal.InBoot(n.Boot).Made()
	fresh := map[cgroup.Dir]bool{} // made by this very plan: no originals in there
	handed := handed{}
	for i, s := range n.plan.Steps {
		a := action{step: s}
		change := journal.Change{Seq: seq(i, phaseStep), Group: s.Group, Change: s.Change, Name: s.Name, Unit: s.Unit}
		var before []journal.Change
		var err error
		switch {
		case s.Makes():
			a.skip, err = n.prepareMake(made, &change)
			fresh[s.Dir()] = !a.skip && change.Old == ""
		case s.Removes():
			before, a.skip, err = n.prepareRemove(i, s.Dir())
			delete(fresh, s.Dir())
		case s.Moves():
			n.members.expect(s)
		case unitfiles.Keeps(s.Change):
			_, err = n.prepareSet(&change)
			change.New = change.Old
		case isValue(change):
			before, a.skip, err = n.prepareValue(i, &change, fresh[file(change).Dir], handed)
		}
		if err != nil && s.Optional {
			n.leaveOut(s, err)
			a.skip = true
		} else if err != nil {
			return err
		}
		if !a.skip {
			a.changes = append(before, change)
		}
		n.actions = append(n.actions, a)
	}
	return nil
}

// loadsBFQ says whether the file of a step comes with BFQ's module, and a step before has the kernel load that.
func (n *preparer) loadsBFQ(i int) bool {
	before := func(s plan.Step) bool { return s.File().Name == cgroup.QueueScheduler && s.New == blockdev.BFQ }
	return strings.Contains(n.plan.Steps[i].File().Name, ".bfq.") && slices.ContainsFunc(n.plan.Steps[:i], before)
}

// prepareMake accepts a directory that is there already only if bulkhead made it.
//
// A slice that systemd made by itself, for a unit that starts in it, is taken over, and stays when that is undone.
func (n *preparer) prepareMake(made map[cgroup.Dir]bool, c *journal.Change) (skip bool, err error) {
	d := dir(*c)
	there, err := n.Dirs.Exists(d)
	if err == nil && there && c.Unit != "" {
		c.Old = cgroup.There
		return false, nil
	}
	if err == nil && there && !made[d] {
		err = fmt.Errorf("make %q: %w, and bulkhead did not make it", d, cgroup.ErrExists)
	}
	return there, err
}

// prepareHandDown reads what a directory hands down now, and what its children hold of that.
func (n *preparer) prepareHandDown(i int, c *journal.Change) (before []journal.Change, skip bool, err error) {
	got, err := n.read(*c)
	if err != nil {
		return nil, false, err
	}
	if cgroup.Handed(&c.Change, got); c.New == c.Old {
		return nil, true, nil
	}
	before, err = n.prepareRestore(i)
	return before, false, err
}

// prepareFile reads what a write will replace, and what else the kernel changes with it.
func (n *preparer) prepareFile(i int, c *journal.Change) (before []journal.Change, err error) {
	wanted := c.Undo
	_, err = n.prepareSet(c)
	if errors.Is(err, cgroup.ErrNoKnob) && n.loadsBFQ(i) {
		return nil, nil // its first value is the plan's
	}
	row := knob.RowOf(file(*c))
	if err != nil || row == nil {
		return nil, err
	}
	if c.Undo == "" && row.Version == 2 && row.Controller == "cpuset" {
		c.Undo = wanted // by number what the empty list stands for
	}
	for _, name := range row.Resets {
		also, err := n.capture(i, file(*c).Dir, name)
		if err != nil && !errors.Is(err, cgroup.ErrNoKnob) {
			return nil, err
		}
		before = append(before, also...)
	}
	return before, nil
}

// prepareRestore reads what the children of a directory hold in the files of controllers that are about to be
// taken away: the kernel forgets it. The plan says which files, in the order in which an undo writes them.
func (n *preparer) prepareRestore(i int) ([]journal.Change, error) {
	s := n.plan.Steps[i]
	var before []journal.Change
	for _, r := range slices.Backward(s.Restore) { // undone last to first
		c := journal.Change{Seq: seq(i, phaseBefore), Group: s.Group}
		c.Target, c.Old, c.Undo = r.Target(), r.Value, r.Value
		_, err := n.prepareSet(&c)
		if errors.Is(err, cgroup.ErrNoKnob) {
			err, c.Old, c.Undo = nil, r.Value, r.Value
		}
		if errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		c.New = c.Old
		before = append(before, c)
	}
	return before, nil
}

// prepareRemove reads every knob of a directory: the kernel forgets them with it.
func (n *preparer) prepareRemove(i int, d cgroup.Dir) (before []journal.Change, skip bool, err error) {
	names, err := n.Dirs.Files(d)
	if errors.Is(err, cgroup.ErrGone) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, name := range names {
		if name != cgroup.SubtreeControl && knob.RowOf(d.File(name)) == nil {
			continue
		}
		also, err := n.capture(i, d, name)
		switch {
		case errors.Is(err, cgroup.ErrGone):
			return nil, true, nil
		case errors.Is(err, cgroup.ErrNoKnob) || errors.Is(err, cgroup.ErrInvalid):
			continue // listed, but not offered by this kernel: memory.memsw without swap accounting
		case err != nil:
			return nil, false, err
		}
		before = append(before, also...)
	}
	return append(before, n.captureOwners(i, d)...), false, nil
}

// capture reads a file that a step changes without writing to it, as changes that only undoing needs.
func (n *preparer) capture(i int, d cgroup.Dir, name string) ([]journal.Change, error) {
	got, err := n.Files.Read(d.File(name))
	if err != nil {
		return nil, err
	}
	c := journal.Change{Seq: seq(i, phaseBefore), Group: n.plan.Steps[i].Group}
	c.Target = d.File(name).Target()
	if c.Kind == cgroup.KindControllers {
		list, err := n.read(c)
		if c.Change = cgroup.Hands(c.Target, list); list == "" || err != nil {
			return nil, err
		}
		return []journal.Change{c}, nil
	}
	row := knob.RowOf(d.File(name))
	if row == nil {
		c.Old, c.New, c.Undo = got, got, got
		return []journal.Change{c}, nil
	}
	keys := []string{""}
	if row.PerDevice {
		keys = row.Devices(got)
	}
	var changes []journal.Change
	for _, key := range keys {
		value := got
		if key != "" {
			value = row.Line(got, key)
		}
		value = row.Parse(value)
		c.Target = cgroup.File{Dir: d, Name: name, Key: key}.Target()
		c.Old, c.New, c.Undo = value, value, value
		changes = append(changes, c)
	}
	return changes, nil
}

// captureOwners reads what of a directory somebody beside root owns, as changes that only undoing needs: the kernel
// forgets it with the directory.
func (n *preparer) captureOwners(i int, d cgroup.Dir) (before []journal.Change) {
	owners := n.Actuators[cgroup.KindOwner]
	if owners == nil {
		return nil
	}
	version := 1
	if d.Hierarchy == unified {
		version = 2
	}
	for _, name := range cgroup.OwnerFiles(version) {
		c := journal.Change{Seq: seq(i, phaseBefore), Group: n.plan.Steps[i].Group}
		c.Target = d.File(name).Target()
		text, err := owners.Read(n.ctx, c.Addr)
		if err != nil {
			continue // gone, or where owners are not known
		}
		for entry := range strings.SplitSeq(text, ", ") {
			if !strings.HasPrefix(entry, "0:0 ") && !strings.Contains(entry, " 0:0 ") {
				c.Old, c.New, c.Undo = text, text, text
				before = append(before, c)
				break
			}
		}
	}
	return before
}

// prepareUnitWrite is prepareWrite for a file that systemd writes. It may not be there yet: systemd hands a controller
// down when the first property asks for it.
func (n *preparer) prepareUnitWrite(c *journal.Change) error {
	undo := c.Undo
	_, err := n.prepareSet(c)
	c.Undo = undo
	if errors.Is(err, cgroup.ErrNoKnob) || errors.Is(err, cgroup.ErrGone) {
		err = nil
		if row := knob.RowOf(file(*c)); row != nil {
			c.Old = row.Default
		}
	}
	return err
}

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
