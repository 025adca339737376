package probe

import (
	"fmt"
	"os"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
)

// Fork starts processes that do nothing, until the kernel refuses one or there are so many tasks.
type Fork struct {
	Tasks int `json:"tasks"` // in all, the load's own threads counted
}

// MostTasks is how many processes a load starts at most.
const MostTasks = 512

func (f *Fork) run() (a Answer, err error) {
	// No thread of the runtime's own may be needed while there can be none: that would end the load.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	own, err := host.New("/").Proc.Tasks(os.Getpid())
	if err != nil {
		return a, fmt.Errorf("count its own threads: %w", err)
	}
	a.Count = len(own)
	children := make([]int, 0, MostTasks)
	var refused error
	for a.Count < f.Tasks && len(children) < MostTasks {
		pid, errno := fork()
		if errno != 0 {
			a.Refused, refused = errno == syscall.EAGAIN, errno
			break
		}
		children = append(children, pid)
		a.Count++
	}
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, pid := range children {
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}
	if refused != nil && !a.Refused {
		return a, fmt.Errorf("start task %d: %w", a.Count+1, refused)
	}
	return a, nil
}

// fork makes a copy of this process that has this thread alone and sleeps until it is killed, with this process at the
// latest. Nothing but system calls may follow in the copy.
//
//go:noinline
//go:norace
func fork() (pid int, errno syscall.Errno) {
	parent, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || parent != 0 {
		return int(parent), errno
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0)
	for {
		_, _, _ = syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}
