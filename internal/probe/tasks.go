package probe

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
)

// Fork starts processes that do nothing, until the kernel refuses one or there are so many tasks.
type Fork struct {
	Tasks int `json:"tasks"` // in all, the load's own threads counted
}

// MostTasks is how many processes a load starts at most.
const MostTasks = 512

// run starts them and ends them again. At the limit the kernel refuses threads, too, and a runtime that is refused one
// ends the load: so from the first fork to the last end nothing may happen for which the runtime wants a thread. There
// is one P and no collection, and the goroutine keeps that P in raw system calls alone, with no point at which it could
// be stopped: neither a call that checks the stack nor a signal.
func (f *Fork) run() (a Answer, err error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	own, err := host.New("/").Proc.Tasks(os.Getpid())
	if err != nil {
		return a, fmt.Errorf("count its own threads: %w", err)
	}
	var children [MostTasks]int
	most := min(max(0, f.Tasks-len(own)), MostTasks)
	started, refused := forkAndEnd(children[:most])
	a.Count, a.Ops, a.Refused = len(own)+started, int64(started), refused == syscall.EAGAIN
	if refused != 0 && !a.Refused {
		return a, fmt.Errorf("start task %d: %w", a.Count+1, refused)
	}
	return a, nil
}

// forkAndEnd starts as many processes as there is room for in children, or until the kernel refuses one, and ends them.
//
//go:nosplit
//go:norace
func forkAndEnd(children []int) (started int, refused syscall.Errno) {
	all, before := ^uint64(0), uint64(0)
	setMask(&all, &before)
	for started < len(children) {
		pid, errno := fork()
		if errno != 0 {
			refused = errno
			break
		}
		children[started] = pid
		started++
	}
	for _, pid := range children[:started] {
		_, _, _ = syscall.RawSyscall(unix.SYS_KILL, uintptr(pid), uintptr(syscall.SIGKILL), 0)
	}
	for _, pid := range children[:started] {
		_, _, _ = syscall.RawSyscall6(unix.SYS_WAIT4, uintptr(pid), 0, 0, 0, 0, 0)
	}
	setMask(&before, nil)
	return started, refused
}

// setMask blocks the signals of a set for this thread, and gives those that were blocked before.
//
//go:nosplit
//go:norace
func setMask(blocked, before *uint64) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(blocked)),
		uintptr(unsafe.Pointer(before)), unsafe.Sizeof(*blocked), 0, 0)
}

// fork makes a copy of this process that has this thread alone and sleeps until it is killed, with this process at the
// latest. Nothing but system calls may follow in the copy.
//
//go:noinline
//go:nosplit
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
