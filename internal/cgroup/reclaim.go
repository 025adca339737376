package cgroup

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// memoryHigh is the file whose write takes pages back, reclaimTurn how long one write may do so, and reclaimAgain how
// soon it is told again to end.
const (
	memoryHigh   = "memory.high"
	reclaimTurn  = time.Second
	reclaimAgain = 5 * time.Millisecond
)

// reclaiming does a write of memory.high. The kernel takes pages back in it until few enough are in use, until it
// cannot get any more, or until a signal comes (memory_high_write in mm/memcontrol.c): where there is no swap that was
// seen to last 18 s. The value is in force from the first of them on, so a signal ends the write after a turn; it is
// one that the Go runtime sends its own threads, and passes over.
func reclaiming(write func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, done := unix.Gettid(), make(chan struct{})
	defer close(done)
	go func() {
		turn := time.NewTimer(reclaimTurn)
		defer turn.Stop()
		for {
			select {
			case <-done:
				return
			case <-turn.C:
				_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG) // it may have ended meanwhile
				turn.Reset(reclaimAgain)
			}
		}
	}()
	return write()
}
