// Package scheduling says how the kernel schedules the threads of this process.
package scheduling

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Set gives every thread of this process, and those that they make, a niceness (setpriority(2)), unless it is
// less nice already, and a timer slack: how much later than asked the kernel may wake it (prctl(2), PR_SET_TIMERSLACK;
// default 50 µs). It sets what it can: a negative niceness takes CAP_SYS_NICE, and the slack a kernel of 4.6.
func Set(niceness int, slack time.Duration) error {
	tasks, err := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		now, lost := unix.Getpriority(unix.PRIO_PROCESS, tid)
		if lost != nil || 20-now > niceness { // the system call gives 20 less the niceness
			lost = unix.Setpriority(unix.PRIO_PROCESS, tid, niceness)
		}
		text := strconv.FormatInt(slack.Nanoseconds(), 10)
		late := os.WriteFile("/proc/"+task.Name()+"/timerslack_ns", []byte(text), 0)
		if !errors.Is(lost, unix.ESRCH) && !errors.Is(late, os.ErrNotExist) {
			err = errors.Join(err, lost, late)
		}
	}
	if err != nil {
		return fmt.Errorf("set niceness and timer slack of own threads: %w", err)
	}
	return nil
}

// ThreadTime is the id of the calling thread, and what it has used of a CPU so far (clock_gettime(2),
// CLOCK_THREAD_CPUTIME_ID). A goroutine may be on another thread at the next call.
func ThreadTime() (thread int, used time.Duration) {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) != nil {
		return 0, 0
	}
	return unix.Gettid(), time.Duration(now.Nano())
}
