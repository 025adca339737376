package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/internal/linux/procfs"
)

// Procs gives the processes directly in d, sorted, each once. A process outside our pid namespace,
// which the kernel shows as 0, is left out. On v2 a threaded group has no such list (ErrInvalid).
func (t *Tree) Procs(d Dir) ([]int, error) { return readPIDs(t, d, procsFile) }

// Tasks gives the threads directly in d, sorted.
func (t *Tree) Tasks(d Dir) ([]int, error) {
	if t.Version(d) == 1 {
		return readPIDs(t, d, tasksFile)
	}
	return readPIDs(t, d, threadsFile)
}

func readPIDs(t *Tree, d Dir, name string) ([]int, error) {
	text, err := t.Read(d.File(name))
	if err != nil {
		return nil, err
	}
	return parsePIDs(text)
}

// parsePIDs parses cgroup.procs. v1 promises neither order nor uniqueness.
func parsePIDs(text string) ([]int, error) {
	var pids []int
	for line := range strings.Lines(text) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || pid < 0 {
			return nil, fmt.Errorf("parse list of processes: bad line %q", line)
		}
		if pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Move puts a whole process, all its threads, into d. A process that exited, or whose pid belongs to another process by
// now (a Start that is not 0 is compared before the write, and the number watched until after it), gives ErrExited; a
// process that got the number in between and was moved instead is put back where it was born. A process with a
// real-time thread cannot enter a v1 cpu group without a real-time budget: ErrRealtime, and nothing moved. Other
// refusals: ErrInvalid (an unseeded cpuset, a kernel thread), ErrBusy (v2: the group has controllers enabled for its
// children), ErrGone.
func (t *Tree) Move(d Dir, id procfs.ID) error { return t.MoveAll(id, nil, nil, d) }

// MoveAll puts a process into one directory of each of several hierarchies, or into none: after a refusal it goes
// back to where it was, as from says by hierarchy. Same says that until now nobody else can have had the number of the
// process, for a caller who watches it already; nil has it watched here. Errors are those of Move, with that of going
// back.
func (t *Tree) MoveAll(id procfs.ID, same func() bool, from map[string]string, dirs ...Dir) error {
	if len(dirs) == 0 {
		return nil
	}
	switch {
	case id.PID <= 0: // the kernel would take 0 for the writer itself
		return &Error{Op: moveOp(id), Path: t.Abs(dirs[0]), Kind: ErrInvalid, Cause: errors.New("not a process number")}
	case id.Start == 0:
		same = func() bool { return true }
	case same == nil:
		hold, err := t.options.Processes.Hold(id)
		if errors.Is(err, procfs.ErrExited) {
			return &Error{Op: moveOp(id), Path: t.Abs(dirs[0]), Kind: ErrExited}
		}
		if err != nil {
			return fmt.Errorf("%s %q: %w", moveOp(id), t.Abs(dirs[0]), err)
		}
		defer hold.Close()
		same = hold.Same
	}
	m := mover{Tree: t, id: id, same: same, from: from}
	for i, d := range dirs {
		err := m.enter(d, id)
		if err == nil && i < len(dirs)-1 {
			continue
		}
		switch alive := same(); {
		case err == nil && alive:
			return nil
		case err == nil:
			return errors.Join(&Error{Op: moveOp(id), Path: t.Abs(d), Kind: ErrExited}, m.expel(dirs))
		case !alive && i > 0:
			return errors.Join(err, m.expel(dirs[:i]))
		}
		return errors.Join(err, m.goBack(dirs[:i]))
	}
	return nil
}

// mover moves one process.
type mover struct {
	*Tree
	id   procfs.ID
	same func() bool       // until now nobody else can have had its number
	from map[string]string // where it was, by hierarchy
}

// goBack puts the process out of directories that it has entered, the last first, to where it was. One that
// exits on the way is nowhere, and one without a known place stays.
func (m mover) goBack(entered []Dir) (err error) {
	for _, d := range slices.Backward(entered) {
		if back, known := m.from[d.Hierarchy]; known && m.same() {
			if undo := m.enter(Dir{Hierarchy: d.Hierarchy, Path: back}, m.id); !errors.Is(undo, ErrExited) {
				err = errors.Join(err, undo)
			}
		}
	}
	return err
}

func moveOp(id procfs.ID) string { return fmt.Sprintf("move process %d into", id.PID) }

// Mistaken counts the processes that were moved because they had just been given the number of another one. Each was
// put back.
func (t *Tree) Mistaken() int64 { return t.mistaken.Load() }

// expel takes the process that has the number by now out of the directories again, to where it was born. Nothing is
// to be done when nobody has the number, or when it is in none of them: then the process that was meant exited first.
func (m mover) expel(dirs []Dir) error {
	stranger, born, err := m.options.Processes.Birthplace(m.id.PID)
	if stranger == (procfs.ID{}) || stranger == m.id {
		return nil
	}
	counted := false
	var errs []error
	for _, d := range dirs {
		inside, listErr := m.Procs(d)
		if listErr != nil || !slices.Contains(inside, stranger.PID) {
			continue
		}
		if born[d.Hierarchy] == d.Path {
			continue // it belongs there
		}
		if !counted {
			counted = true
			m.mistaken.Add(1)
		}
		home, known := born[d.Hierarchy]
		if !known { // its parent has gone, and with it what it knew
			home = "/"
		}
		if undo := m.enter(Dir{Hierarchy: d.Hierarchy, Path: home}, stranger); undo != nil &&
			!errors.Is(undo, ErrExited) {
			errs = append(errs, undo)
		}
	}
	if len(errs) > 0 {
		return errors.Join(append(errs, err)...)
	}
	return nil
}

// enter writes the number of a process to a directory.
func (m mover) enter(d Dir, id procfs.ID) error {
	err := m.writeEntry(d, id.PID)
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	e.Op, e.Path, e.Value, e.wrote = moveOp(id), m.Abs(d), "", false
	e.Hint = moveHint(errno(e.Cause))
	if errno(e.Cause) == syscall.EINVAL && m.Version(d) == 1 && m.mounts[d.Hierarchy].Has("cpu") && m.realtime(id.PID) {
		e.Kind = ErrRealtime
		e.Hint = "give the thread a normal policy (chrt --other), or leave the process outside CPU groups"
	}
	return e
}

// realtime says whether a thread of the process has a real-time policy; no when it cannot be read.
func (m mover) realtime(pid int) bool {
	tasks, err := m.options.Processes.Tasks(pid)
	return err == nil && slices.ContainsFunc(tasks, func(task procfs.Task) bool { return task.RT })
}

func moveHint(no syscall.Errno) string {
	switch no {
	case syscall.EBUSY:
		return "cgroup v2 allows processes in leaves only; this group has controllers enabled for its children"
	case syscall.EACCES, syscall.EPERM:
		return "run as root; a delegated tree also needs write access to the nearest common ancestor's cgroup.procs"
	case syscall.ENOSPC:
		return "write cpuset.cpus and cpuset.mems of the group first"
	case syscall.EAGAIN:
		return "pids.max of the group is reached"
	case syscall.EOPNOTSUPP:
		return "a threaded group takes threads, not processes"
	case syscall.EINVAL:
		return "kernel threads that are bound to a CPU cannot be moved"
	}
	return ""
}

// Freeze stops every process in d and below, or lets them go on, and returns when the kernel says it
// is so. v2 has cgroup.freeze in every group (kernel 5.2); on v1 d must lie in the freezer's
// hierarchy. Stopping is bounded by Options.FreezeWait; when a task has not stopped by then (state D),
// the group is let go again and the error is ErrBusy.
func (t *Tree) Freeze(d Dir, on bool) error {
	err := freeze(t, d, on)
	if err != nil && on && errors.Is(err, ErrBusy) {
		if thaw := freeze(t, d, false); thaw != nil {
			return errors.Join(err, thaw)
		}
	}
	return err
}

func freeze(t *Tree, d Dir, on bool) error {
	file, value := d.File("cgroup.freeze"), "0"
	switch {
	case t.Version(d) == 1 && on:
		file, value = d.File("freezer.state"), "FROZEN"
	case t.Version(d) == 1:
		file, value = d.File("freezer.state"), "THAWED"
	case on:
		value = "1"
	}
	return retry(t.options.FreezeWait, func() (again bool, err error) {
		// v1 is written again each time: a task that forks while freezing may leave the state at FREEZING
		// (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst). On v2 the repeat changes nothing.
		if err := t.Write(file, value); err != nil {
			return false, err
		}
		frozen, err := frozen(t, d, on)
		if err != nil || frozen == on {
			return false, err
		}
		op, hint := "freeze", "a task in uninterruptible sleep (state D) cannot be stopped; it was let go again"
		if !on {
			op, hint = "thaw", "an ancestor is frozen"
		}
		return true, &Error{Op: op, Path: t.Abs(d), Kind: ErrBusy, Hint: hint}
	})
}

// Frozen says whether every process in d and below is stopped, by d's own freezing or an ancestor's.
// A group that is still stopping is not frozen.
func (t *Tree) Frozen(d Dir) (bool, error) { return frozen(t, d, true) }

// frozen tells the state; while stopping or going it answers the opposite of want.
func frozen(t *Tree, d Dir, want bool) (bool, error) {
	if t.Version(d) == 1 {
		state, err := t.Read(d.File("freezer.state"))
		if state == "FREEZING" {
			return !want, err
		}
		return state == "FROZEN", err
	}
	events, err := t.Read(d.File("cgroup.events"))
	if err != nil {
		return false, err
	}
	return Line(events, "frozen") == "1", nil
}
