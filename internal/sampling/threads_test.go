package sampling

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// Of a directory that used no CPU time since the last reading, only threads that are new are read. What is known of the
// others stays, so that they count from there when they run again.
func TestThreadsThatSleepAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := cgroup.Dir{Hierarchy: "cpuacct", Path: "/a"}
		listed, used, counted := []int{1, 2}, int64(5), true
		var failed error
		did := map[int]ctxswitch.Thread{1: {Ran: time.Hour}, 2: {Ran: time.Hour}, 3: {Ran: time.Hour}}
		var asked []int
		s := &threads{waits: true,
			list: func(*cgroup.Tree, cgroup.Dir) ([]int, error) {
				if failed != nil {
					return nil, failed
				}
				return listed, nil
			},
			used: func(*cgroup.Tree, cgroup.Dir) (int64, bool) { return used, counted },
			read: func(tid int, _ ctxswitch.Thread) (ctxswitch.Thread, bool, error) {
				asked = append(asked, tid)
				return did[tid], true, nil
			}}
		k := New(nil)
		look := func() { // a full look of the agent
			k.Watch(&Watched{groups: []watchedGroup{{Group: observe.Group{Group: "a"}}},
				tasks: map[string][]cgroup.Dir{"a": {d}}})
		}
		look()
		source := s.source(k)
		reads := func(what string, want ...int) {
			t.Helper()
			asked = nil
			time.Sleep(10 * time.Second)
			if _, err := source(t.Context(), noMeter()); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(asked, want) {
				t.Errorf("%s: threads %v are read, want %v", what, asked, want)
			}
		}
		reads("at first", 1, 2)
		reads("all sleep")
		listed = []int{1, 2, 3}
		reads("one was moved there, and sleeps")
		look()
		reads("the agent has looked", 3)
		listed = []int{1, 3}
		reads("one is gone")
		used = 6
		did[1] = ctxswitch.Thread{Ran: time.Hour + time.Second}
		reads("one ran", 1, 3)
		if got := s.sums["a"].Ran; got != time.Second {
			t.Errorf("the threads ran %v, want a second", got)
		}
		counted = false
		reads("the kernel does not count", 1, 3)
		reads("nor again", 1, 3)
		counted = true
		reads("it counts again", 1, 3)
		reads("all sleep again")
		used, failed = 7, errors.New("no memory")
		reads("they cannot be listed")
		failed = nil
		reads("they are listed the next time", 1, 3)
	})
}

// What threads did is added up from reading to reading: those that were there from the begin count from then on, those
// that began meanwhile as a whole, those that came from elsewhere from then on, and those of a/b for a, too. What a
// thread did stays counted when it has ended.
func TestThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := func(name string) cgroup.Dir { return cgroup.Dir{Hierarchy: "cpuacct", Path: "/" + name} }
		listed := map[cgroup.Dir][]int{}
		did := map[int]ctxswitch.Thread{}
		s := &threads{waits: true,
			list: func(_ *cgroup.Tree, d cgroup.Dir) ([]int, error) { return listed[d], nil },
			read: func(tid int, _ ctxswitch.Thread) (ctxswitch.Thread, bool, error) {
				one, lives := did[tid]
				return one, lives, nil
			}}
		k := New(nil)
		k.Watch(&Watched{groups: []watchedGroup{{Group: observe.Group{Group: "a"}},
			{Group: observe.Group{Group: "a/b"}},
			{Group: observe.Group{Group: "idle"}}},
			tasks: map[string][]cgroup.Dir{"a": {dir("a")}, "a/b": {dir("b"), dir("run")}}})
		clock := func() (int, time.Duration) { return 1, 0 }
		source := s.source(k)
		read := func() (all map[string]observe.Switching) {
			t.Helper()
			put, err := source(t.Context(), collect.NewMeter(clock))
			if err != nil {
				t.Fatal(err)
			}
			one := &observe.Sample{}
			k.Begin(one)
			put(one)
			all = map[string]observe.Switching{}
			for _, g := range one.Groups {
				all[g.Group] = *g.Threads
			}
			return all
		}
		holds := func(what, group string, waited time.Duration, voluntary, involuntary uint64) {
			t.Helper()
			g := read()[group]
			if *g.Waited != waited || g.Voluntary != voluntary || g.Involuntary != involuntary {
				t.Errorf("%s: %s waited %v and switched %d and %d times", what, group, *g.Waited, g.Voluntary,
					g.Involuntary)
			}
		}
		thread := func(ran, waited time.Duration, voluntary, involuntary uint64) ctxswitch.Thread {
			return ctxswitch.Thread{Count: ctxswitch.Count{Voluntary: voluntary, Involuntary: involuntary}, Ran: ran,
				Waited: waited}
		}
		listed[dir("a")], listed[dir("run")] = []int{1}, []int{2}
		did[1], did[2] = thread(time.Hour, time.Hour, 1000, 1000), thread(time.Hour, time.Hour, 1000, 1000)
		holds("at first", "a", 0, 0, 0)
		time.Sleep(10 * time.Second)
		did[1] = thread(time.Hour, time.Hour+time.Second, 1001, 1002)
		did[2] = thread(time.Hour, time.Hour+2*time.Second, 1010, 1020)
		listed[dir("b")] = []int{3, 4}
		did[3] = thread(4*time.Second, 6*time.Second, 100, 200)       // began meanwhile
		did[4] = thread(4*time.Second, 6*time.Second+1, 7_000, 7_000) // cannot have
		holds("ten seconds later", "a", 9*time.Second, 111, 222)
		holds("the same again", "a/b", 8*time.Second, 110, 220)
		if all := read(); all["a"].Living != 4 || all["a/b"].Living != 3 || all["idle"].Living != 0 {
			t.Errorf("threads that there are: %+v", all)
		}
		delete(did, 3)
		did[4] = thread(4*time.Second, 7*time.Second+1, 7_001, 7_000)
		did[2] = thread(0, 0, 0, 0) // another thread of this number
		holds("one has ended", "a/b", 9*time.Second, 111, 220)
		holds("nobody is in it", "idle", 0, 0, 0)
		s.waits = false
		if g := read()["a"]; g.Waited != nil || g.Voluntary == 0 {
			t.Errorf("a kernel that counts no waiting: %+v", g)
		}
		k.Watch(&Watched{})
		read()
		if len(s.known)+len(s.dirs)+len(s.sums) != 0 {
			t.Errorf("of no group it keeps %v, %v", s.known, s.sums)
		}
	})
}
