package agent

import (
	"slices"
	"testing"
	"time"

	"bulkhead/internal/linux/procevents"
)

func TestPlacings(t *testing.T) {
	now := int64(time.Hour)
	p := placements{now: func() int64 { return now }}
	if p.figures() != nil {
		t.Error("figures of nobody")
	}
	ago := func(d time.Duration) int64 { return now - int64(d) }
	p.came(batch{came: map[int]int64{1: ago(50 * time.Microsecond), 2: ago(2 * time.Millisecond),
		3: ago(5 * time.Second), 4: ago(time.Millisecond), 6: 0}})
	p.came(batch{gone: map[int]struct{}{4: {}}})
	p.moved([]int{1, 2, 3, 4, 5, 6}, howFastPath) // 4 has exited, of 5 nobody told, of 6 not when
	f := p.figures()
	if f == nil || f.Count != 3 || f.Slowest != 5*time.Second {
		t.Fatalf("figures %+v", f)
	}
	var counts []int64
	for _, w := range f.Within {
		counts = append(counts, w.Count)
	}
	if want := []int64{1, 0, 0, 1, 0, 0, 0, 0, 0, 1}; !slices.Equal(counts, want) {
		t.Errorf("histogram %v, want %v", counts, want)
	}
	for share, want := range map[float64]time.Duration{0.3: 100 * time.Microsecond, 0.5: 3 * time.Millisecond,
		0.99: 5 * time.Second} {
		if got := f.Share(share); got != want {
			t.Errorf("%v of them within %v, want %v", share, got, want)
		}
	}
	p.came(batch{came: map[int]int64{7: ago(0)}})
	p.forget() // a stranger, that a later rule claims
	p.moved([]int{7}, howLook)
	if p.figures().Count != 3 {
		t.Error("one that nobody waited for is counted")
	}
	if w := p.recall(2); w == nil || w.Took != 2*time.Millisecond || w.How != howFastPath ||
		time.Since(w.At) > time.Minute {
		t.Errorf("2 was placed %+v", w)
	}
	if w := p.recall(5); w != nil {
		t.Errorf("5 was placed %+v", w)
	}
	p.came(batch{gone: map[int]struct{}{2: {}}, came: map[int]int64{1: ago(0)}})
	if p.recall(2) != nil {
		t.Error("what has exited is remembered")
	}
	// Only so many are remembered, and one that was placed again is not among the oldest.
	for pid := 100; pid < 100+recentPlacements; pid++ {
		p.came(batch{came: map[int]int64{pid: ago(0), 1: ago(0)}})
		p.moved([]int{pid, 1}, howLook)
	}
	if len(p.order) > recentPlacements || len(p.recent) > recentPlacements || p.recall(1) == nil || p.recall(3) != nil {
		t.Errorf("%d are remembered, in an order of %d", len(p.recent), len(p.order))
	}
	f = p.figures()
	if f.Within[0].Count++; p.figures().Within[0].Count != f.Within[0].Count-1 {
		t.Error("the figures are not a copy")
	}
}

// An event's time is on the clock that the histogram reads.
func TestPlacingsClock(t *testing.T) {
	var p placements
	first := p.clock()
	if second := p.clock(); first <= 0 || second < first {
		t.Errorf("the clock reads %d, then %d", first, second)
	}
	f := newEventQueue()
	f.note([]procevents.Event{{Kind: procevents.Exec, PID: 10, Time: 77}, {Kind: procevents.Exec, PID: 11, Time: 78},
		{Kind: procevents.Exit, PID: 11, Time: 79}}, 0, nil, nil)
	if b, _, _ := f.take(); len(b.came) != 1 || b.came[10] != 77 {
		t.Errorf("came %v", b.came)
	}
}

// What a process had in memory is asked for only when it had the time to get some.
func TestPlacingsWeigh(t *testing.T) {
	now := int64(time.Hour)
	asked := 0
	p := placements{now: func() int64 { return now }, resident: func(int) int64 { asked++; return 5 << 20 }}
	b := newBatch()
	b.came[10], b.came[11] = now-int64(time.Millisecond), now-int64(time.Second)
	p.came(b)
	p.moved([]int{10, 11, 12}, howLook)
	if young, old := p.recall(10), p.recall(11); asked != 1 || young.Resident != 0 || old.Resident != 5<<20 {
		t.Errorf("asked %d times; %+v, %+v", asked, young, old)
	}
}
