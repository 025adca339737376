package sampling

import (
	"context"
	"path"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// threads adds up what threads of groups do, from reading to reading: how long they wait for a CPU, and their switches.
// The kernel counts both for each thread alone, so what one did between the last reading and its end is not seen.
type threads struct {
	read  func(tid int, before ctxswitch.Thread) (ctxswitch.Thread, bool, error)
	list  func(*cgroup.Tree, cgroup.Dir) ([]int, error)
	waits bool // the kernel counts how long they wait

	at    time.Time // of the last reading
	known map[int]ctxswitch.Thread
	sums  map[string]ctxswitch.Thread // by group
}

func newThreads(root *sysroot.FS) *threads {
	return &threads{waits: ctxswitch.Waits(root), list: (*cgroup.Tree).Tasks,
		read: func(tid int, before ctxswitch.Thread) (ctxswitch.Thread, bool, error) {
			return ctxswitch.ReadThread(root, tid, before)
		}}
}

// source reads every thread of the groups that are watched.
func (t *threads) source(k *Kernel) collect.Source {
	return func(ctx context.Context, m *collect.Meter) (collect.Put, error) {
		w := k.watched.Load()
		now := time.Now()
		known, did := map[int]ctxswitch.Thread{}, map[string]ctxswitch.Thread{}
		for group, dirs := range w.tasks {
			for _, d := range dirs {
				tids, _ := t.list(w.tree, d) // one that is gone has none
				for _, tid := range tids {
					if ctx.Err() != nil {
						return nil, context.Cause(ctx)
					}
					if one, lives, err := t.read(tid, t.known[tid]); lives && err == nil {
						known[tid] = one
						did[group] = plus(did[group], t.since(tid, one, now))
					}
				}
				m.Rest()
			}
		}
		sums := make(map[string]ctxswitch.Thread, len(w.groups))
		for _, g := range w.groups {
			sums[g.Group.Group] = t.sums[g.Group.Group]
		}
		for group, one := range did {
			for at := group; at != "."; at = path.Dir(at) { // those of a/b are a's, too
				sums[at] = plus(sums[at], one)
			}
		}
		t.at, t.known, t.sums = now, known, sums
		return t.put(sums), nil
	}
}

// since is what a thread did since the last reading. One that was not seen then has begun meanwhile, unless it did more
// than there was time for: then it comes from elsewhere, and counts from now on.
func (t *threads) since(tid int, one ctxswitch.Thread, now time.Time) ctxswitch.Thread {
	before, known := t.known[tid]
	switch {
	case known && one.Ran >= before.Ran && one.Waited >= before.Waited:
		return ctxswitch.Thread{Count: one.Count.Since(before.Count), Ran: one.Ran - before.Ran,
			Waited: one.Waited - before.Waited}
	case t.known != nil && one.Ran+one.Waited <= now.Sub(t.at):
		return one
	}
	return ctxswitch.Thread{}
}

func plus(a, b ctxswitch.Thread) ctxswitch.Thread {
	return ctxswitch.Thread{Count: a.Count.Add(b.Count), Ran: a.Ran + b.Ran, Waited: a.Waited + b.Waited}
}

func (t *threads) put(sums map[string]ctxswitch.Thread) collect.Put {
	return func(s *observe.Sample) {
		for i := range s.Groups {
			one, counted := sums[s.Groups[i].Group]
			if !counted {
				continue
			}
			s.Groups[i].Threads = &observe.Switching{Voluntary: one.Voluntary, Involuntary: one.Involuntary}
			if t.waits {
				s.Groups[i].Threads.Waited = &one.Waited
			}
		}
	}
}
