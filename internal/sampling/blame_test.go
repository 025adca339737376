package sampling

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/attribution"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/bpfcount"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// fakeCounter counts what a test says.
type fakeCounter struct {
	watched map[string][]uint64
	waits   map[string]*bpfcount.Waits
	closed  atomic.Bool
	devices []uint32
	owners  map[string][]uint64
	noDisks error
}

func (f *fakeCounter) Watch(groups map[string][]uint64) error {
	f.watched = groups
	return nil
}
func (f *fakeCounter) WatchDisks(devices []uint32, owners map[string][]uint64) error {
	f.devices, f.owners = devices, owners
	return f.noDisks
}
func (f *fakeCounter) Read() (map[string]*bpfcount.Waits, error) { return f.waits, nil }
func (f *fakeCounter) Close() error                              { f.closed.Store(true); return nil }

// blaming is a source of one group, "v", with what it counts in.
func blaming(open func() (counter, error)) (b *blame, k *Kernel) {
	b = newBlame(true)
	b.open = open
	b.directory = func(string) (uint64, error) { return 7, nil }
	b.owner = func(path string) (uint64, error) {
		if strings.HasSuffix(path, "/v") {
			return 8, nil
		}
		return 0, bpfcount.ErrNoController
	}
	k = New(nil)
	k.blame = b
	k.Watch(&Watched{tree: cgroup.New(nil), groups: []watchedGroup{{Group: observe.Group{Group: "v"}}},
		counted: map[string][]cgroup.Dir{"v": {{Hierarchy: "cpu", Path: "/v"}}}})
	return b, k
}

func readBlame(t *testing.T, b *blame, k *Kernel) *observe.Sample {
	t.Helper()
	put, err := b.source(k.watched.Load)(t.Context(), noMeter())
	if err != nil {
		t.Fatal(err)
	}
	s := &observe.Sample{}
	k.Begin(s)
	put(s)
	return s
}

// Who gets worth a line is told of from then on, no sum ever falls, and all of it is what was waited.
func TestSuspectsAreToldOneByOne(t *testing.T) {
	c := &fakeCounter{waits: map[string]*bpfcount.Waits{"v": {Others: map[string]time.Duration{}}}}
	b, k := blaming(func() (counter, error) { return c, nil })
	defer b.stop()
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	before := &observe.Blame{}
	for n := 1.0; n <= 30; n++ {
		w := &bpfcount.Waits{Limited: seconds(n), Own: seconds(n), Outside: seconds(n), Idle: seconds(n),
			Older: seconds(n), Others: map[string]time.Duration{"small": seconds(n / 1000)}}
		for i := range 20 { // one more with each reading
			if grown := n - float64(i); grown > 0 {
				w.Others[fmt.Sprintf("g%d", i)] = seconds(grown)
			}
		}
		w.Waited = w.Limited + w.Own + w.Outside + w.Idle + w.Older
		for _, d := range w.Others {
			w.Waited += d
		}
		c.waits = map[string]*bpfcount.Waits{"v": w}
		got := readBlame(t, b, k).Groups[0].Blame
		sum := got.Limited + got.Own + got.Outside + got.Older + got.Others
		for name, d := range got.Groups {
			sum += d
			if d < before.Groups[name] {
				t.Fatalf("after %v: %s fell from %v to %v", n, name, before.Groups[name], d)
			}
		}
		if sum != got.Waited || got.Others < before.Others {
			t.Fatalf("after %v: rows are %v of %v, the others had %v: %+v", n, sum, got.Waited, before.Others, got)
		}
		before = got
	}
	if _, told := before.Groups["small"]; told || len(before.Groups) != listed {
		t.Errorf("told are %v", before.Groups)
	}
	if before.Groups["g0"] != seconds(30) || before.Groups["g3"] != seconds(27) {
		t.Errorf("told are %v", before.Groups)
	}
	if len(c.watched["v"]) != 1 || c.watched["v"][0] != 7 {
		t.Errorf("watched is %v", c.watched)
	}
}

// Where nothing can be counted the sample says why, and it is not tried at each reading.
func TestSampleSaysWhyNothingIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, cause := 0, error(&bpfcount.MissingError{Why: bpfcount.NoBTF, Cause: errors.New("not there")})
		b, k := blaming(func() (counter, error) {
			if tries++; cause != nil {
				return nil, cause
			}
			return &fakeCounter{waits: map[string]*bpfcount.Waits{"v": {}}}, nil
		})
		for range 5 {
			s := readBlame(t, b, k)
			m := noMeter()
			_, err := b.source(k.watched.Load)(t.Context(), m)
			if err != nil || !strings.Contains(m.Remarked(), "no BTF") {
				t.Fatalf("it says %q: %v", m.Remarked(), err)
			}
			if c := s.Host.Counting; c == nil || c.On || c.Why != string(bpfcount.NoBTF) || c.Error == "" ||
				s.Groups[0].Blame != nil {
				t.Fatalf("%+v", s.Host.Counting)
			}
			time.Sleep(10 * time.Second)
		}
		if tries != 1 {
			t.Errorf("it was tried %d times", tries)
		}
		time.Sleep(tryAgain)
		cause = nil
		if s := readBlame(t, b, k); !s.Host.Counting.On || s.Groups[0].Blame == nil || tries != 2 {
			t.Errorf("%+v after %d tries", s.Host.Counting, tries)
		}
		b.stop()
	})
}

// Programs that nobody reads end, and so do those of groups that are no longer there.
func TestProgramsEndWhenNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*fakeCounter
		b, k := blaming(func() (counter, error) {
			all = append(all, &fakeCounter{waits: map[string]*bpfcount.Waits{"v": {}}})
			return all[len(all)-1], nil
		})
		for range 30 {
			readBlame(t, b, k)
			time.Sleep(80 * time.Second)
		}
		if len(all) != 1 || all[0].closed.Load() {
			t.Fatalf("%d were opened; the first is closed: %t", len(all), all[0].closed.Load())
		}
		time.Sleep(endAfter)
		synctest.Wait()
		if !all[0].closed.Load() {
			t.Error("it counts on, and nobody reads")
		}
		readBlame(t, b, k)
		k.Watch(nil)
		if s := readBlame(t, b, k); len(all) != 2 || !all[1].closed.Load() || s.Host.Counting != nil {
			t.Errorf("%d were opened, and it says %+v", len(all), s.Host.Counting)
		}
	})
}

// Where there is no room for one more who is told of, one who does nothing any more makes room.
func TestWhoStoppedMakesRoom(t *testing.T) {
	w := &bpfcount.Waits{Others: map[string]time.Duration{}}
	b, k := blaming(func() (counter, error) { return &fakeCounter{waits: map[string]*bpfcount.Waits{"v": w}}, nil })
	defer b.stop()
	ran := func(name string, d time.Duration) map[string]time.Duration {
		w.Others = maps.Clone(w.Others)
		w.Others[name] += d
		w.Waited += d
		return readBlame(t, b, k).Groups[0].Blame.Groups
	}
	for i := range listed {
		ran(fmt.Sprintf("job%02d", i), time.Duration(i+1)*time.Second)
	}
	told := ran("guilty", time.Second)
	if told["guilty"] != time.Second || len(told) != listed {
		t.Errorf("%v", told)
	}
	if _, still := told["job00"]; still {
		t.Errorf("who had least is still there: %v", told)
	}
	one := readBlame(t, b, k).Groups[0].Blame
	sum := one.Others
	for _, d := range one.Groups {
		sum += d
	}
	if sum != w.Waited {
		t.Errorf("rows are %v of %v", sum, w.Waited)
	}
}

// slowly is a counter of one group that waits all the time, from when it is watched on.
type slowly struct {
	fakeCounter

	begun time.Time
}

func (s *slowly) Read() (map[string]*bpfcount.Waits, error) {
	return map[string]*bpfcount.Waits{"v": {Waited: time.Since(s.begun), Own: time.Since(s.begun)}}, nil
}

// Programs count from one reading of two to the other, however long that is, and the time in which they are loaded is
// not in it.
func TestTwiceCountsAllTheTime(t *testing.T) {
	for _, span := range []time.Duration{time.Second, 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			opened := 0
			b, k := blaming(func() (counter, error) {
				opened++
				time.Sleep(250 * time.Millisecond)
				return &slowly{begun: time.Now()}, nil
			})
			before, after, err := k.twice(t.Context(), map[observe.Part]collect.Source{
				observe.Blamed: b.source(k.watched.Load)}, []observe.Part{observe.Blamed}, span)
			if err != nil {
				t.Fatal(err)
			}
			w := attribution.Between(before, after)
			if len(w.Groups) != 1 || w.Groups[0].Blame == nil || math.Abs(w.Groups[0].Blame.Own-1) > 0.01 ||
				opened != 1 {
				t.Errorf("in %v %d were opened: %+v", span, opened, w.Groups)
			}
			if b.counts != nil {
				t.Error("they count on")
			}
		})
	}
}

// Of a group that has no directory which the programs know nothing is told: it would be that it waits for nothing.
func TestNothingIsToldOfWhoIsNotWatched(t *testing.T) {
	b, k := blaming(func() (counter, error) {
		return &fakeCounter{waits: map[string]*bpfcount.Waits{"v": {}, "w": {}}}, nil
	})
	defer b.stop()
	b.directory = func(path string) (uint64, error) {
		if strings.HasSuffix(path, "/w") {
			return 0, bpfcount.ErrNoController
		}
		return 7, nil
	}
	k.Watch(&Watched{tree: cgroup.New(nil), groups: []watchedGroup{{Group: observe.Group{Group: "v"}},
		{Group: observe.Group{Group: "w"}}}, counted: map[string][]cgroup.Dir{"v": {{Hierarchy: "cpu", Path: "/v"}},
		"w": {{Hierarchy: "cpu", Path: "/w"}}}})
	s := readBlame(t, b, k)
	if s.Groups[0].Blame == nil || s.Groups[1].Blame != nil {
		t.Errorf("%+v, %+v", s.Groups[0].Blame, s.Groups[1].Blame)
	}
}

// For disks the programs are told the devices that are not stacked on others, and the directories of the controller of
// disks; what they count is told as that of CPUs is, and where they cannot the sample says why.
func TestDisksAreTold(t *testing.T) {
	c := &fakeCounter{waits: map[string]*bpfcount.Waits{"v": {Waited: time.Second, Own: time.Second}}}
	b, k := blaming(func() (counter, error) { return c, nil })
	defer b.stop()
	w := *k.watched.Load()
	w.owners = map[string][]cgroup.Dir{"v": {{Hierarchy: "blkio", Path: "/v"}}, "w": {{Hierarchy: "blkio", Path: "/w"}}}
	w.devices = map[string]string{"254:0": "vda", "7:0": "loop0", "253:1": "dm-1", "259:3": "nvme1n1", "odd": "x"}
	k.Watch(&w)
	c.noDisks = &bpfcount.MissingError{Why: bpfcount.OldKernel, Cause: errors.New("no tracepoint")}
	s := readBlame(t, b, k)
	if why := s.Host.CountingDisks; why == nil || why.On || why.Why != "old kernel" || !s.Host.Counting.On ||
		s.Groups[0].DiskBlame != nil || s.Groups[0].Blame.Own != time.Second {
		t.Errorf("%+v, %+v", why, s.Groups[0])
	}
	if want := []uint32{bpfcount.Device(254, 0), bpfcount.Device(259, 3)}; !slices.Equal(c.devices, want) {
		t.Errorf("the devices are %v, want %v", c.devices, want)
	}
	if len(c.owners) != 1 || !slices.Equal(c.owners["v"], []uint64{8}) {
		t.Errorf("the owners are %v", c.owners)
	}
	c.noDisks = nil
	last := &observe.DiskBlame{}
	for n := time.Duration(1); n <= 3; n++ {
		c.waits = map[string]*bpfcount.Waits{"v": {Disk: &bpfcount.Disk{Waited: 1067 * n, Service: 7 * n, Own: 10 * n,
			Outside: 20 * n, WrittenBack: 30 * n,
			Others: map[string]time.Duration{"hog": 999 * n, "small": n}, Requests: 5}}}
		s = readBlame(t, b, k)
		last = s.Groups[0].DiskBlame
		sum := last.Service + last.Own + last.Outside + last.WrittenBack + last.Others
		for _, d := range last.Groups {
			sum += d
		}
		if !s.Host.CountingDisks.On || sum != last.Waited || sum != 1067*n {
			t.Errorf("rows are %v: %+v", sum, last)
		}
	}
	if last.Groups["hog"] != 3*999 || last.Others != 3 || len(last.Groups) != 1 || last.Requests != 5 {
		t.Errorf("%+v", last)
	}
}

// How long groups are in reclaim is told as it was counted, and where that is not counted the sample says why.
func TestReclaimIsTold(t *testing.T) {
	c := &fakeCounter{waits: map[string]*bpfcount.Waits{"v": {Own: time.Second, Reclaim: &bpfcount.Reclaim{Limit: 7,
		Host: 6, LimitThreads: 5, HostThreads: 4, LimitStalls: 3, HostStalls: 2, Lost: 1}}}}
	b, k := blaming(func() (counter, error) { return c, nil })
	defer b.stop()
	s := readBlame(t, b, k)
	if got := s.Groups[0].Reclaim; !s.Host.CountingReclaim.On || got == nil || *got != (observe.Reclaim{Limit: 7,
		Host: 6, LimitThreads: 5, HostThreads: 4, LimitStalls: 3, HostStalls: 2, Lost: 1}) {
		t.Errorf("%+v", got)
	}
	c.waits["v"].NoReclaim = &bpfcount.MissingError{Why: bpfcount.OldKernel, Cause: errors.New("no tracepoint")}
	c.waits["v"].Reclaim = nil
	m := noMeter()
	put, err := b.source(k.watched.Load)(t.Context(), m)
	if err != nil || !strings.Contains(m.Remarked(), "in reclaim of memory") {
		t.Errorf("it says %q: %v", m.Remarked(), err)
	}
	put(s)
	if why := s.Host.CountingReclaim; why == nil || why.On || why.Why != "old kernel" || !s.Host.CountingDisks.On ||
		s.Groups[0].Reclaim != nil || s.Groups[0].Blame.Own != time.Second {
		t.Errorf("%+v, %+v", why, s.Groups[0])
	}
}

// Of groups that are gone nothing is kept, and what they had of others stays with the others.
func TestWhoIsGoneIsForgotten(t *testing.T) {
	c := &fakeCounter{}
	b, k := blaming(func() (counter, error) { return c, nil })
	defer b.stop()
	all := time.Duration(0)
	for n := range 50 {
		name := fmt.Sprintf("job%d", n)
		c.waits = map[string]*bpfcount.Waits{"v": {Waited: all + time.Second, Gone: all,
			Others: map[string]time.Duration{name: time.Second}}, name: {}}
		w := *k.watched.Load()
		w.groups = []watchedGroup{{Group: observe.Group{Group: "v"}}, {Group: observe.Group{Group: name}}}
		w.counted = map[string][]cgroup.Dir{"v": {{Path: "/v"}}, name: {{Path: "/" + name}}}
		k.Watch(&w)
		got := readBlame(t, b, k).Groups[0].Blame
		if got.Groups[name] != time.Second || got.Others != all || len(got.Groups) != 1 {
			t.Fatalf("after %d: %+v", n, got)
		}
		all += time.Second
	}
	if v := b.told["v"]; len(b.told) != 2 || len(v.cpu.since) != 1 || len(v.cpu.last) != 1 {
		t.Errorf("it keeps %d groups: %+v", len(b.told), v)
	}
}
