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
	// Early says that the run gave up before the time was over (Waits): the next one goes on. Waited is how long this
	// one waited for the directory.
	Early  bool
	Waited time.Duration
}

func (e *UseError) Error() string {
	if e.Early { // the same text each time: who goes on says it once
		return fmt.Sprintf("the memory in use of group %q has not fallen to %s yet", e.Group,
			policy.Bytes(e.To).Human())
	}
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

// Waits bounds how long the runs of a caller wait for memory that is to fall, who makes them again and again and cannot
// wait as long at once as the plan says. What they waited for a directory counts together, until its memory has fallen
// or its time is over. It is for one goroutine.
type Waits struct {
	left  time.Duration // for all directories
	spent map[cgroup.Dir]spent
}

// spent is how long runs have waited for a directory so far, and when that was.
type spent struct {
	time.Duration
	at time.Time
}

// forgotten is how long after the last wait for a directory the next one begins anew.
const forgotten = 5 * time.Minute

// Refill has the runs from now on wait for so long, together.
func (w *Waits) Refill(d time.Duration) { w.left = d }

// took is how long earlier runs waited for a directory.
func (w *Waits) took(d cgroup.Dir) time.Duration {
	if w == nil || time.Since(w.spent[d].at) > forgotten {
		return 0
	}
	return w.spent[d].Duration
}

// add takes in that a run waited for a directory.
func (w *Waits) add(d cgroup.Dir, waited time.Duration) {
	if w == nil {
		return
	}
	if w.spent == nil {
		w.spent = map[cgroup.Dir]spent{}
	}
	w.spent[d] = spent{w.took(d) + waited, time.Now()}
	w.left -= waited
}

// done says that the memory of directories has fallen, or has had its time.
func (w *Waits) done(dirs ...cgroup.Dir) {
	for _, d := range dirs {
		if w != nil {
			delete(w.spent, d)
		}
	}
}

// waitsKey is the context key of Waits.
type waitsKey struct{}

// WithWaits has runs wait for memory no longer than w says.
func WithWaits(ctx context.Context, w *Waits) context.Context {
	return context.WithValue(ctx, waitsKey{}, w)
}

// waitsOf is what WithWaits gave; nil is that they wait as long as the plan says.
func waitsOf(ctx context.Context) *Waits {
	w, _ := ctx.Value(waitsKey{}).(*Waits)
	return w
}

// reclaimer does the writes of a run that wait for memory to be reclaimed.
type reclaimer struct{ *run }

// lower does a write that takes memory from a group, as soon as little enough is in use.
func (n *reclaimer) lower(s plan.Step, c journal.Change) error {
	if n.reclaims == nil {
		n.reclaims = map[cgroup.Dir]fall{}
	}
	dir, waits, entered := s.Dir(), waitsOf(n.ctx), time.Now()
	f, going := n.reclaims[dir]
	if !going {
		f = fall{begun: entered, before: waits.took(dir)}
		n.reclaims[dir] = f
	}
	over := false
	defer func() {
		if waits.add(dir, time.Since(entered)); over {
			waits.done(dir)
		}
	}()
	told := entered
	for pause := reclaimFirst; ; pause = min(2*pause, reclaimPause) {
		now, done, err := n.tryLower(s, c)
		if done || err != nil {
			return err
		}
		systemd.Progress(n.ctx)
		waited := time.Since(f.begun)
		over = f.before+waited >= s.Reclaim.Within
		if early := waits != nil && time.Since(entered) >= waits.left; over || early {
			return &UseError{Group: s.Group, Dir: dir, To: s.Reclaim.To, Now: now, Within: s.Reclaim.Within,
				Early: !over, Waited: waited}
		}
		if time.Since(told) >= reclaimTell {
			told = time.Now()
			n.log().Info("waiting for memory to be reclaimed", "group", s.Group,
				"in_use", policy.Bytes(now).Human(), "to", policy.Bytes(s.Reclaim.To).Human(),
				"left", (s.Reclaim.Within - f.before - waited).Round(time.Second))
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

// inUse reads what the directory of a step is charged with.
func (n *reclaimer) inUse(s plan.Step) (int64, error) { return n.charge(s.Dir().File(s.Reclaim.Use)) }

// charge reads a counter of what a directory is charged with, in bytes.
func (r *Runner) charge(counter cgroup.File) (int64, error) {
	text, err := r.Files.Read(counter)
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
