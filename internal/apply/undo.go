package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape/request"
)

// Recover undoes the transaction that a crash cut off; done is false when there is none. Of a transaction of an
// earlier boot it takes back only what systemd keeps in files: the rest went with that boot. After a crash in here,
// call it again.
func (r *Runner) Recover(ctx context.Context) (result Result, done bool, err error) {
	t, pending := r.Journal.Pending()
	if !pending {
		return Result{}, false, nil
	}
	result.Txn = t.ID
	changes := t.Changes
	if t.Boot != r.Boot {
		changes = r.lastingBoots(changes)
	}
	if t.Boot != r.Boot && len(changes) == 0 {
		const booted = "the host has been booted since, so nothing was left to undo"
		err := r.close(t, &result, journal.Undone, journal.CutOff+booted)
		return result, err == nil, err
	}
	u := undoing{Runner: r, txn: *t, ctx: ctx}
	left, errs := u.all(changes)
	result.Steps = u.undone
	if err := ctx.Err(); err != nil {
		return result, false, fmt.Errorf("undo interrupted %s: %w", t.Verb, context.Cause(ctx))
	}
	if len(errs) == 0 {
		err := r.close(t, &result, journal.Undone, journal.CutOff+"undone")
		return result, err == nil, err
	}
	failure := errors.Join(errs...)
	if err := r.Journal.Leave(t.ID, left); err != nil {
		return result, false, errors.Join(failure, err)
	}
	err = r.close(t, &result, journal.Failed, journal.CutOff+"could not undo: "+failure.Error())
	return result, false, errors.Join(fmt.Errorf("undo interrupted %s: %w", t.Verb, failure), err)
}

// lastingBoots gives those of changes of an earlier boot that have not ended with it.
func (r *Runner) lastingBoots(changes []journal.Change) (left []journal.Change) {
	for _, c := range changes {
		if a, lasts := r.Actuators[c.Kind].(change.Lasting); lasts {
			c.Change = a.AfterBoot(c.Change)
			left = append(left, c)
		}
	}
	return left
}

// close ends a recovered transaction and adds it to the history.
func (r *Runner) close(t *journal.Txn, result *Result, outcome, note string) error {
	if err := r.Journal.End(t.ID, outcome, note); err != nil {
		return err
	}
	// One that was to leave no entry does: somebody may have been told to undo it, and finds here that it is.
	entry, err := r.Journal.Record(journal.EntryOf(t, outcome, note))
	if err != nil { // no failure: the next lock of the state directory writes the entry
		result.Notes = append(result.Notes, fmt.Sprintf("the history could not be written yet: %v", err))
		return nil
	}
	result.Entry = entry
	return nil
}

// takeBack undoes what a run did, also after the run's context has ended.
func takeBack(n *run) undoing {
	return undoing{Runner: n.Runner, txn: n.txn, ctx: context.WithoutCancel(n.ctx)}
}

// all takes changes back, the last one first, and returns those that could not be. A change that the
// kernel refuses now may be taken in a second pass, when others have made way: the order of
// undoing is that of doing reversed, but how far things had got is not known.
func (u *undoing) all(changes []journal.Change) (left []journal.Change, errs []error) {
	u.changes, u.where, u.astray = changes, nil, nil
	todo := lasting(changes)
	slices.Reverse(todo)
	for {
		left, errs = nil, nil
		for _, c := range todo {
			if u.ctx.Err() != nil {
				return left, errs
			}
			if err := u.one(c); err != nil {
				left, errs = append(left, c), append(errs, err)
				continue
			}
			if u.AfterUndo != nil {
				u.AfterUndo(c)
			}
		}
		if err := u.reload(todo); err != nil {
			left = slices.Clone(todo)
			slices.Reverse(left)
			return left, append(errs, err)
		}
		if len(left) == 0 || len(left) == len(todo) {
			if len(u.astray) > 0 {
				left, errs = u.bringHome(left, errs)
			}
			slices.Reverse(left)
			return left, errs
		}
		todo = left
	}
}

// lasting puts changes into the order of doing, without what was written into directories made
// before, or into files of controllers handed down before: that goes away with them. Only controllers
// that a new directory hands down do not: one above it cannot take them away while it does (EBUSY).
func lasting(changes []journal.Change) []journal.Change {
	sorted := slices.Clone(changes)
	slices.SortStableFunc(sorted, func(a, b journal.Change) int { return cmp.Compare(a.Seq, b.Seq) })
	fresh := map[cgroup.Dir]bool{}
	handed := handed{}
	return slices.DeleteFunc(sorted, func(c journal.Change) bool {
		handed.note(c)
		if d, is := cgroup.DirOf(c.Target); is {
			fresh[d] = c.Old == "" && c.New != ""
		}
		f, is := cgroup.FileOf(c.Target)
		return is && c.Kind != cgroup.KindControllers && (fresh[f.Dir] || handed.brings(c))
	})
}

// one takes one change back, if it was made.
func (u *undoing) one(c journal.Change) error {
	switch {
	case c.Kind == cgroup.KindDir && c.New != "":
		return u.unmake(c)
	case c.Kind == cgroup.KindDir:
		return u.makeAgain(c)
	case c.Kind == cgroup.KindMembership:
		return u.unmove(c)
	case c.Kind == request.Kind:
		return u.unshape(c)
	}
	if err := u.room(c); err != nil {
		return err
	}
	if c.Unit != "" {
		return u.unsetProperties(c)
	}
	return u.unset(c)
}

// makeAgain makes a directory that was removed.
func (u *undoing) makeAgain(c journal.Change) error {
	if isScope(c.Unit) {
		return nil // the agent puts who was in it into the group again
	}
	if c.Unit != "" {
		u.undone++
		return u.makeUnit(u.ctx, c.Unit, dir(c))
	}
	err := u.Dirs.Make(dir(c))
	if errors.Is(err, cgroup.ErrExists) {
		return nil
	}
	u.undone++
	return err
}

// unmove sends a process back, unless it has left the place it was moved to.
func (u *undoing) unmove(c journal.Change) error {
	if u.where == nil {
		if err := u.locate(); err != nil {
			return err
		}
	}
	id, home := moved(c)
	p, running := u.where[id.PID]
	if !running || id.Start != 0 && p.Start != id.Start || p.Cgroups[home.Hierarchy] != c.New {
		return nil
	}
	u.undone++
	at, err := u.place(home, id)
	if err != nil {
		return err
	}
	p.Cgroups[home.Hierarchy] = home.Path // where the plan's move before this one, if any, had put it
	u.astray = slices.DeleteFunc(u.astray, func(s journal.Change) bool { return s.Target == c.Target })
	if at != home {
		u.astray = append(u.astray, c)
	}
	return nil
}

// moved is the process of a move, and where it was.
func moved(c journal.Change) (id procfs.ID, from cgroup.Dir) {
	id, hierarchy, _ := cgroup.Member(c.Target)
	return id, cgroup.Dir{Hierarchy: hierarchy, Path: c.Old}
}

// bringHome tries to move processes home again whose home refused them: a cpuset that was made anew takes nobody until
// it has CPUs, which it gets only once the one above it has them. A process that is refused again stays in the nearest
// group above.
func (u *undoing) bringHome(left []journal.Change, errs []error) ([]journal.Change, []error) {
	for _, c := range u.astray {
		id, home := moved(c)
		if _, err := u.place(home, id); err != nil {
			left, errs = append(left, c), append(errs, err)
		}
	}
	return left, errs
}

// locate looks where the moved processes are. It asks /proc and not the directories: v1's cgroup.procs
// leaves processes out while others fork in the same directory (pidlist_array_load in
// kernel/cgroup/cgroup-v1.c; measured on 6.18: an old process is missing in one read of twenty).
func (u *undoing) locate() error {
	pids := []int{} // nil would be every process
	for _, c := range u.changes {
		if id, _, is := cgroup.Member(c.Target); is {
			pids = append(pids, id.PID)
		}
	}
	procs, err := u.Processes.Processes(procfs.Options{PIDs: pids})
	if err != nil {
		return fmt.Errorf("look where the processes are: %w", err)
	}
	u.where = make(map[int]procfs.Process, len(procs))
	for _, p := range procs {
		p.Cgroups = maps.Clone(p.Cgroups) // processes of the same groups share one
		u.where[p.PID] = p
	}
	return nil
}

// place puts a process into a directory, or into the nearest one above that is there and takes it.
// It says which one that was. A process that has exited is fine.
func (u *undoing) place(d cgroup.Dir, id procfs.ID) (cgroup.Dir, error) {
	for {
		err := u.Members.Move(d, id)
		switch {
		case err == nil || exited(err):
			return d, nil
		case d.Path == "/":
			return d, err
		case !refusesProcess(err):
			return d, err
		}
		d = d.Parent()
	}
}

// unmake removes a directory; whoever is in it goes home first.
func (u *undoing) unmake(c journal.Change) error {
	if c.Old != "" { // systemd had made it already
		return nil
	}
	d := dir(c)
	if c.Unit != "" {
		there, err := u.Dirs.Exists(d)
		if err != nil || !there {
			return err
		}
		u.undone++
		return u.removeUnit(u.ctx, c.Unit, d)
	}
	for try := 1; ; try++ {
		late, err := u.leaving(c)
		if errors.Is(err, cgroup.ErrGone) {
			return nil
		}
		if err == nil {
			err = u.evacuate(late)
		}
		if err != nil {
			return err
		}
		err = u.Dirs.Remove(d)
		if errors.Is(err, cgroup.ErrGone) {
			return nil
		}
		if !errors.Is(err, cgroup.ErrBusy) || try == evacuations {
			u.undone++
			return err
		}
	}
}

// evacuate does the moves that leaving gave.
func (u *undoing) evacuate(moves []journal.Change) error {
	for _, m := range moves {
		id, from := moved(m)
		if _, err := u.place(cgroup.Dir{Hierarchy: from.Hierarchy, Path: m.New}, id); err != nil {
			return err
		}
	}
	return nil
}

// leaving is the moves that take everybody in a directory home. Start times are not known here:
// the pids were read a moment ago from the directory itself.
func (u *undoing) leaving(c journal.Change) ([]journal.Change, error) {
	d := dir(c)
	pids, err := u.Members.Procs(d)
	if err != nil || len(pids) == 0 {
		return nil, err
	}
	if u.homes == nil {
		u.homes = u.findHomes()
	}
	moves := make([]journal.Change, len(pids))
	for i, pid := range pids {
		moves[i].Group = c.Group
		moves[i].Target = cgroup.Membership(procfs.ID{PID: pid}, d.Hierarchy)
		moves[i].Old, moves[i].New = d.Path, u.homes.of(pid, c.Group, d.Hierarchy)
	}
	return moves, nil
}

// findHomes collects the homes that the journal knows, and those of the transaction itself.
func (u *undoing) findHomes() *homes {
	known, group := u.Journal.InBoot(u.Boot).Homes()
	h := &homes{process: map[int]map[string]string{}, group: group}
	add := func(id procfs.ID, hierarchy, from string) {
		if h.process[id.PID] == nil {
			h.process[id.PID] = map[string]string{}
		}
		if h.process[id.PID][hierarchy] == "" {
			h.process[id.PID][hierarchy] = from
		}
	}
	for id, from := range known {
		if !u.Processes.Alive(id) {
			continue // the pid may be another process's by now
		}
		for hierarchy, p := range from {
			add(id, hierarchy, p)
		}
	}
	made := u.Journal.InBoot(u.Boot).Made()
	for _, c := range u.txn.Changes {
		if c.Kind != cgroup.KindMembership || c.Old == "" {
			continue
		}
		if id, from := moved(c); !made[from] {
			add(id, from.Hierarchy, from.Path)
		}
	}
	return h
}

// of is the home of a process: its own, else that of its group or of the nearest group above, else
// the hierarchy's root.
func (h *homes) of(pid int, group, hierarchy string) string {
	if home := h.process[pid][hierarchy]; home != "" {
		return home
	}
	for group != "" && group != "." && group != "/" {
		if home := h.group[group][hierarchy]; home != "" {
			return home
		}
		group = path.Dir(group)
	}
	return "/"
}
