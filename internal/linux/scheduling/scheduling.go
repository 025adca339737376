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

// Urgent is the niceness of what holds others: they must not keep it from holding them.
const Urgent = -10

// Urgently makes this process, and what it starts, urgent until back is called, where it may (CAP_SYS_NICE).
func Urgently() (back func()) {
	before, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil || Set(Urgent, 0) != nil {
		return func() {}
	}
	return func() {
		tasks, _ := os.ReadDir("/proc/self/task")
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, 20-before) // the system call gives 20 less the niceness
		}
	}
}

// Set gives every thread of this process, and those that they make, a niceness (setpriority(2)), unless it is
// less nice already, and a timer slack: how much later than asked the kernel may wake it (prctl(2), PR_SET_TIMERSLACK;
// 0 is the default, 50 µs). It sets what it can: a negative niceness takes CAP_SYS_NICE, and the slack a kernel of 4.6.
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
