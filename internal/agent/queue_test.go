package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/linux/procevents"
	"bulkhead/internal/reconcile"
)

// hear does with events what the reader does.
func (f *eventQueue) hear(events []procevents.Event, lost int, err error) bool {
	urgent, asked := f.note(events, lost, err, nil)
	return f.filter(asked) || urgent
}

func forkOf(parent, child int) procevents.Event {
	return procevents.Event{Kind: procevents.Fork, PID: child, Parent: parent}
}

func eventOf(kind procevents.Kind, pid int) procevents.Event {
	return procevents.Event{Kind: kind, PID: pid}
}

func TestFeed(t *testing.T) {
	tests := []struct {
		name            string
		hot             []int
		servers         []int
		events          []procevents.Event
		lost            int
		urgent          bool
		whole           bool
		seen, gone      []int
		late            []int
		forksBeforeExec []reconcile.Fork
	}{
		{name: "nothing"},
		{name: "a program starts", events: []procevents.Event{forkOf(5, 10), eventOf(procevents.Exec, 10)},
			urgent: true, seen: []int{10}, forksBeforeExec: []reconcile.Fork{{Parent: 5, Child: 10}}},
		{name: "a fork alone can wait", events: []procevents.Event{forkOf(5, 10)}, seen: []int{10},
			forksBeforeExec: []reconcile.Fork{{Parent: 5, Child: 10}}},
		{name: "a fork of one that was just moved cannot", hot: []int{5}, events: []procevents.Event{forkOf(5, 10)},
			urgent: true, seen: []int{10}, forksBeforeExec: []reconcile.Fork{{Parent: 5, Child: 10}}},
		{name: "nor a fork of its child", hot: []int{5},
			events: []procevents.Event{forkOf(5, 10), eventOf(procevents.Exit, 10), forkOf(10, 11)}, urgent: true,
			seen: []int{11}, gone: []int{10},
			forksBeforeExec: []reconcile.Fork{{Parent: 5, Child: 10}, {Parent: 10, Child: 11}}},
		{name: "another user", events: []procevents.Event{eventOf(procevents.UID, 10)}, urgent: true, seen: []int{10}},
		{name: "another group", events: []procevents.Event{eventOf(procevents.GID, 10)}, urgent: true, seen: []int{10}},
		{name: "another name", events: []procevents.Event{eventOf(procevents.Comm, 10)}, urgent: true, seen: []int{10}},
		{name: "an end can wait", events: []procevents.Event{eventOf(procevents.Exit, 10)}, gone: []int{10}},
		{name: "come and gone", events: []procevents.Event{forkOf(5, 10), eventOf(procevents.Exec, 10),
			eventOf(procevents.Exit, 10)}, gone: []int{10}, forksBeforeExec: []reconcile.Fork{{Parent: 5, Child: 10}}},
		{name: "a number given again", events: []procevents.Event{eventOf(procevents.Exit, 10), forkOf(5, 10)},
			seen: []int{10}, forksBeforeExec: []reconcile.Fork{{Parent: 5, Child: 10}}},
		{name: "what a parent forked as another program is no heir",
			events: []procevents.Event{forkOf(10, 11), eventOf(procevents.Exec, 10), forkOf(10, 12)}, urgent: true,
			seen: []int{10, 11, 12}, forksBeforeExec: []reconcile.Fork{{Parent: 10, Child: 12}}},
		{name: "the child of a server writes a title", servers: []int{5},
			events: []procevents.Event{forkOf(5, 10), forkOf(6, 11)}, seen: []int{10, 11}, late: []int{10},
			forksBeforeExec: []reconcile.Fork{{Parent: 5, Child: 10}, {Parent: 6, Child: 11}}},
		{name: "a loss", lost: 3, urgent: true, whole: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newEventQueue()
			f.mind(test.hot, test.servers, []int{}, nil, time.Unix(100, 0))
			if got := f.hear(test.events, test.lost, nil); got != test.urgent {
				t.Errorf("urgent %t", got)
			}
			b, lost, ended := f.take()
			if lost != int64(test.lost) || ended != nil || b.whole != test.whole ||
				b.events != int64(len(test.events)) {
				t.Errorf("lost %d, ended %v, whole %t, %d events", lost, ended, b.whole, b.events)
			}
			seen, gone := slices.Sorted(slices.Values(b.seenPIDs())), slices.Sorted(slices.Values(b.gonePIDs()))
			if !slices.Equal(seen, test.seen) || !slices.Equal(gone, test.gone) || !slices.Equal(b.late, test.late) ||
				!slices.Equal(b.forksBeforeExec(), test.forksBeforeExec) {
				t.Errorf("seen %v, gone %v, late %v, forksBeforeExec %v", seen, gone, b.late, b.forksBeforeExec())
			}
			if b, _, _ = f.take(); len(b.seen)+len(b.gone)+len(b.forks) != 0 || b.whole {
				t.Errorf("it comes again: %+v", b)
			}
		})
	}
}

func TestFeedCoolsDown(t *testing.T) {
	f := newEventQueue()
	f.mind([]int{5}, nil, nil, nil, time.Unix(100, 0))
	f.mind(nil, []int{}, []int{}, nil, time.Unix(100, 0).Add(hotTime+1))
	if f.hear([]procevents.Event{forkOf(5, 10)}, 0, nil) || len(f.hot) != 0 {
		t.Error("a process that was moved long ago still counts")
	}
}

// picky is a prefilter that lets some processes through.
type picky map[int]bool

func (p picky) Concerns(pid int) bool { return p[pid] }

func TestFeedAsksTheSieve(t *testing.T) {
	exec := func(pid int) procevents.Event { return eventOf(procevents.Exec, pid) }
	tests := []struct {
		name   string
		events []procevents.Event
		want   []int // to be read at once
	}{
		{"a stranger", []procevents.Event{forkOf(1, 10), exec(10)}, nil},
		{"one that matters", []procevents.Event{forkOf(1, 11), exec(11)}, []int{11}},
		{"one that matters, among strangers", []procevents.Event{exec(10), exec(11), eventOf(procevents.UID, 12)},
			[]int{11}},
		{"one that matters and is gone", []procevents.Event{exec(11), eventOf(procevents.Exit, 11)}, nil},
		{"a server", []procevents.Event{exec(50)}, []int{50}},
		{"what a server has started before", []procevents.Event{exec(51)}, []int{51}},
		{"what a server starts", []procevents.Event{forkOf(50, 60), exec(60)}, []int{60}},
		{"what that starts", []procevents.Event{forkOf(51, 60), forkOf(60, 61), exec(61)}, []int{61}},
		{"a number that a server's child had",
			[]procevents.Event{forkOf(50, 60), eventOf(procevents.Exit, 60), forkOf(1, 60), exec(60)}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newEventQueue()
			f.mind(nil, []int{50}, []int{51}, picky{11: true}, time.Unix(100, 0))
			if got := f.hear(test.events, 0, nil); got != (test.want != nil) {
				t.Errorf("urgent %t", got)
			}
			b, _, _ := f.take()
			if got := slices.Sorted(slices.Values(b.wantPIDs())); !slices.Equal(got, test.want) {
				t.Errorf("to be read at once: %v, want %v", got, test.want)
			}
		})
	}
}

// What a process forked between its exec and the end of its move was born outside, maybe.
func TestFeedCallsForWhatWasForkedOnTheWay(t *testing.T) {
	f := newEventQueue()
	f.hear([]procevents.Event{forkOf(5, 10), forkOf(10, 11), forkOf(6, 12)}, 0, nil)
	f.mind([]int{5}, nil, nil, nil, time.Unix(100, 0))
	select {
	case <-f.wake:
	default:
		t.Error("nobody calls")
	}
	b, _, _ := f.take()
	if got := slices.Sorted(slices.Values(b.wantPIDs())); !slices.Equal(got, []int{10, 11}) {
		t.Errorf("to be read at once: %v", got)
	}
}

func TestFeedOfACrowd(t *testing.T) {
	f := newEventQueue()
	for pid := range maxWaiting {
		if f.hear([]procevents.Event{forkOf(5, 100+pid)}, 0, nil) {
			t.Fatalf("urgent after %d forks", pid+1)
		}
	}
	if !f.hear([]procevents.Event{forkOf(5, 99)}, 0, nil) {
		t.Error("a maxWaiting is not urgent")
	}
	if b, lost, _ := f.take(); !b.whole || lost != 0 {
		t.Errorf("whole %t, lost %d", b.whole, lost)
	}
}

func TestBatchMerge(t *testing.T) {
	set := func(pids ...int) map[int]struct{} {
		m := map[int]struct{}{}
		for _, pid := range pids {
			m[pid] = struct{}{}
		}
		return m
	}
	b := batch{seen: set(1, 2), gone: set(3, 4)}
	b.merge(batch{seen: set(3, 5), gone: set(1, 6)})
	if got := slices.Sorted(slices.Values(b.seenPIDs())); !slices.Equal(got, []int{2, 3, 5}) {
		t.Errorf("seen %v", got)
	}
	if got := slices.Sorted(slices.Values(b.gonePIDs())); !slices.Equal(got, []int{1, 4, 6}) {
		t.Errorf("gone %v", got)
	}
	if b.whole {
		t.Error("nothing was lost")
	}
	if b.merge(batch{whole: true}); !b.whole {
		t.Error("a loss is forgotten")
	}
	crowded := newBatch()
	for pid := range maxWaiting + 1 {
		crowded.merge(batch{seen: set(pid + 1)})
	}
	if !crowded.whole {
		t.Error("a maxWaiting is read one by one")
	}
}

// scripted is a source of events that a test writes.
type scripted struct {
	reads  chan []procevents.Event
	closed bool
	within chan time.Duration // what was asked for; nil: of no interest
}

func (s *scripted) Read([]procevents.Event) ([]procevents.Event, int, error) {
	events, more := <-s.reads
	if !more {
		return nil, 0, fmt.Errorf("read process events: %w", errors.ErrUnsupported)
	}
	return events, 0, nil
}

func (s *scripted) Within(d time.Duration) {
	select {
	case s.within <- d:
	default:
	}
}

func (s *scripted) Close() error { s.closed = true; return nil }

func TestFeedReads(t *testing.T) {
	s := &scripted{reads: make(chan []procevents.Event)}
	f := newEventQueue()
	done := make(chan struct{})
	go func() { f.read(s); close(done) }()
	s.reads <- []procevents.Event{eventOf(procevents.Exec, 10)}
	<-f.wake
	if b, _, ended := f.take(); ended != nil || len(b.seen) != 1 {
		t.Errorf("%+v, %v", b, ended)
	}
	close(s.reads)
	<-done
	<-f.wake // for the last time
	if b, _, ended := f.take(); !errors.Is(ended, errors.ErrUnsupported) || !b.whole {
		t.Errorf("ended with %v, whole %t", ended, b.whole)
	}
	f = newEventQueue()
	if f.hear(nil, 0, os.ErrClosed) {
		t.Error("our own close is urgent")
	}
}

func TestRetitled(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	due := []late{{1, at(10)}, {2, at(30)}, {3, at(20)}}
	if got := nextLate(due); got != at(10) {
		t.Errorf("next at %v", got)
	}
	pids, left := retitled(due, at(20))
	if !slices.Equal(pids, []int{1, 3}) || !slices.Equal(left, []late{{2, at(30)}}) {
		t.Errorf("due %v, left %v", pids, left)
	}
	if !nextLate(nil).IsZero() {
		t.Error("nothing is due")
	}
}

func TestBudget(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	b := budget{left: maxBurst, at: at(0)}
	for _, step := range []struct{ used, now, rest int }{
		{5, 5, 0}, {5, 10, 0}, // 15 and 12 are left
		{30, 60, 20}, {30, 70, 70}, // what was taken too much is owed twice over
		{0, 1000, 0}, {20, 1001, 0}, {2, 1002, 3}, // only a little is saved up
		{1000, 2022, 250}, // no longer than that
	} {
		if got := b.spend(time.Duration(step.used)*time.Millisecond,
			at(step.now)); got != time.Duration(step.rest)*time.Millisecond {
			t.Errorf("%d ms used by %d ms: rest %v, want %d ms", step.used, step.now, got, step.rest)
		}
	}
}
