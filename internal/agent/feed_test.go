package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/control"
	"bulkhead/internal/host"
)

func forkOf(parent, child int) host.ProcEvent {
	return host.ProcEvent{Kind: host.ProcFork, PID: child, Parent: parent}
}

func eventOf(kind host.ProcEventKind, pid int) host.ProcEvent {
	return host.ProcEvent{Kind: kind, PID: pid}
}

func TestFeed(t *testing.T) {
	tests := []struct {
		name       string
		hot        []int
		servers    []int
		events     []host.ProcEvent
		lost       int
		urgent     bool
		whole      bool
		seen, gone []int
		late       []int
		heirs      []control.Fork
	}{
		{name: "nothing"},
		{name: "a program starts", events: []host.ProcEvent{forkOf(5, 10), eventOf(host.ProcExec, 10)}, urgent: true, seen: []int{10}, heirs: []control.Fork{{Parent: 5, Child: 10}}},
		{name: "a fork alone can wait", events: []host.ProcEvent{forkOf(5, 10)}, seen: []int{10}, heirs: []control.Fork{{Parent: 5, Child: 10}}},
		{name: "a fork of one that was just moved cannot", hot: []int{5}, events: []host.ProcEvent{forkOf(5, 10)}, urgent: true, seen: []int{10}, heirs: []control.Fork{{Parent: 5, Child: 10}}},
		{name: "nor a fork of its child", hot: []int{5}, events: []host.ProcEvent{forkOf(5, 10), eventOf(host.ProcExit, 10), forkOf(10, 11)}, urgent: true, seen: []int{11}, gone: []int{10},
			heirs: []control.Fork{{Parent: 5, Child: 10}, {Parent: 10, Child: 11}}},
		{name: "another user", events: []host.ProcEvent{eventOf(host.ProcUID, 10)}, urgent: true, seen: []int{10}},
		{name: "another group", events: []host.ProcEvent{eventOf(host.ProcGID, 10)}, urgent: true, seen: []int{10}},
		{name: "another name", events: []host.ProcEvent{eventOf(host.ProcComm, 10)}, urgent: true, seen: []int{10}},
		{name: "an end can wait", events: []host.ProcEvent{eventOf(host.ProcExit, 10)}, gone: []int{10}},
		{name: "come and gone", events: []host.ProcEvent{forkOf(5, 10), eventOf(host.ProcExec, 10), eventOf(host.ProcExit, 10)}, urgent: true, gone: []int{10}, heirs: []control.Fork{{Parent: 5, Child: 10}}},
		{name: "a number given again", events: []host.ProcEvent{eventOf(host.ProcExit, 10), forkOf(5, 10)}, seen: []int{10}, heirs: []control.Fork{{Parent: 5, Child: 10}}},
		{name: "what a parent forked as another program is no heir", events: []host.ProcEvent{forkOf(10, 11), eventOf(host.ProcExec, 10), forkOf(10, 12)}, urgent: true, seen: []int{10, 11, 12}, heirs: []control.Fork{{Parent: 10, Child: 12}}},
		{name: "the child of a server writes a title", servers: []int{5}, events: []host.ProcEvent{forkOf(5, 10), forkOf(6, 11)}, seen: []int{10, 11}, late: []int{10},
			heirs: []control.Fork{{Parent: 5, Child: 10}, {Parent: 6, Child: 11}}},
		{name: "a loss", lost: 3, urgent: true, whole: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFeed()
			hot := map[int]time.Time{}
			for _, pid := range test.hot {
				hot[pid] = time.Unix(100, 0)
			}
			f.mind(hot, test.servers, time.Unix(100, 0))
			if got := f.note(test.events, test.lost, nil); got != test.urgent {
				t.Errorf("urgent %t", got)
			}
			b, lost, ended := f.take()
			if lost != int64(test.lost) || ended != nil || b.whole != test.whole || b.events != int64(len(test.events)) {
				t.Errorf("lost %d, ended %v, whole %t, %d events", lost, ended, b.whole, b.events)
			}
			seen, gone := slices.Sorted(slices.Values(b.seenPIDs())), slices.Sorted(slices.Values(b.gonePIDs()))
			if !slices.Equal(seen, test.seen) || !slices.Equal(gone, test.gone) || !slices.Equal(b.late, test.late) || !slices.Equal(b.heirs(), test.heirs) {
				t.Errorf("seen %v, gone %v, late %v, heirs %v", seen, gone, b.late, b.heirs())
			}
			if b, _, _ = f.take(); len(b.seen)+len(b.gone)+len(b.forks) != 0 || b.whole {
				t.Errorf("it comes again: %+v", b)
			}
		})
	}
}

func TestFeedCoolsDown(t *testing.T) {
	f := newFeed()
	hot := map[int]time.Time{5: time.Unix(100, 0)}
	f.mind(hot, nil, time.Unix(100, 0).Add(restless+1))
	if f.note([]host.ProcEvent{forkOf(5, 10)}, 0, nil) || len(hot) != 0 {
		t.Error("a process that was moved long ago still counts")
	}
}

func TestFeedOfACrowd(t *testing.T) {
	f := newFeed()
	for pid := range crowd {
		if f.note([]host.ProcEvent{forkOf(5, 100+pid)}, 0, nil) {
			t.Fatalf("urgent after %d forks", pid+1)
		}
	}
	if !f.note([]host.ProcEvent{forkOf(5, 99)}, 0, nil) {
		t.Error("a crowd is not urgent")
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
	for pid := range crowd + 1 {
		crowded.merge(batch{seen: set(pid + 1)})
	}
	if !crowded.whole {
		t.Error("a crowd is read one by one")
	}
}

// scripted is a source of events that a test writes.
type scripted struct {
	reads  chan []host.ProcEvent
	closed bool
}

func (s *scripted) Read([]host.ProcEvent) ([]host.ProcEvent, int, error) {
	events, more := <-s.reads
	if !more {
		return nil, 0, fmt.Errorf("read process events: %w", errors.ErrUnsupported)
	}
	return events, 0, nil
}

func (s *scripted) Close() error { s.closed = true; return nil }

func TestFeedReads(t *testing.T) {
	s := &scripted{reads: make(chan []host.ProcEvent)}
	f := newFeed()
	done := make(chan struct{})
	go func() { f.read(s); close(done) }()
	s.reads <- []host.ProcEvent{eventOf(host.ProcExec, 10)}
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
	f = newFeed()
	if f.note(nil, 0, os.ErrClosed) {
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

func TestBreather(t *testing.T) {
	for used, want := range map[time.Duration]time.Duration{0: 0, time.Millisecond: time.Millisecond, time.Minute: 250 * time.Millisecond} {
		if got := breather(used); got != want {
			t.Errorf("after %v: %v", used, got)
		}
	}
}
