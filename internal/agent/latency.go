package agent

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
)

// bounds are those of the histogram.
var bounds = []time.Duration{
	100 * time.Microsecond, 300 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond,
	30 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, time.Second, 0,
}

// recentPlacements is of how many processes the agent remembers when they were placed.
const recentPlacements = 4096

// placements keeps how long processes wait for their groups. Only the loop uses it, but for recall and figures.
type placements struct {
	since map[int]int64 // of processes that events told of and that no look has decided on, ns of CLOCK_MONOTONIC
	now   func() int64  // nil is the kernel's clock
	// resident gives what a process has in memory, bytes; nil is not known.
	resident func(pid int) int64

	mu     sync.Mutex           // guards what follows
	recent map[int]api.PlacedAt // of processes that have not exited since
	order  []kept               // of recent, the oldest first; one that has exited may still be in it
	total  api.Placement
}

// came takes in what events told.
func (p *placements) came(b batch) {
	p.mu.Lock()
	for pid := range b.gone {
		delete(p.since, pid)
		delete(p.recent, pid)
	}
	p.mu.Unlock()
	if p.since == nil {
		p.since = map[int]int64{}
	}
	for pid, at := range b.came {
		p.since[pid] = at
	}
}

// forget drops those that stay where they are.
func (p *placements) forget() { clear(p.since) }

// kept says when a process was placed.
type kept struct {
	pid int
	at  time.Time
}

// The ways into a group.
const (
	howFastPath = "as the kernel told of it"
	howLook     = "by a look at the whole"
)

// young is for how long a process has not enough memory to ask how much.
const young = 20 * time.Millisecond

// weigh gives what those of the processes have in memory that had the time to get some.
func (p *placements) weigh(pids []int, now int64) map[int]int64 {
	held := map[int]int64{}
	for _, pid := range pids {
		if at, told := p.since[pid]; p.resident != nil && told && time.Duration(now-at) >= young {
			held[pid] = p.resident(pid)
		}
	}
	return held
}

// moved counts those that are in their groups now.
func (p *placements) moved(pids []int, how string) {
	if len(pids) == 0 {
		return
	}
	now := p.clock()
	held := p.weigh(pids, now)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pid := range pids {
		at, told := p.since[pid]
		if !told || at <= 0 || now < at {
			continue
		}
		delete(p.since, pid)
		if p.total.Within == nil {
			p.total.Within = make([]api.PlacedWithin, len(bounds))
			for i, b := range bounds {
				p.total.Within[i].Bound = b
			}
		}
		took := time.Duration(now - at)
		p.keep(pid, api.PlacedAt{At: time.Now(), Took: took, How: how, Resident: held[pid]})
		p.total.Count++
		p.total.Slowest = max(p.total.Slowest, took)
		for i, b := range bounds {
			if b == 0 || took <= b {
				p.total.Within[i].Count++
				break
			}
		}
	}
}

// keep remembers a placing in place of the oldest one. The caller holds mu.
func (p *placements) keep(pid int, at api.PlacedAt) {
	if p.recent == nil {
		p.recent = map[int]api.PlacedAt{}
	}
	if len(p.order) >= recentPlacements {
		if oldest := p.order[0]; p.recent[oldest.pid].At.Equal(oldest.at) {
			delete(p.recent, oldest.pid)
		}
		p.order = p.order[1:]
	}
	p.recent[pid] = at
	p.order = append(p.order, kept{pid, at.At})
}

// recall gives the placing of a process; nil when it is not known.
func (p *placements) recall(pid int) *api.PlacedAt {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, known := p.recent[pid]; known {
		return &at
	}
	return nil
}

func (p *placements) clock() int64 {
	if p.now != nil {
		return p.now()
	}
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return t.Nano()
}

// figures are a copy for status; nil while nobody was placed.
func (p *placements) figures() *api.Placement {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total.Count == 0 {
		return nil
	}
	f := p.total
	f.Within = append([]api.PlacedWithin(nil), p.total.Within...)
	return &f
}
