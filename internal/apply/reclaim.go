package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

// UseError says that the memory of a group did not fall far enough in the time it had.
type UseError struct {
	Group   string
	Dir     cgroup.Dir
	To, Now int64 // bytes
	Within  time.Duration
}

func (e *UseError) Error() string {
	return fmt.Sprintf("the memory in use of group %q did not fall to %s within %s: %s are in use in %s",
		e.Group, policy.Bytes(e.To).Human(), e.Within, policy.Bytes(e.Now).Human(), e.Dir)
}

// Hint says what can be done about it.
func (e *UseError) Hint() string {
	return "raise memory.max, give the group's programs less (a smaller buffer pool or cache), allow swap, or give it more time with host.reclaim"
}

// How often a write that waits for memory is tried, and how often the log hears of it.
const (
	reclaimFirst = 5 * time.Millisecond
	reclaimPause = 250 * time.Millisecond
	reclaimTell  = 5 * time.Second
)

// memoryHigh is the file of cgroup v2 whose write takes pages back, and reclaimTurn how long one write may do so.
const (
	memoryHigh  = "memory.high"
	reclaimTurn = time.Second
)

// put writes a value. A write of memory.high takes pages back until few enough are in use, it cannot get any more, or a signal comes
// (memory_high_write in mm/memcontrol.c): where there is no swap that was seen to last 18 s. The value is in force from the first of them on, so
// a signal ends the write after a while; it is one that the Go runtime sends its own threads, and passes over.
func (n *run) put(f cgroup.File, value string) error {
	if f.Name != memoryHigh {
		return n.Files.Write(f, value)
	}
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
				turn.Reset(reclaimFirst)
			}
		}
	}()
	return n.Files.Write(f, value)
}

// lower does a write that takes memory from a group, as soon as little enough is in use.
func (n *run) lower(s plan.Step, c journal.Change) error {
	if n.reclaims == nil {
		n.reclaims = map[cgroup.Dir]time.Time{}
	}
	begun, going := n.reclaims[s.Dir]
	if !going {
		begun = time.Now()
		n.reclaims[s.Dir] = begun
	}
	told := begun
	for pause := reclaimFirst; ; pause = min(2*pause, reclaimPause) {
		now, done, err := n.tryLower(s, c)
		if done || err != nil {
			return err
		}
		systemd.Progress(n.ctx)
		if since := time.Since(begun); since >= s.Reclaim.Within {
			return &UseError{Group: s.Group, Dir: s.Dir, To: s.Reclaim.To, Now: now, Within: s.Reclaim.Within}
		}
		if time.Since(told) >= reclaimTell {
			told = time.Now()
			n.log().Info("waiting for memory to be reclaimed", "group", s.Group, "in_use", policy.Bytes(now).Human(), "to", policy.Bytes(s.Reclaim.To).Human(),
				"left", (s.Reclaim.Within - time.Since(begun)).Round(time.Second))
		}
		if err := n.rest(pause); err != nil {
			return err
		}
		if s.Reclaim.Push != "" {
			// The file is one that a step before wrote, and that is undone with it.
			if err := n.put(s.Dir.File(memoryHigh), s.Reclaim.Push); err != nil {
				return err
			}
		}
	}
}

// tryLower writes once, unless too much is in use, which it gives.
func (n *run) tryLower(s plan.Step, c journal.Change) (now int64, done bool, err error) {
	if s.Reclaim.Below > 0 {
		if now, err = n.inUse(s); err != nil || now > s.Reclaim.Below {
			return now, false, err
		}
	}
	err = n.write(c)
	if !errors.Is(err, cgroup.ErrBusy) {
		return now, true, err
	}
	now, err = n.inUse(s)
	return now, false, err
}

// inUse reads what a directory is charged with.
func (n *run) inUse(s plan.Step) (int64, error) {
	text, err := n.Files.Read(s.Dir.File(s.Reclaim.Use))
	if err != nil {
		return 0, err
	}
	now, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %q: %w", s.Dir.File(s.Reclaim.Use), err)
	}
	return now, nil
}

// rest waits a little, unless the run is stopped.
func (n *run) rest(pause time.Duration) error {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-n.ctx.Done():
		return fmt.Errorf("interrupted: %w", context.Cause(n.ctx))
	case <-t.C:
		return nil
	}
}
