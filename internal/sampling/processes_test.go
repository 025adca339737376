package sampling

import (
	"errors"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/accounting"
)

// What processes did is counted once: from the first reading on, as a whole if they are new, and what a parent has of a
// child that it waited for not again.
func TestProcesses(t *testing.T) {
	dir := func(name string) cgroup.Dir { return cgroup.Dir{Hierarchy: "cpuacct", Path: "/" + name} }
	listed := map[cgroup.Dir][]int{}
	did := map[int]accounting.Process{}
	idle, clock := map[string]bool{}, uint64(0)
	p := processes{list: func(_ *cgroup.Tree, d cgroup.Dir) ([]int, error) { return listed[d], nil },
		of: func(pid int) (a accounting.Process, err error) {
			a, lives := did[pid]
			if !lives {
				err = errors.New("gone")
			}
			return a, err
		}, clock: func() uint64 { return clock }}
	w := &Watched{tasks: map[string][]cgroup.Dir{"a": {dir("a")}, "b": {dir("b")}}}
	holds := func(what string, a, b amounts) {
		t.Helper()
		got := p.read(w, func(group string) bool { return !idle[group] }, func(pid int) bool {
			_, lives := did[pid]
			return lives
		})
		clock += 100
		if got["a"] != a || got["b"] != b {
			t.Errorf("%s: a did %+v, b %+v", what, got["a"], got["b"])
		}
	}
	activity := func(parent int, faults, read, calls uint64) accounting.Process {
		return accounting.Process{Parent: parent, Faults: faults, ReadBytes: read, ReadCalls: calls}
	}
	listed[dir("a")], listed[dir("b")] = []int{1}, []int{2}
	did[1], did[2] = activity(0, 100, 1e6, 50), activity(0, 7, 0, 9)
	holds("at the first reading", amounts{}, amounts{})
	did[1], did[2] = activity(0, 103, 1e6+8192, 1000), activity(0, 7, 0, 20)
	holds("calls for no disk do not count", amounts{faults: 3, readBytes: 8192, reads: 2}, amounts{})
	listed[dir("a")] = []int{1, 3, 4}
	child := activity(1, 5, 4096, 1)
	child.Started = clock
	did[3], did[4] = child, activity(1, 500, 1e9, 1e5)
	holds("one that is new counts whole, one that comes from elsewhere not",
		amounts{faults: 5, readBytes: 4096, reads: 1}, amounts{})
	delete(did, 3)
	did[1] = activity(0, 103+9, 1e6+8192+4096*3, 1003)
	holds("of a child that ended what is new", amounts{faults: 4, readBytes: 8192, reads: 2}, amounts{})
	delete(did, 4) // its parent has not waited yet
	holds("a child has ended", amounts{}, amounts{})
	did[1] = activity(0, 112+510, 1e6+8192+4096*3+1e9+4096, 1003+1e5+1)
	holds("its parent waits", amounts{faults: 10, readBytes: 4096, reads: 1}, amounts{})

	idle["a"], idle["b"] = true, true
	did[1], did[2] = activity(0, 630, 1e6, 50), activity(0, 9, 0, 20)
	holds("nobody ran, and nothing is read", amounts{}, amounts{})
	idle["b"] = false
	holds("one ran", amounts{}, amounts{faults: 2})
	idle["a"] = false
	holds("the other ran", amounts{faults: 8}, amounts{})

	// The last process of a group ends, and its parent in another group has what it did from then on.
	listed[dir("b")] = []int{2, 5}
	did[5] = activity(1, 100, 4096, 1)
	holds("it comes", amounts{}, amounts{})
	did[5] = activity(1, 100, 8192, 2)
	holds("it reads", amounts{}, amounts{readBytes: 4096, reads: 1})
	listed[dir("b")] = []int{2}
	delete(did, 5)
	idle["b"] = true
	did[1] = activity(0, 630+100, 1e6+8192, 52)
	holds("it ended, and its parent waited for it", amounts{}, amounts{})
}
