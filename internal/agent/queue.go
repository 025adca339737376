package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/linux/procevents"
	"bulkhead/internal/reconcile"
)

const (
	// maxWaiting is how many processes may wait to be read; when more have come, reading /proc as a whole is as
	// cheap and forgets nobody.
	maxWaiting = 2000
	// hotTime is how long the forks of a process that was just moved are looked at as they are read: what it forked on
	// the way may have been born outside.
	hotTime = time.Second
	// titleTime is when the child of a database server is looked at again: it writes its title over its
	// arguments some time after fork(2), and no event tells (PostgreSQL's ps_status.c).
	titleTime = 150 * time.Millisecond
)

// eventQueue collects process events until the loop takes them. Its reader only notes what happened: it must be
// faster than the kernel.
type eventQueue struct {
	wake chan struct{} // somebody may be in the wrong place

	mu        sync.Mutex
	batch     batch
	order     int               // counts events
	hot       map[int]time.Time // processes whose forks matter at once, and since when
	title     map[int]struct{}  // processes whose forks write titles
	kin       map[int]struct{}  // what those have forked, and so on
	prefilter prefilter         // nil lets everything through
	lost      int64
	ended     error // why the reader ended
}

// prefilter tells which processes may have to be moved. *control.Prefilter is one.
type prefilter interface{ Concerns(pid int) bool }

// batch is what happened since the loop last took it.
type batch struct {
	seen   map[int]struct{} // to be read
	want   map[int]struct{} // of these, the ones to be read at once
	gone   map[int]struct{}
	came   map[int]int64 // when each became what it is now, ns of CLOCK_MONOTONIC
	late   []int         // to be read again when they have their titles
	forks  []numbered
	execs  map[int]int // when, in the order of events
	whole  bool        // only a look at every process helps: something was lost, or too much happened
	events int64
}

// numbered is a fork with its place among the events.
type numbered struct {
	reconcile.Fork
	order int
}

func newEventQueue() *eventQueue {
	return &eventQueue{wake: make(chan struct{}, 1), batch: newBatch(), hot: map[int]time.Time{},
		kin: map[int]struct{}{}}
}

func newBatch() batch {
	return batch{seen: map[int]struct{}{}, want: map[int]struct{}{}, gone: map[int]struct{}{}, came: map[int]int64{},
		execs: map[int]int{}}
}

// source is where events come from. *host.ProcEventStream is one.
type source interface {
	Read(to []procevents.Event) (events []procevents.Event, lost int, err error)
	// Within has a Read, also one that waits, take what there is no later than that from now.
	Within(d time.Duration)
	Close() error
}

const (
	// lazily is how long forks and exits of others may wait: they wake nobody by themselves. Eagerly is how long after
	// a move they are taken: what a process forked on the way may have been born outside.
	lazily  = 250 * time.Millisecond
	eagerly = 20 * time.Millisecond
)

// read notes events until the source ends.
func (f *eventQueue) read(from source) {
	var events []procevents.Event
	var asked []int
	for {
		var lost int
		var err error
		events, lost, err = from.Read(events)
		var urgent bool
		urgent, asked = f.note(events, lost, err, asked[:0])
		if f.filter(asked) || urgent {
			f.call()
		}
		if err != nil {
			return
		}
	}
}

// call wakes the loop.
func (f *eventQueue) call() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// note takes events in and says whether they are for now. Asked are the processes of which the prefilter is to say so.
func (f *eventQueue) note(events []procevents.Event, lost int, err error, asked []int) (urgent bool, _ []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrClosed) {
		f.ended = err
		f.batch.whole, urgent = true, true
	}
	if lost > 0 {
		f.lost += int64(lost)
		f.batch.whole, urgent = true, true
	}
	for _, e := range events {
		now, ask := f.batch.add(e, f)
		urgent = urgent || now
		if ask {
			asked = append(asked, e.PID)
		}
	}
	if len(f.batch.seen) > maxWaiting {
		f.batch.whole, urgent = true, true
	}
	// One that came and went with the same reading is nobody's concern.
	return urgent, slices.DeleteFunc(asked, func(pid int) bool { _, gone := f.batch.gone[pid]; return gone })
}

// filter asks the prefilter about processes, outside of the lock: it reads them.
func (f *eventQueue) filter(asked []int) (urgent bool) {
	if len(asked) == 0 {
		return false
	}
	f.mu.Lock()
	s := f.prefilter
	f.mu.Unlock()
	var concern []int
	for _, pid := range asked {
		if s == nil || s.Concerns(pid) {
			concern = append(concern, pid)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, pid := range concern {
		if _, gone := f.batch.gone[pid]; !gone {
			f.batch.seen[pid] = struct{}{} // the loop may have taken it meanwhile
			f.batch.want[pid] = struct{}{}
			urgent = true
		}
	}
	return urgent
}

// add takes one event in. It is for now, or the prefilter is to be asked.
func (b *batch) add(e procevents.Event, f *eventQueue) (urgent, ask bool) {
	f.order++
	b.events++
	switch e.Kind {
	case procevents.Exit:
		delete(b.seen, e.PID)
		delete(b.want, e.PID)
		delete(b.execs, e.PID)
		delete(b.came, e.PID)
		delete(f.kin, e.PID)
		delete(f.hot, e.PID)
		b.gone[e.PID] = struct{}{}
		return false, false
	case procevents.Fork:
		b.forks = append(b.forks, numbered{reconcile.Fork{Parent: e.Parent, Child: e.PID}, f.order})
		if _, is := f.title[e.Parent]; is {
			b.late = append(b.late, e.PID)
		}
		if f.isKin(e.Parent) {
			f.kin[e.PID] = struct{}{}
		}
		since, hot := f.hot[e.Parent]
		if urgent = hot; hot {
			f.hot[e.PID] = since
		}
	case procevents.Exec:
		b.execs[e.PID] = f.order
		urgent = f.isKin(e.PID)
		ask = !urgent
	default: // another user, group or name
		urgent = f.isKin(e.PID)
		ask = !urgent
	}
	delete(b.gone, e.PID)
	b.seen[e.PID], b.came[e.PID] = struct{}{}, e.Time
	if urgent {
		b.want[e.PID] = struct{}{}
	}
	return urgent, ask
}

// isKin says whether a process is the main one of a server or descends from one: what it is to the server only a whole
// look tells.
func (f *eventQueue) isKin(pid int) bool {
	_, kin := f.kin[pid]
	_, main := f.title[pid]
	return kin || main
}

// take gives what happened since it was called last.
func (f *eventQueue) take() (batch, int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.batch
	f.batch = newBatch()
	return b, f.lost, f.ended
}

// mind says which processes were just moved, so that their forks matter at once; which are servers, whose children
// write titles, and what descends from them; and how others are told apart. nil leaves what was said before.
func (f *eventQueue) mind(moved, servers, kin []int, s prefilter, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, pid := range moved {
		f.hot[pid] = now
	}
	if servers != nil {
		f.title = setOf(servers)
		maps.DeleteFunc(f.hot, func(_ int, since time.Time) bool { return now.Sub(since) > hotTime })
	}
	if kin != nil {
		f.kin = setOf(kin)
	}
	if s != nil {
		f.prefilter = s
	}
	// What was forked since the events were taken, before anybody knew that it matters.
	for _, n := range f.batch.forks {
		if f.isKin(n.Parent) {
			f.kin[n.Child] = struct{}{}
		}
		since, matters := f.hot[n.Parent]
		if !matters {
			continue
		}
		f.hot[n.Child] = since
		if _, alive := f.batch.seen[n.Child]; alive {
			f.batch.want[n.Child] = struct{}{}
		}
		f.call()
	}
}

func setOf(pids []int) map[int]struct{} {
	set := make(map[int]struct{}, len(pids))
	for _, pid := range pids {
		set[pid] = struct{}{}
	}
	return set
}

// merge takes in what happened after it. Forks are not kept: those that matter are looked at as they come.
func (b *batch) merge(next batch) {
	for pid := range next.gone {
		delete(b.seen, pid)
		b.gone[pid] = struct{}{}
	}
	for pid := range next.seen {
		delete(b.gone, pid)
		b.seen[pid] = struct{}{}
	}
	b.whole = b.whole || next.whole || len(b.seen) > maxWaiting
}

// seenPIDs are the processes to be read, and gonePIDs those that are gone.
func (b *batch) seenPIDs() []int { return slices.Collect(maps.Keys(b.seen)) }
func (b *batch) gonePIDs() []int { return slices.Collect(maps.Keys(b.gone)) }
func (b *batch) wantPIDs() []int { return slices.Collect(maps.Keys(b.want)) }

// forksBeforeExec are the forks after which the parent has not become another program.
func (b *batch) forksBeforeExec() []reconcile.Fork {
	var forks []reconcile.Fork
	for _, n := range b.forks {
		if b.execs[n.Parent] < n.order {
			forks = append(forks, n.Fork)
		}
	}
	return forks
}

// listenEvents subscribes to process events: to the kernel's connector, else by programs of our own. Without them the
// look at fixed times stays, and status says why.
func (a *Agent) listenEvents() {
	stream, err := a.o.events()
	name := "events of the kernel"
	if err != nil {
		name = fmt.Sprintf("BPF programs on tracepoints (%v)", err)
		var second error
		if stream, second = a.o.traces(); second == nil {
			err = nil
		} else {
			err = fmt.Errorf("%w; by BPF: %w", err, second)
		}
	}
	if err != nil {
		a.setSource(fmt.Sprintf("a look every %s (%v)", a.o.Every, err))
		a.o.Log.Warn("new processes are seen late", "every", a.o.Every, "err", err)
		return
	}
	a.queue, a.stream = newEventQueue(), stream
	a.queue.mind(nil, []int{}, []int{}, nil, time.Time{})
	a.setSource(name)
	go a.queue.read(stream)
}

func (a *Agent) setSource(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.Source = text
}

// eventsEnded gives events up when their source has ended.
func (a *Agent) eventsEnded(why error) {
	_ = a.stream.Close()
	a.queue, a.stream = nil, nil
	a.setSource(fmt.Sprintf("a look every %s (the events of the kernel ended: %v)", a.o.Every, why))
	a.o.Log.Warn("process events ended; new processes are seen late", "every", a.o.Every, "err", why)
	now := time.Now()
	if now.Sub(a.opened) > maxReopenWait {
		a.reopenWait = 0
	}
	a.reopenWait = min(max(2*a.reopenWait, minReopenWait), maxReopenWait)
	a.reopenAt = now.Add(a.reopenWait)
}

// The time between the end of an event source and the attempt to open one again. It doubles with each that fails or
// ends soon.
const (
	minReopenWait = time.Second
	maxReopenWait = time.Minute
)

// reopenEvents opens an event source in place of one that ended, when it is time.
func (a *Agent) reopenEvents(now time.Time) {
	if a.reopenAt.IsZero() || now.Before(a.reopenAt) {
		return
	}
	if a.listenEvents(); a.queue == nil {
		a.reopenWait = min(2*a.reopenWait, maxReopenWait)
		a.reopenAt = now.Add(a.reopenWait)
		return
	}
	a.reopenAt, a.opened = time.Time{}, now
	a.held.whole = true // what happened meanwhile, nobody told
}

// maxBurst is how much of a CPU the loop may use on end.
const maxBurst = 20 * time.Millisecond

// budget holds the loop to half a core in a storm of events, and so has it take more of them at once. What was not used
// counts for maxBurst.
type budget struct {
	left time.Duration
	at   time.Time
}

// spend notes what was used of a CPU until now, and says how long events are to wait.
func (b *budget) spend(used time.Duration, now time.Time) time.Duration {
	b.left = min(maxBurst, b.left+now.Sub(b.at)/2) - used
	b.at = now
	return min(max(0, -2*b.left), 250*time.Millisecond)
}

// retitled takes the processes whose time has come.
func retitled(due []late, now time.Time) (pids []int, left []late) {
	for _, l := range due {
		if now.Before(l.at) {
			left = append(left, l)
		} else {
			pids = append(pids, l.pid)
		}
	}
	return pids, left
}

// late is a process to be looked at again.
type late struct {
	pid int
	at  time.Time
}

// nextLate is when the first of them is due.
func nextLate(due []late) time.Time {
	if len(due) == 0 {
		return time.Time{}
	}
	return slices.MinFunc(due, func(x, y late) int { return cmp.Compare(x.at.UnixNano(), y.at.UnixNano()) }).at
}
