package sampling

import (
	"context"
	"path"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/accounting"
	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// threads adds up what threads of groups do, from reading to reading: how long they wait for a CPU, and their switches.
// The kernel counts both for each thread alone, so what one did between the last reading and its end is not seen.
type threads struct {
	read func(tid int, before ctxswitch.Thread) (ctxswitch.Thread, bool, error)
	list func(*cgroup.Tree, cgroup.Dir) ([]int, error)
	// used is the CPU time of a directory, with what is below it, and false where that is not counted.
	used  func(*cgroup.Tree, cgroup.Dir) (microseconds int64, counted bool)
	files *metrics.Reader // of used; nil: it has none
	procs processes
	waits bool // the kernel counts how long they wait

	at    time.Time // of the last reading
	of    *Watched  // what was watched then
	known map[int]ctxswitch.Thread
	tids  map[cgroup.Dir][]int // the threads of a directory, as listed last
	spent map[cgroup.Dir]int64 // what used told, of those that are counted
	sums  map[string]work      // by group
}

// work is what threads of a group did.
type work struct {
	ctxswitch.Thread

	amounts

	ranOn map[int]time.Duration
}

func newThreads(root *sysroot.FS) *threads {
	files := metrics.NewReader("cpu.total_us")
	return &threads{waits: ctxswitch.Waits(root), list: (*cgroup.Tree).Tasks, files: files, used: spentBy(files),
		procs: processes{list: (*cgroup.Tree).Procs, of: func(pid int) (accounting.Process, error) {
			return accounting.Read(root, pid)
		}, clock: accounting.Now},
		read: func(tid int, before ctxswitch.Thread) (ctxswitch.Thread, bool, error) {
			return ctxswitch.ReadThread(root, tid, before)
		}}
}

// spentBy reads the CPU time of directories.
func spentBy(files *metrics.Reader) func(*cgroup.Tree, cgroup.Dir) (microseconds int64, counted bool) {
	return func(t *cgroup.Tree, d cgroup.Dir) (microseconds int64, counted bool) {
		u, found := files.Read(t, metrics.Group{Dirs: [][]cgroup.Dir{{d}}})
		if !found || u.CPU.Total == nil {
			return 0, false
		}
		return *u.CPU.Total, true
	}
}

// tidsOf are the threads of a directory: those of the last list where it slept since, else they are listed anew. One
// that is gone has none.
func (t *threads) tidsOf(w *Watched, d cgroup.Dir, still bool) (tids []int, listed bool) {
	if tids, listed = t.tids[d]; still && listed && w == t.of {
		return tids, true
	}
	tids, err := t.list(w.tree, d)
	return tids, err == nil
}

// source reads every thread of the groups that are watched. Of a directory that has used no CPU time since the last
// reading only those threads are read that were not known then: the others did nothing. Its threads are not even listed
// before the agent's next full look: a fork and an exit take CPU time, so that one can come or go without any only when
// somebody moves it.
func (t *threads) source(k *Kernel) collect.Source {
	return func(ctx context.Context, m *collect.Meter) (collect.Put, error) {
		w := k.watched.Load()
		now := time.Now()
		known, did := make(map[int]ctxswitch.Thread, len(t.known)), map[string]work{}
		if t.files != nil {
			t.files.Begin(now)
		}
		living := map[string]int{}
		spent, lists := make(map[cgroup.Dir]int64, len(t.spent)), make(map[cgroup.Dir][]int, len(t.tids))
		for group, dirs := range w.tasks {
			all := work{ranOn: map[int]time.Duration{}}
			for _, d := range dirs {
				still := t.slept(w.tree, d, spent)
				tids, listed := t.tidsOf(w, d, still)
				if listed { // else it is tried again the next time
					lists[d] = tids
				}
				for at := group; at != "."; at = path.Dir(at) {
					living[at] += len(tids)
				}
				for _, tid := range tids {
					if one, there := t.known[tid]; still && there {
						known[tid] = one
						continue
					}
					if ctx.Err() != nil {
						return nil, context.Cause(ctx)
					}
					if one, lives, err := t.read(tid, t.known[tid]); lives && err == nil {
						known[tid] = one
						all.add(t.since(tid, one, now))
					}
				}
				m.Rest()
			}
			did[group] = all
		}
		ran := func(group string) bool { return did[group].Ran > 0 }
		alive := func(pid int) bool { _, lives := known[pid]; return lives }
		for group, f := range t.procs.read(w, ran, alive) {
			did[group] = did[group].plus(work{amounts: f})
		}
		sums := make(map[string]work, len(w.groups))
		for _, g := range w.groups {
			sums[g.Group.Group] = t.sums[g.Group.Group]
		}
		for group, one := range did {
			for at := group; at != "."; at = path.Dir(at) { // those of a/b are a's, too
				sums[at] = sums[at].plus(one)
			}
		}
		t.at, t.of, t.known, t.tids, t.spent, t.sums = now, w, known, lists, spent, sums
		return t.put(sums, living), nil
	}
}

// slept says whether a directory has used no CPU time since the last reading, and notes what it has used.
func (t *threads) slept(tree *cgroup.Tree, d cgroup.Dir, spent map[cgroup.Dir]int64) bool {
	if t.used == nil {
		return false
	}
	now, counted := t.used(tree, d)
	if !counted {
		return false
	}
	spent[d] = now
	before, known := t.spent[d]
	return known && now == before
}

// since is what a thread did since the last reading. One that was not seen then has begun meanwhile, unless it did more
// than there was time for: then it comes from elsewhere, and counts from now on.
func (t *threads) since(tid int, one ctxswitch.Thread, now time.Time) ctxswitch.Thread {
	before, known := t.known[tid]
	switch {
	case known && one.Ran >= before.Ran && one.Waited >= before.Waited:
		return ctxswitch.Thread{Count: one.Count.Since(before.Count), Ran: one.Ran - before.Ran,
			Waited: one.Waited - before.Waited, CPU: one.CPU}
	case t.known != nil && one.Ran+one.Waited <= now.Sub(t.at):
		return one
	}
	return ctxswitch.Thread{}
}

// add adds what a thread did, in place.
func (a *work) add(one ctxswitch.Thread) {
	a.Count = a.Count.Add(one.Count)
	a.Waited += one.Waited
	if one.Ran > 0 {
		a.Ran += one.Ran
		a.ranOn[one.CPU] += one.Ran
	}
}

// plus adds the work of two groups.
func (a work) plus(b work) work {
	sum := work{Thread: ctxswitch.Thread{Count: a.Count.Add(b.Count), Ran: a.Ran + b.Ran, Waited: a.Waited + b.Waited},
		ranOn: map[int]time.Duration{}, amounts: a.amounts.plus(b.amounts)}
	for _, ran := range []map[int]time.Duration{a.ranOn, b.ranOn} {
		for id, d := range ran {
			sum.ranOn[id] += d
		}
	}
	return sum
}

func (t *threads) put(sums map[string]work, living map[string]int) collect.Put {
	return func(s *observe.Sample) {
		for i := range s.Groups {
			one, counted := sums[s.Groups[i].Group]
			if !counted {
				continue
			}
			s.Groups[i].Threads = &observe.Switching{Living: living[s.Groups[i].Group],
				Voluntary: one.Voluntary, Involuntary: one.Involuntary,
				RanOn: one.ranOn, Faults: one.faults, ReadBytes: one.readBytes, WrittenBytes: one.writtenBytes,
				Reads: one.reads, Writes: one.writes}
			if t.waits {
				s.Groups[i].Threads.Waited = &one.Waited
			}
		}
	}
}
