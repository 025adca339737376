package probe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Yield has threads give their CPU to each other (sched_yield(2)), which counts how often this kernel can switch. They
// have the policy SCHED_IDLE (sched(7)): whatever else wants the CPU goes before them, so what they did (Answer.Ops) is
// to be held against the CPU time that they got (Answer.CPU).
type Yield struct {
	Threads int           `json:"threads"`
	On      []int         `json:"on"`   // the CPUs over which the threads are dealt out, one each
	Span    time.Duration `json:"span"` // at most MaxYield
}

// MaxYield bounds how long one order of Yield may take, MaxYielders on how many threads.
const (
	MaxYield    = 10 * time.Second
	MaxYielders = 4096
)

func (y *Yield) run(ctx context.Context) (a Answer, err error) {
	if y.Threads < 1 || y.Threads > MaxYielders || y.Span <= 0 || y.Span > MaxYield || len(y.On) == 0 {
		return a, fmt.Errorf("%d threads on %d CPUs for %s", y.Threads, len(y.On), y.Span)
	}
	// Go lets as many threads run at a time as it is told, and stops them all for a collection.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(y.Threads + 2))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var stop atomic.Bool
	var group sync.WaitGroup
	ready := make(chan error, y.Threads)
	start := make(chan struct{})
	for i := range y.Threads {
		group.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			ready <- errors.Join(pin([]int{y.On[i%len(y.On)]}), idlePolicy())
			<-start
			for !stop.Load() {
				// Without a word to Go's scheduler, which would give the thread's place to another one.
				_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			}
		})
	}
	for range y.Threads {
		err = errors.Join(err, <-ready)
	}
	var before, after unix.Rusage
	if err != nil {
		stop.Store(true)
	}
	close(start)
	began := time.Now()
	if err == nil {
		err = unix.Getrusage(unix.RUSAGE_SELF, &before)
	}
	if err == nil {
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-time.After(y.Span):
		}
		a.Took = time.Since(began)
		err = errors.Join(err, unix.Getrusage(unix.RUSAGE_SELF, &after))
	}
	stop.Store(true)
	group.Wait()
	a.CPU = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	a.Ops = after.Nvcsw - before.Nvcsw + after.Nivcsw - before.Nivcsw
	return a, err
}

// idlePolicy lets this thread run only when nobody else wants to.
func idlePolicy() error {
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
	if err := unix.SchedSetAttr(0, attr, 0); err != nil {
		return fmt.Errorf("take the policy SCHED_IDLE: %w", err)
	}
	return nil
}
