package procfs

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// SetNiceness gives every thread of this process a niceness, unless it is less nice already; on Linux each has its
// own, and those that come get that of the one that makes them (setpriority(2)). A negative one takes CAP_SYS_NICE.
func SetNiceness(n int) error {
	tasks, err := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		if now, getErr := unix.Getpriority(unix.PRIO_PROCESS, tid); getErr == nil && 20-now <= n {
			continue // the system call gives 20 less the niceness
		}
		if setErr := unix.Setpriority(unix.PRIO_PROCESS, tid, n); setErr != nil && !errors.Is(setErr, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("set niceness %d of thread %d: %w", n, tid, setErr))
		}
	}
	return err
}
