package apply

import (
	"fmt"
	"math"
	"strconv"

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

// room makes room for a memory limit of cgroup v2 that undoing gives back, as far as the kernel can reclaim
// (memory.reclaim, kernel 5.19). The error is *StaysError where that is not far enough.
func (u *undoing) room(c journal.Change) error {
	f, is := cgroup.FileOf(c.Target)
	if !is || f.Name != "memory.max" {
		return nil
	}
	to, err := strconv.ParseInt(c.Old, 10, 64)
	if err != nil {
		to = math.MaxInt64 // "max"
	}
	now, known := u.charge(f.Dir)
	if known && now > to {
		_ = u.Files.Write(f.Dir.File("memory.reclaim"), strconv.FormatInt(now-to, 10)) // what it has done is read below
		now, known = u.charge(f.Dir)
	}
	if known && now > to {
		return &StaysError{Dir: f.Dir, To: to, Now: now}
	}
	return nil
}

// charge reads what a directory of cgroup v2 is charged with; one that is gone, or has no such file, is not known.
func (u *undoing) charge(d cgroup.Dir) (now int64, known bool) {
	text, err := u.Files.Read(d.File("memory.current"))
	if err != nil {
		return 0, false
	}
	now, err = strconv.ParseInt(text, 10, 64)
	return now, err == nil
}
