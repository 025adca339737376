package apply

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

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
	return "raise memory.max, give the group's programs less (a smaller buffer pool or cache), allow swap, " +
		"or give it more time with host.reclaim"
}

// How often a write that waits for memory is tried, and how often the log hears of it.
const (
	reclaimFirst = 5 * time.Millisecond
	reclaimPause = 250 * time.Millisecond
	reclaimTell  = 5 * time.Second
)

// reclaimer does the writes of a run that wait for memory to be reclaimed.
type reclaimer struct{ *run }

// lower does a write that takes memory from a group, as soon as little enough is in use.
func (n *reclaimer) lower(s plan.Step, c journal.Change) error {
	if n.reclaims == nil {
		n.reclaims = map[cgroup.Dir]time.Time{}
	}
	dir := s.Dir()
	begun, going := n.reclaims[dir]
	if !going {
		begun = time.Now()
		n.reclaims[dir] = begun
	}
	told := begun
	for pause := reclaimFirst; ; pause = min(2*pause, reclaimPause) {
		now, done, err := n.tryLower(s, c)
		if done || err != nil {
			return err
		}
		systemd.Progress(n.ctx)
		if since := time.Since(begun); since >= s.Reclaim.Within {
			return &UseError{Group: s.Group, Dir: dir, To: s.Reclaim.To, Now: now, Within: s.Reclaim.Within}
		}
		if time.Since(told) >= reclaimTell {
			told = time.Now()
			n.log().Info("waiting for memory to be reclaimed", "group", s.Group,
				"in_use", policy.Bytes(now).Human(), "to", policy.Bytes(s.Reclaim.To).Human(),
				"left", (s.Reclaim.Within - time.Since(begun)).Round(time.Second))
		}
		if err := n.rest(pause); err != nil {
			return err
		}
		if s.Reclaim.Push != "" {
			// The file is one that a step before wrote, and that is undone with it.
			if err := n.Files.Write(dir.File("memory.high"), s.Reclaim.Push); err != nil {
				return err
			}
		}
	}
}

// tryLower writes once, unless too much is in use, which it gives.
func (n *reclaimer) tryLower(s plan.Step, c journal.Change) (now int64, done bool, err error) {
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
func (n *reclaimer) inUse(s plan.Step) (int64, error) {
	counter := s.Dir().File(s.Reclaim.Use)
	text, err := n.Files.Read(counter)
	if err != nil {
		return 0, err
	}
	now, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %q: %w", counter, err)
	}
	return now, nil
}

// rest waits a little, unless the run is stopped.
func (n *reclaimer) rest(pause time.Duration) error {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-n.ctx.Done():
		return fmt.Errorf("interrupted: %w", context.Cause(n.ctx))
	case <-t.C:
		return nil
	}
}

// write writes a value and reads it back.
func (n *run) write(c journal.Change) error {
	if c.Unit != "" {
		return n.writeUnit(c)
	}
	return n.set(c)
}
