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

	"bulkhead/internal/control"
	"bulkhead/internal/host"
)

const (
	// crowd is how many processes may wait to be read; when more have come, reading /proc as a whole is as
	// cheap and forgets nobody.
	crowd = 2000
	// restless is how long the forks of a process that was just moved are looked at without delay: what it
	// forked on the way may have been born outside.
	restless = time.Second
	// titleTime is when the child of a database server is looked at again: it writes its title over its
	// arguments some time after fork(2), and no event tells (PostgreSQL's ps_status.c).
	titleTime = 150 * time.Millisecond
)

// feed collects process events until the loop takes them. Its reader only notes what happened: it must be
// faster than the kernel.
type feed struct {
	wake chan struct{} // somebody may be in the wrong place

	mu    sync.Mutex
	batch batch
	order int              // counts events
	hot   map[int]struct{} // processes whose forks matter at once
	title map[int]struct{} // processes whose forks write titles
	lost  int64
	ended error // why the reader ended
}

// batch is what happened since the loop last took it.
type batch struct {
	seen   map[int]struct{} // to be read
	gone   map[int]struct{}
	late   []int // to be read again when they have their titles
	forks  []numbered
	execs  map[int]int // when, in the order of events
	whole  bool        // only a look at every process helps: something was lost, or too much happened
	events int64
}

// numbered is a fork with its place among the events.
type numbered struct {
	control.Fork
	order int
}

func newFeed() *feed {
	return &feed{wake: make(chan struct{}, 1), batch: newBatch()}
}

func newBatch() batch {
	return batch{seen: map[int]struct{}{}, gone: map[int]struct{}{}, execs: map[int]int{}}
}

// source is where events come from. *host.ProcEventStream is one.
type source interface {
	Read(to []host.ProcEvent) (events []host.ProcEvent, lost int, err error)
	Close() error
}

// read notes events until the source ends.
func (f *feed) read(from source) {
	var events []host.ProcEvent
	for {
		var lost int
		var err error
		events, lost, err = from.Read(events)
		if f.note(events, lost, err) {
			select {
			case f.wake <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return
		}
	}
}

// note takes events in and says whether they are for now.
func (f *feed) note(events []host.ProcEvent, lost int, err error) (urgent bool) {
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
		urgent = f.batch.add(e, f) || urgent
	}
	if len(f.batch.seen) > crowd {
		f.batch.whole, urgent = true, true
	}
	return urgent
}

// add takes one event in.
func (b *batch) add(e host.ProcEvent, f *feed) (urgent bool) {
	f.order++
	b.events++
	switch e.Kind {
	case host.ProcExit:
		delete(b.seen, e.PID)
		delete(b.execs, e.PID)
		b.gone[e.PID] = struct{}{}
		return false
	case host.ProcFork:
		b.forks = append(b.forks, numbered{control.Fork{Parent: e.Parent, Child: e.PID}, f.order})
		if _, is := f.title[e.Parent]; is {
			b.late = append(b.late, e.PID)
		}
		if _, urgent = f.hot[e.Parent]; urgent {
			f.hot[e.PID] = struct{}{}
		}
	case host.ProcExec:
		b.execs[e.PID] = f.order
		urgent = true
	default: // another user, group or name
		urgent = true
	}
	delete(b.gone, e.PID)
	b.seen[e.PID] = struct{}{}
	return urgent
}

// take gives what happened since it was called last.
func (f *feed) take() (batch, int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.batch
	f.batch = newBatch()
	return b, f.lost, f.ended
}

// mind says whose forks matter at once, and whose children write titles.
func (f *feed) mind(hot map[int]time.Time, servers []int, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hot = make(map[int]struct{}, len(hot))
	for pid, since := range hot {
		if now.Sub(since) > restless {
			delete(hot, pid)
			continue
		}
		f.hot[pid] = struct{}{}
	}
	if servers != nil {
		f.title = make(map[int]struct{}, len(servers))
		for _, pid := range servers {
			f.title[pid] = struct{}{}
		}
	}
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
	b.whole = b.whole || next.whole || len(b.seen) > crowd
}

// seenPIDs are the processes to be read, and gonePIDs those that are gone.
func (b *batch) seenPIDs() []int { return slices.Collect(maps.Keys(b.seen)) }
func (b *batch) gonePIDs() []int { return slices.Collect(maps.Keys(b.gone)) }

// heirs are the forks after which the parent has not become another program.
func (b *batch) heirs() []control.Fork {
	var forks []control.Fork
	for _, n := range b.forks {
		if b.execs[n.Parent] < n.order {
			forks = append(forks, n.Fork)
		}
	}
	return forks
}

// listenEvents subscribes to process events. Without them the look at fixed times stays, and status says why.
func (a *Agent) listenEvents() {
	stream, err := a.o.events()
	if err != nil {
		a.setSource(fmt.Sprintf("a look every %s (%v)", a.o.Every, err))
		a.o.Log.Warn("new processes are seen late", "every", a.o.Every, "err", err)
		return
	}
	a.feed, a.stream = newFeed(), stream
	a.feed.mind(nil, []int{}, time.Time{})
	a.setSource("events of the kernel")
	go a.feed.read(stream)
}

func (a *Agent) setSource(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.Source = text
}

// deaf gives events up when their source has ended.
func (a *Agent) deaf(why error) {
	_ = a.stream.Close()
	a.feed, a.stream = nil, nil
	a.setSource(fmt.Sprintf("a look every %s (the events of the kernel ended: %v)", a.o.Every, why))
	a.o.Log.Warn("process events ended; new processes are seen late", "every", a.o.Every, "err", why)
}

// breather is how long the loop leaves events waiting after a look: as long as the look took of a CPU, so that
// a storm of forks costs half a core at most, and more of them are taken at once.
func breather(used time.Duration) time.Duration {
	return min(used, 250*time.Millisecond)
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
