package procfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Hold watches whether a process keeps its number.
type Hold struct {
	// Same says that until now nobody else can have had the number: what was done by it was done to this process.
	Same  func() bool
	Close func()
}

// Hold begins to watch a process, through a pidfd where the kernel has them (5.3): the number is given to another
// process only after the kernel has forgotten this one, and then a signal to the pidfd finds nobody. Before 5.3, and
// in a sandbox that forbids it, the start time alone tells, in clock ticks. Errors: ErrExited, also for a zombie.
func (h FS) Hold(id ID) (Hold, error) {
	fd := -1
	if h.Root.Live() {
		var err error
		fd, err = Retry(func() (int, error) { return unix.PidfdOpen(id.PID, 0) })
		if errors.Is(err, unix.ESRCH) {
			return Hold{}, fmt.Errorf("watch process %d: %w", id.PID, ErrExited)
		}
	}
	// In this order: the pidfd is of the process that the start time belongs to, or of one that came after it.
	if !h.Alive(id) {
		if fd >= 0 {
			unix.Close(fd)
		}
		return Hold{}, fmt.Errorf("watch process %d: %w", id.PID, ErrExited)
	}
	if fd < 0 {
		same := func() bool { // a zombie has its number still
			s, err := h.statOf(id.PID)
			return err == nil && s.start == id.Start
		}
		return Hold{Same: same, Close: func() {}}, nil
	}
	return Hold{
		Same:  func() bool { return !errors.Is(unix.PidfdSendSignal(fd, 0, nil, 0), unix.ESRCH) },
		Close: func() { unix.Close(fd) },
	}, nil
}

// Birthplace gives the process that has a number now, and the control groups that it was born in: those of its
// parent. Errors: ErrExited, for the parent too.
func (h FS) Birthplace(pid int) (ID, map[string]string, error) {
	procs, err := h.Processes(Options{PIDs: []int{pid}})
	if err != nil || len(procs) == 0 {
		return ID{}, nil, errors.Join(err, fmt.Errorf("read process %d: %w", pid, ErrExited))
	}
	parents, err := h.Processes(Options{PIDs: []int{procs[0].PPID}})
	if err != nil || len(parents) == 0 {
		return procs[0].ID, nil, errors.Join(err, fmt.Errorf("read process %d: %w", procs[0].PPID, ErrExited))
	}
	return procs[0].ID, parents[0].Cgroups, nil
}
