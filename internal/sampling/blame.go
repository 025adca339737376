package sampling

import (
	"context"
	"errors"
	"fmt"
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
	WatchDisks(devices []uint32, owners map[string][]uint64) error
	Read() (map[string]*bpfcount.Waits, error)
	Close() error
}

// blame has BPF programs count whom groups wait for.
type blame struct {
	open      func() (counter, error)
	directory func(path string) (uint64, error)
	owner     func(path string) (uint64, error) // the same of the controller of disks
	own       bool                              // the directories are this machine's
	keep      time.Duration                     // how long programs count for nobody

	mu        sync.Mutex
	counts    counter // nil: nothing counts
	why       error   // of the last failure, at failed
	noDisk    error   // why nothing is counted at disks
	noReclaim error   // and in reclaim
	failed    time.Time
	end       *time.Timer
	told      map[string]*toldOf
}

// toldOf is who is told of one by one of those that a group waits for.
type toldOf struct{ cpu, disk suspects }

// suspects are those that are told of one by one: each with what it had until then. last is what all had then, and
// waited what the group had waited.
type suspects struct {
	since, last map[string]time.Duration
	waited      time.Duration
}

func newBlame(own bool) *blame {
	return &blame{own: own, keep: endAfter, directory: bpfcount.Directory, owner: bpfcount.Owner,
		told: map[string]*toldOf{},
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
		said, disks := counting(b.counts != nil, b.why), counting(false, b.why)
		reclaim := disks
		if b.counts != nil {
			disks, reclaim = counting(b.noDisk == nil, b.noDisk), counting(b.noReclaim == nil, b.noReclaim)
		}
		switch {
		case said != nil && !said.On:
			m.Remark("nothing is counted, others are estimated from files of the kernel: " + said.Error)
		case disks != nil && !disks.On:
			m.Remark("nothing is counted for disks: " + disks.Error)
		case reclaim != nil && !reclaim.On:
			m.Remark("nothing is counted in reclaim of memory: " + reclaim.Error)
		}
		return func(s *observe.Sample) {
			s.Host.Counting, s.Host.CountingDisks, s.Host.CountingReclaim = said, disks, reclaim
			for i := range s.Groups {
				one := all[s.Groups[i].Group]
				s.Groups[i].Blame, s.Groups[i].DiskBlame, s.Groups[i].Reclaim = one.cpu, one.disk, one.reclaim
			}
		}, nil
	}
}

// counting says whether programs count, or why not; nil where there is nothing to count.
func counting(on bool, why error) *observe.Counting {
	var missing *bpfcount.MissingError
	switch {
	case on:
		return &observe.Counting{On: true}
	case errors.As(why, &missing):
		return &observe.Counting{Why: string(missing.Why), Error: why.Error()}
	case why != nil:
		return &observe.Counting{Why: string(bpfcount.OtherReason), Error: why.Error()}
	}
	return nil
}

// blamed is whom a group waited for.
type blamed struct {
	cpu     *observe.Blame
	disk    *observe.DiskBlame
	reclaim *observe.Reclaim
}

// read reads what programs have counted of the groups that are watched; they are loaded where they are not. nil:
// nothing is counted.
func (b *blame) read(w *Watched) (map[string]blamed, error) {
	groups, owners := b.numbers(w, w.counted, b.directory), b.numbers(w, w.owners, b.owner)
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
	b.noDisk = b.counts.WatchDisks(w.disks(), owners)
	counted, err := b.counts.Read()
	if err != nil {
		return nil, err
	}
	all := make(map[string]blamed, len(counted))
	for name := range groups {
		if one := counted[name]; one != nil {
			all[name] = b.tell(name, one)
			b.noReclaim = one.NoReclaim
		}
	}
	maps.DeleteFunc(b.told, func(name string, _ *toldOf) bool { return all[name].cpu == nil })
	return all, nil
}

// numbers are those of directories of this machine, by groups, where they are there.
func (b *blame) numbers(w *Watched, all map[string][]cgroup.Dir, of func(string) (uint64, error)) map[string][]uint64 {
	numbers := map[string][]uint64{}
	if !b.own {
		return numbers
	}
	for name, dirs := range all {
		for _, d := range dirs {
			if id, err := of(w.tree.Abs(d)); err == nil { // else it is gone, or not made yet
				numbers[name] = append(numbers[name], id)
			}
		}
	}
	return numbers
}

// disks are the devices that do themselves what they are asked for, by their numbers.
func (w *Watched) disks() (all []uint32) {
	for _, number := range slices.Sorted(maps.Keys(w.devices)) {
		var major, minor uint32
		if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); err == nil && !observe.Stacked(w.devices[number]) {
			all = append(all, bpfcount.Device(major, minor))
		}
	}
	return all
}

// forget makes room for one more: of those who had nothing since the last reading, the one who had least in all is
// told of with the others again. A batch job of last week must not keep the guilty one of today from being named.
func (t *suspects) forget(grew func(string) time.Duration) {
	gone, had := "", time.Duration(0)
	for name, since := range t.since {
		if d := t.last[name] - since; grew(name) == 0 && (gone == "" || d < had || d == had && name < gone) {
			gone, had = name, d
		}
	}
	delete(t.since, gone)
}

// split tells of what others have of what a group waited: who is told of one by one stays so as long as there is room,
// and counts from then on: no sum of one who is told of falls. The rest is that of all others.
func (t *suspects) split(waited time.Duration, all map[string]time.Duration) (one map[string]time.Duration,
	rest time.Duration) {
	if t.since == nil {
		t.since = map[string]time.Duration{}
	}
	grew := func(other string) time.Duration { return all[other] - t.last[other] }
	others := slices.SortedFunc(maps.Keys(all), func(a, c string) int { return int(grew(c) - grew(a)) })
	for _, other := range others {
		least := time.Duration(worth * float64(waited-t.waited))
		if _, is := t.since[other]; is || grew(other) <= least {
			continue
		}
		if len(t.since) >= listed {
			t.forget(grew)
		}
		if len(t.since) < listed {
			t.since[other] = t.last[other]
		}
	}
	one = make(map[string]time.Duration, len(t.since))
	for other, d := range all {
		since, is := t.since[other]
		if is {
			one[other] = d - since
			d = since
		}
		rest += d
	}
	maps.DeleteFunc(t.since, func(name string, _ time.Duration) bool { _, still := all[name]; return !still })
	t.last, t.waited = all, waited
	return one, rest
}

// tell says what was counted of a group.
func (b *blame) tell(name string, w *bpfcount.Waits) (all blamed) {
	t := b.told[name]
	if t == nil {
		t = &toldOf{}
		b.told[name] = t
	}
	groups, rest := t.cpu.split(w.Waited, w.Others)
	all.cpu = &observe.Blame{Waited: w.Waited, Limited: w.Limited, Own: w.Own, Outside: w.Outside + w.Idle,
		Older: w.Older, Groups: groups, Others: rest + w.Gone, Turns: w.Turns, Lost: w.Lost, Voluntary: w.Voluntary,
		Involuntary: w.Involuntary}
	if d := w.Disk; d != nil {
		groups, rest := t.disk.split(d.Waited, d.Others)
		all.disk = &observe.DiskBlame{Waited: d.Waited, Service: d.Service, Own: d.Own, Outside: d.Outside,
			WrittenBack: d.WrittenBack, Groups: groups, Others: rest + d.Gone, Requests: d.Requests, Lost: d.Lost}
	}
	if w.Reclaim != nil {
		all.reclaim = new(observe.Reclaim(*w.Reclaim))
	}
	return all
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

// countedIn are the directories of groups in the hierarchy of a controller: BPF programs know threads by those of the
// CPU controller, and owners of what the kernel writes by those of the one of disks.
func countedIn(controller string, v *transaction.View, tasks map[string][]cgroup.Dir) map[string][]cgroup.Dir {
	all := map[string][]cgroup.Dir{}
	for _, g := range v.Classified.Groups {
		for id, d := range v.Layout.Member(g.Path) {
			if h, _ := v.Facts.Hierarchy(id); !h.Has(controller) {
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
