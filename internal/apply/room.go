package apply

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
)

// StaysError says that a memory limit of cgroup v2 was not given back: more is in use than it allows, and the kernel
// would kill processes for it (memory_max_write of mm/memcontrol.c). Version 1 refuses such a limit by itself (EBUSY).
type StaysError struct {
	Dir     cgroup.Dir
	To, Now int64 // bytes
}

func (e *StaysError) Error() string {
	return fmt.Sprintf("memory.max of %s was not set back to %s: %s are in use, and the kernel would kill processes",
		e.Dir, policy.Bytes(e.To).Human(), policy.Bytes(e.Now).Human())
}

// Room is made again for a while: who reads files takes what was reclaimed at once, up to the limit that still holds.
const (
	roomTries = 8
	roomPause = 100 * time.Millisecond
)

// room makes room for a memory limit of cgroup v2 that undoing gives back, as far as the kernel can reclaim. The error
// is *StaysError where that is not far enough.
func (u *undoing) room(c journal.Change) error {
	f, is := cgroup.FileOf(c.Target)
	if !is || f.Name != "memory.max" {
		return nil
	}
	to, err := strconv.ParseInt(c.Old, 10, 64)
	if err != nil {
		to = math.MaxInt64 // "max"
	}
	spare := min(to/64, 16<<20)
	for try := 1; ; try++ {
		now, err := u.charge(f.Dir.File("memory.current"))
		if err != nil {
			now = 0 // one that is gone, or has no such file, has nothing to lose
		}
		switch {
		case now <= to:
			return nil
		case try > roomTries:
			return &StaysError{Dir: f.Dir, To: to, Now: now}
		case try > 1:
			time.Sleep(roomPause)
		}
		if err := u.reclaim(f.Dir, now, to-spare); err != nil {
			return err
		}
	}
}

// reclaim has the kernel take a directory from what it is charged with to less, as far as it can: by memory.reclaim
// (kernel 5.19), and before it by a memory.high of a moment.
func (u *undoing) reclaim(d cgroup.Dir, now, to int64) error {
	err := u.Files.Write(d.File("memory.reclaim"), strconv.FormatInt(now-to, 10))
	if !errors.Is(err, cgroup.ErrNoKnob) {
		return nil // it says that it could not take all: what is charged then is read next
	}
	high := d.File("memory.high")
	before, err := u.Files.Read(high)
	if err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	return errors.Join(u.Files.Write(high, strconv.FormatInt(to, 10)), u.Files.Write(high, before))
}
