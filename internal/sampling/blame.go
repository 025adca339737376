package sampling

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/bpfcount"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
	"bulkhead/internal/transaction"
)

const (
	// endAfter is how long programs count for nobody: a collector that is off is not told so. One that costs too much
	// reads every 80 s.
	endAfter = 100 * time.Second
	// tryAgain is how long after a failure the next try is.
	tryAgain = time.Hour
	// listed is how many suspects of a group are told of one by one, and worth the part of its waiting in a reading
	// from which on one is.
	listed, worth = 16, 0.005
)

// counter is what BPF programs count in, as far as sampling uses it.
type counter interface {
	Watch(groups map[string][]uint64) error
	Read() (map[string]*bpfcount.Waits, error)
	Close() error
}

// blame has BPF programs count whom groups wait for.
type blame struct {
	open      func() (counter, error)
	directory func(path string) (uint64, error)
	own       bool          // the directories are this machine's
	keep      time.Duration // how long programs count for nobody

	mu     sync.Mutex
	counts counter // nil: nothing counts
	why    error   // of the last failure, at failed
	failed time.Time
	end    *time.Timer
	told   map[string]*suspects
}

// suspects are those of one group that are told of one by one: each with what it had until then.
type suspects struct {
	since map[string]time.Duration
	last  bpfcount.Waits
}

func newBlame(own bool) *blame {
	return &blame{own: own, keep: endAfter, directory: bpfcount.Directory, told: map[string]*suspects{},
		open: func() (counter, error) {
			c, err := bpfcount.Open()
			if err != nil {
				return nil, err
			}
			return c, nil
		}}
}

// source reads what was counted. That nothing can be counted is no error of a reading: the sample says so, and files of
// the kernel tell a part of it.
func (b *blame) source(watched func() *Watched) collect.Source {
	return func(_ context.Context, m *collect.Meter) (collect.Put, error) {
		w := watched()
		b.mu.Lock()
		defer b.mu.Unlock()
		all, err := b.read(w)
		if err != nil {
			b.why, b.failed = err, time.Now()
			b.close()
		}
		said := &observe.Counting{On: b.counts != nil}
		var missing *bpfcount.MissingError
		switch {
		case said.On:
		case errors.As(b.why, &missing):
			said.Why, said.Error = string(missing.Why), b.why.Error()
		case b.why != nil:
			said.Why, said.Error = string(bpfcount.OtherReason), b.why.Error()
		default:
			said = nil // there is nothing to count
		}
		if said != nil && !said.On {
			m.Remark("nothing is counted, others are estimated from files of the kernel: " + said.Error)
		}
		return func(s *observe.Sample) {
			s.Host.Counting = said
			for i := range s.Groups {
				s.Groups[i].Blame = all[s.Groups[i].Group]
			}
		}, nil
	}
}

// read reads what programs have counted of the groups that are watched; they are loaded where they are not. nil:
// nothing is counted.
func (b *blame) read(w *Watched) (map[string]*observe.Blame, error) {
	groups := map[string][]uint64{}
	if b.own {
		for name, dirs := range w.counted {
			for _, d := range dirs {
				if id, err := b.directory(w.tree.Abs(d)); err == nil { // else it is gone, or not made yet
					groups[name] = append(groups[name], id)
				}
			}
		}
	}
	if len(groups) == 0 {
		b.close()
		b.why = nil
		return nil, nil
	}
	if b.counts == nil {
		if b.why != nil && time.Since(b.failed) < tryAgain {
			return nil, nil
		}
		c, err := b.open()
		if err != nil {
			return nil, err
		}
		b.counts, b.why = c, nil
		b.end = time.AfterFunc(b.keep, b.stop)
	}
	b.end.Reset(b.keep)
	if err := b.counts.Watch(groups); err != nil {
		return nil, err
	}
	counted, err := b.counts.Read()
	if err != nil {
		return nil, err
	}
	all := make(map[string]*observe.Blame, len(counted))
	for name := range groups {
		if one := counted[name]; one != nil {
			all[name] = b.tell(name, one)
		}
	}
	return all, nil
}

// forget makes room for one more: of those who had nothing since the last reading, the one who had least in all is
// told of with the others again. A batch job of last week must not keep the guilty one of today from being named.
func (t *suspects) forget(grew func(string) time.Duration) {
	gone, had := "", time.Duration(0)
	for name, since := range t.since {
		if d := t.last.Others[name] - since; grew(name) == 0 && (gone == "" || d < had || d == had && name < gone) {
			gone, had = name, d
		}
	}
	delete(t.since, gone)
}

// tell says what was counted of a group. Who is told of one by one stays so as long as there is room, and counts from
// then on: no sum of one who is told of falls.
func (b *blame) tell(name string, w *bpfcount.Waits) *observe.Blame {
	t := b.told[name]
	if t == nil {
		t = &suspects{since: map[string]time.Duration{}}
		b.told[name] = t
	}
	grew := func(other string) time.Duration { return w.Others[other] - t.last.Others[other] }
	others := slices.SortedFunc(maps.Keys(w.Others), func(a, c string) int { return int(grew(c) - grew(a)) })
	for _, other := range others {
		least := time.Duration(worth * float64(w.Waited-t.last.Waited))
		if _, is := t.since[other]; is || grew(other) <= least {
			continue
		}
		if len(t.since) >= listed {
			t.forget(grew)
		}
		if len(t.since) < listed {
			t.since[other] = t.last.Others[other]
		}
	}
	one := &observe.Blame{Waited: w.Waited, Limited: w.Limited, Own: w.Own, Outside: w.Outside + w.Idle, Older: w.Older,
		Turns: w.Turns, Lost: w.Lost, Voluntary: w.Voluntary, Involuntary: w.Involuntary,
		Groups: make(map[string]time.Duration, len(t.since))}
	for other, d := range w.Others {
		since, is := t.since[other]
		if is {
			one.Groups[other] = d - since
			d = since
		}
		one.Others += d
	}
	t.last = *w
	return one
}

// stop ends the programs.
func (b *blame) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close()
}

// close does so for one that holds the lock. What it counts next begins at zero.
func (b *blame) close() {
	if b.counts == nil {
		return
	}
	b.end.Stop()
	_ = b.counts.Close() // what is left open ends with the process
	b.counts = nil
	clear(b.told)
}

// countedIn are the directories of groups in the hierarchy of the CPU controller: BPF programs know threads by these.
func countedIn(v *transaction.View, tasks map[string][]cgroup.Dir) map[string][]cgroup.Dir {
	all := map[string][]cgroup.Dir{}
	for _, g := range v.Classified.Groups {
		for id, d := range v.Layout.Member(g.Path) {
			if h, _ := v.Facts.Hierarchy(id); !h.Has("cpu") {
				continue
			}
			all[g.Path] = append([]cgroup.Dir{d}, v.Layout.Outside(g.Path, id)...)
			if own, is := v.Layout.Own(g.Path)[id]; is {
				all[g.Path] = append(all[g.Path], own)
			}
			for _, d := range tasks[g.Path] {
				if d.Hierarchy == id {
					all[g.Path] = append(all[g.Path], d)
				}
			}
		}
	}
	return all
}
