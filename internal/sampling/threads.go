package sampling

import (
	"context"
	"maps"
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
	look  int       // the number of the reading
	known map[int]thread
	dirs  map[cgroup.Dir]directory
	sums  map[string]work // by group; what is in it is not changed

	// Of the reading under way; what they hold is kept as room for the next one.
	fresh []reading // threads that are new or did something
	next  map[cgroup.Dir]directory
	did   map[string]work
}

// thread is a thread as it was read last, and the last reading in which it was there.
type thread struct {
	ctxswitch.Thread

	look int
}

// reading is what was read of a thread.
type reading struct {
	ctxswitch.Thread

	tid int
}

// directory is what was read last of one.
type directory struct {
	tids   []int
	listed bool // tids are known
	// What used told.
	spent   int64
	counted bool
}

// work is what threads of a group did.
type work struct {
	ctxswitch.Thread

	amounts

	ranOn map[int]time.Duration // nil: they did not run
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

// directory looks at a directory. Its threads are those of the last list where it has used no CPU time since the last
// reading, which still says, else they are listed anew. One that is gone has none.
func (t *threads) directory(w *Watched, d cgroup.Dir) (now directory, still bool) {
	before := t.dirs[d]
	if t.used != nil {
		now.spent, now.counted = t.used(w.tree, d)
	}
	still = now.counted && before.counted && now.spent == before.spent
	if still && before.listed && w == t.of {
		return before, true
	}
	tids, err := t.list(w.tree, d)
	now.tids, now.listed = tids, err == nil // else it is tried again the next time
	return now, still
}

// source reads every thread of the groups that are watched. Of a directory that has used no CPU time since the last
// reading only those threads are read that were not known then: the others did nothing. Its threads are not even listed
// before the agent's next full look: a fork and an exit take CPU time, so that one can come or go without any only when
// somebody moves it.
func (t *threads) source(k *Kernel) collect.Source {
	t.dirs, t.next, t.did = map[cgroup.Dir]directory{}, map[cgroup.Dir]directory{}, map[string]work{}
	return func(ctx context.Context, m *collect.Meter) (collect.Put, error) {
		w := k.watched.Load()
		now := time.Now()
		t.begin(now)
		living := make(map[string]int, len(w.groups))
		for group, dirs := range w.tasks {
			var all work
			for _, d := range dirs {
				n, err := t.readDir(ctx, w, d, now, &all)
				if err != nil {
					return nil, err
				}
				for at := group; at != "."; at = path.Dir(at) {
					living[at] += n
				}
				m.Rest()
			}
			t.did[group] = all
		}
		t.keep()
		ran := func(group string) bool { return t.did[group].Ran > 0 }
		alive := func(pid int) bool { _, lives := t.known[pid]; return lives }
		for group, f := range t.procs.read(w, ran, alive) {
			t.did[group] = t.did[group].plus(work{amounts: f})
		}
		sums := make(map[string]work, len(w.groups))
		for _, g := range w.groups {
			sums[g.Group.Group] = t.sums[g.Group.Group]
		}
		for group, one := range t.did {
			for at := group; at != "."; at = path.Dir(at) { // those of a/b are a's, too
				sums[at] = sums[at].plus(one)
			}
		}
		t.at, t.of, t.sums = now, w, sums
		t.dirs, t.next = t.next, t.dirs
		return t.put(sums, living), nil
	}
}

// begin begins a reading.
func (t *threads) begin(now time.Time) {
	t.look++
	t.fresh = t.fresh[:0]
	clear(t.next)
	clear(t.did)
	if t.files != nil {
		t.files.Begin(now)
	}
}

// readDir reads the threads of a directory, adds what they did, and says how many there are. What is known of threads
// stays as it was: a reading that fails is as if it had not been.
func (t *threads) readDir(ctx context.Context, w *Watched, d cgroup.Dir, now time.Time, all *work) (int, error) {
	dir, still := t.directory(w, d)
	t.next[d] = dir
	for _, tid := range dir.tids {
		before, there := t.known[tid]
		one := before.Thread
		if !still || !there {
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			var lives bool
			var err error
			if one, lives, err = t.read(tid, before.Thread); !lives || err != nil {
				continue
			}
		}
		if there && one == before.Thread {
			t.known[tid] = thread{one, t.look}
			continue
		}
		t.fresh = append(t.fresh, reading{one, tid})
		all.add(t.since(tid, one, now))
	}
	return len(dir.tids), nil
}

// keep has what was read be known, and forgets threads that are gone.
func (t *threads) keep() {
	first := t.known == nil
	if first {
		t.known = make(map[int]thread, len(t.fresh))
	}
	for _, r := range t.fresh {
		t.known[r.tid] = thread{r.Thread, t.look}
	}
	maps.DeleteFunc(t.known, func(_ int, one thread) bool { return one.look != t.look })
	if first { // it has all threads, those that follow few
		t.fresh = nil
	}
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
		if a.ranOn == nil {
			a.ranOn = map[int]time.Duration{}
		}
		a.Ran += one.Ran
		a.ranOn[one.CPU] += one.Ran
	}
}

// plus adds the work of two groups, and changes neither.
func (a work) plus(b work) work {
	sum := work{Thread: ctxswitch.Thread{Count: a.Count.Add(b.Count), Ran: a.Ran + b.Ran, Waited: a.Waited + b.Waited},
		ranOn: a.ranOn, amounts: a.amounts.plus(b.amounts)}
	if len(b.ranOn) > 0 {
		sum.ranOn = make(map[int]time.Duration, len(a.ranOn))
		maps.Copy(sum.ranOn, a.ranOn)
		for id, d := range b.ranOn {
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
				s.Groups[i].Threads.Waited = new(one.Waited)
			}
		}
	}
}
