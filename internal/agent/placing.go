package agent

import (
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/control"
)

// bounds are those of the histogram.
var bounds = []time.Duration{
	100 * time.Microsecond, 300 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond,
	30 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, time.Second, 0,
}

// placings keeps how long processes wait for their groups. Only the loop uses it.
type placings struct {
	since map[int]int64 // of processes that events told of and that no look has decided on, ns of CLOCK_MONOTONIC
	total control.Placement
	now   func() int64 // nil is the kernel's clock
}

// came takes in what events told.
func (p *placings) came(b batch) {
	for pid := range b.gone {
		delete(p.since, pid)
	}
	if p.since == nil {
		p.since = map[int]int64{}
	}
	for pid, at := range b.came {
		p.since[pid] = at
	}
}

// forget drops those that stay where they are.
func (p *placings) forget() { clear(p.since) }

// moved counts those that are in their groups now.
func (p *placings) moved(pids []int) {
	if len(pids) == 0 {
		return
	}
	now := p.clock()
	for _, pid := range pids {
		at, told := p.since[pid]
		if !told || at <= 0 || now < at {
			continue
		}
		delete(p.since, pid)
		if p.total.Within == nil {
			p.total.Within = make([]control.PlacedWithin, len(bounds))
			for i, b := range bounds {
				p.total.Within[i].Bound = b
			}
		}
		took := time.Duration(now - at)
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

func (p *placings) clock() int64 {
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
func (p *placings) figures() *control.Placement {
	if p.total.Count == 0 {
		return nil
	}
	f := p.total
	f.Within = append([]control.PlacedWithin(nil), p.total.Within...)
	return &f
}
