package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd/unitfiles"
)

// evacuations is how often removing a directory is tried: each time the processes left in it may have
// forked, or the kernel's list of them may have been short.
const evacuations = 10

// step does one step and reads back what it wrote.
func (n *run) step(a action) error {
	if a.skip {
		return nil
	}
	c := a.own()
	var err error
	switch {
	case c.Kind == cgroup.KindDir && c.New != "":
		err = n.make(c)
	case c.Kind == cgroup.KindDir:
		err = n.remove(c)
	case c.Kind == cgroup.KindMembership:
		return n.move(a.step)
	case c.Kind == request.Kind:
		err = n.shape(c)
	case unitfiles.Keeps(c.Change):
		return nil // its change is in the journal
	case n.members.skipped(a.step.PID()):
	case a.step.Reclaim != nil:
		err = (&reclaimer{n}).lower(a.step, c)
	default:
		err = n.write(c)
	}
	if err == nil {
		n.result.Steps++
	}
	return err
}

func (n *run) make(c journal.Change) error {
	d := dir(c)
	if c.Unit != "" {
		return n.makeUnit(n.ctx, c.Unit, d)
	}
	err := n.Dirs.Make(d)
	if errors.Is(err, cgroup.ErrExists) {
		// Somebody else made it since the look a moment ago: no undo may remove it.
		n.actions[n.tried-1].changes = nil
		err = errors.Join(err, n.Journal.Forgo(n.txn.ID, []int{c.Seq}))
	}
	return err
}

// verify reads every value once more when all steps are done: a later write may have changed an
// earlier one, as cpu.idle resets cpu.shares. Where the plan wants a file to hold something, that
// counts, and not what was written last: a weight is made the default before cpu.idle takes it away.
func (n *run) verify() error {
	last := map[change.Target]int{}
	for i, a := range n.actions {
		if d, is := cgroup.DirOf(a.step.Target); is && a.step.Removes() {
			maps.DeleteFunc(last, func(_ change.Target, at int) bool { return file(n.actions[at].own()).Dir == d })
		} else if n.lasts(a) {
			last[a.own().Target] = i
		}
	}
	for _, i := range slices.Sorted(maps.Values(last)) {
		c := n.actions[i].own()
		want := cmp.Or(c.Do, c.New)
		if c.Unit != "" {
			want = c.New
		}
		if w, ok := n.wanted(c.Target); ok {
			want = w.Value
		}
		err := n.overwritten(n.ctx, c, n.check(c, want), func() error {
			a, err := n.Actuators.Of(c.Target)
			if err == nil {
				err = change.Set(n.ctx, a, c.Target, want)
			}
			return err
		})
		if err != nil {
			return n.failed(i, fmt.Errorf("when all steps were done: %w", err))
		}
	}
	return n.readShapes()
}

// remove removes a directory. Processes that were born into it since the plan was made go home first;
// the journal hears of them before they move.
func (n *run) remove(c journal.Change) error {
	d := dir(c)
	for _, kept := range n.kept {
		if kept.Hierarchy == d.Hierarchy && strings.HasPrefix(kept.Path, d.Path+"/") {
			return fmt.Errorf("remove %q: %q in it is still there", d, kept.Path)
		}
	}
	if isScope(c.Unit) {
		if err := n.emptyScope(c); err != nil {
			return err
		}
	}
	if c.Unit != "" {
		return n.removeUnit(n.ctx, c.Unit, d)
	}
	u := takeBack(n)
	for try := 1; ; try++ {
		busy := n.Dirs.Remove(d)
		if errors.Is(busy, cgroup.ErrGone) {
			return nil
		}
		if !errors.Is(busy, cgroup.ErrBusy) {
			return busy
		}
		late, err := u.leaving(c)
		if err != nil {
			return err
		}
		switch {
		case try < evacuations && len(late) == 0:
			continue
		case len(late) == 0:
			return fmt.Errorf("%w; no process is in it, so it holds a group that bulkhead did not make, or "+
				"something is mounted on it", busy)
		case try == evacuations:
			return fmt.Errorf("%w; processes keep being born in it, %d now", busy, len(late))
		}
		if err := n.sendLate(&u, c, late); err != nil {
			return err
		}
	}
}

// sendLate sends processes home that were born into a directory which is about to be removed; the journal hears of it
// first.
func (n *run) sendLate(u *undoing, c journal.Change, late []journal.Change) error {
	for i := range late {
		late[i].Seq = c.Seq - phaseStep + phaseLate
	}
	if err := n.Journal.Moves(n.txn.ID, late); err != nil {
		return err
	}
	n.addBefore(late)
	return u.evacuate(late)
}

// addBefore makes changes part of the step that is being done, whose own change stays last.
func (n *run) addBefore(changes []journal.Change) {
	a := &n.actions[n.tried-1]
	a.changes = slices.Insert(a.changes, len(a.changes)-1, changes...)
}

// gone is the reason for skipping a process that exited.
const gone = "has exited"

// skip leaves the rest of a process's steps out.
func (n *run) skip(id procfs.ID, comm, reason string) {
	if n.members.reason == nil {
		n.members.reason = map[procfs.ID]string{}
	}
	n.members.reason[id] = reason
	n.result.Skipped = append(n.result.Skipped, fmt.Sprintf("process %d (%s) %s", id.PID, comm, reason))
	if reason == gone {
		n.result.Exited++
	}
}

// move moves a process in one hierarchy: into all of its group's, or into none.
func (n *run) move(s plan.Step) error {
	id := s.PID()
	if n.members.skipped(id) {
		return nil
	}
	err := n.Members.Move(s.Dir(), id)
	if err != nil && s.Optional {
		err = n.moveAbove(s, err)
	}
	n.members.left[id]--
	switch {
	case err == nil:
		n.members.moved[id] = append(n.members.moved[id], s)
		n.result.Steps++
		// A pid may have been reused between the last check and the write; a process that is
		// alive under its start time was not.
		if n.members.left[id] == 0 && !n.Processes.Alive(id) {
			n.skip(id, s.Name, gone)
		}
		return nil
	case exited(err):
		n.skip(id, s.Name, gone)
		return nil
	case errors.Is(err, cgroup.ErrRealtime) && !s.Optional:
		n.skip(id, s.Name, "stays where it is: "+cgroup.ErrRealtime.Error())
		return n.moveBack(id)
	}
	return fmt.Errorf("process %d (%s): %w", id.PID, s.Name, err)
}

// moveAbove sends a process that is being released, and whose home does not take it any more, to the
// nearest directory above that does. The journal hears of each before it is tried.
func (n *run) moveAbove(s plan.Step, err error) error {
	for d := s.Dir(); d.Path != "/" && refusesProcess(err); {
		d = d.Parent()
		c := n.actions[n.tried-1].changes[0]
		c.New = d.Path
		if err := n.Journal.Moves(n.txn.ID, []journal.Change{c}); err != nil {
			return err
		}
		n.addBefore([]journal.Change{c})
		err = n.Members.Move(d, s.PID())
	}
	return err
}

// refusesProcess says whether a directory does not take a process, and another one may.
func refusesProcess(err error) bool {
	return errors.Is(err, cgroup.ErrGone) || errors.Is(err, cgroup.ErrBusy) || errors.Is(err, cgroup.ErrInvalid) ||
		errors.Is(err, cgroup.ErrRealtime)
}

// moveBack takes a process out of the hierarchies it has entered so far.
func (n *run) moveBack(id procfs.ID) error {
	u := takeBack(n)
	for _, s := range slices.Backward(n.members.moved[id]) {
		if _, err := u.place(cgroup.Dir{Hierarchy: s.Dir().Hierarchy, Path: s.Old}, id); err != nil {
			return err
		}
		n.result.Steps--
	}
	delete(n.members.moved, id)
	var seqs []int
	for i, a := range n.actions {
		if a.step.Moves() && a.step.PID() == id {
			seqs = append(seqs, seq(i, phaseStep))
		}
	}
	return n.Journal.Forgo(n.txn.ID, seqs)
}

// overwriteTime bounds for how long a value is written once more that systemd overwrites.
const overwriteTime = 250 * time.Millisecond

// set writes a value by its actuator and reads it back.
func (n *run) set(c journal.Change) error {
	a, err := n.Actuators.Of(c.Target)
	write := func() error { return change.Set(n.ctx, a, c.Target, cmp.Or(c.Do, c.New)) }
	if err == nil {
		err = write()
	}
	err = n.overwritten(n.ctx, c, err, write)
	if exited(err) {
		n.skip(n.actions[n.tried-1].step.PID(), c.Name, gone)
		return nil
	}
	return err
}

// overwritten has a file written again that does not hold what was written. A moment after systemd has answered, and
// when it reads units anew, it writes all files of a controller, also those that it has no setting for on a slice:
// memory.oom.group becomes 0 behind memory.max (cgroup_context_apply of core/cgroup.c).
func (r *Runner) overwritten(ctx context.Context, c journal.Change, err error, write func() error) error {
	if r.Units == nil || c.Kind != cgroup.KindFile || c.Unit != "" || !errors.Is(err, change.ErrDiffers) {
		return err
	}
	return settled(ctx, overwriteTime, write)
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
