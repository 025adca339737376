package cgroupfake

import (
	"cmp"
	"maps"
	"slices"

	"bulkhead/internal/linux/procfs"
)

// process is a thread group of the model.
type process struct {
	id      procfs.ID
	threads []*thread
	kernel  bool
	stuck   bool
	charges []charge
	born    map[string]*group // its groups at birth
}

// thread is in one group per hierarchy. On v1 the threads of a process may differ.
type thread struct {
	tid      int
	process  *process
	realtime bool
	groups   map[string]*group
}

// charge is anonymous memory of a process, and the group that pays for it: it does not move with
// the process.
type charge struct {
	group *group
	bytes int64
}

// tasks are the running processes.
type tasks struct {
	processes map[int]*process
	nextPID   int
	clock     uint64 // start times
}

// add makes a process that starts in these groups, one of each hierarchy.
func (ts *tasks) add(groups map[string]*group, kernel bool) *process {
	ts.clock++
	p := &process{id: procfs.ID{PID: ts.nextPID, Start: ts.clock}, kernel: kernel, born: maps.Clone(groups)}
	p.threads = []*thread{{tid: ts.nextPID, process: p, groups: maps.Clone(groups)}}
	ts.processes[ts.nextPID] = p
	ts.nextPID++
	return p
}

func (ts *tasks) exit(pid int) {
	p := ts.processes[pid]
	if p == nil {
		return
	}
	for _, c := range p.charges {
		c.group.memory.anonymous -= c.bytes
	}
	delete(ts.processes, pid)
}

// alive says whether the process runs under that start time.
func (ts *tasks) alive(id procfs.ID) bool {
	p := ts.processes[id.PID]
	return p != nil && p.id == id
}

// thread gives the thread of that number; nil when there is none.
func (ts *tasks) thread(tid int) *thread {
	for _, p := range ts.processes {
		for _, t := range p.threads {
			if t.tid == tid {
				return t
			}
		}
	}
	return nil
}

// paths gives the paths of groups, by hierarchy ID.
func paths(groups map[string]*group) map[string]string {
	found := make(map[string]string, len(groups))
	for id, g := range groups {
		found[id] = g.path()
	}
	return found
}

// threadsIn gives the threads directly in a group, by number.
func (ts *tasks) threadsIn(g *group) []*thread {
	var in []*thread
	for _, p := range ts.processes {
		for _, t := range p.threads {
			if t.groups[g.ID] == g {
				in = append(in, t)
			}
		}
	}
	slices.SortFunc(in, func(a, b *thread) int { return cmp.Compare(a.tid, b.tid) })
	return in
}

func (ts *tasks) tidsIn(g *group) []int {
	var tids []int
	for _, t := range ts.threadsIn(g) {
		tids = append(tids, t.tid)
	}
	return tids
}

func (ts *tasks) pidsIn(g *group) []int {
	var pids []int
	for _, t := range ts.threadsIn(g) {
		pids = append(pids, t.process.id.PID)
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

func (ts *tasks) tasksBelow(g *group) int64 {
	var n int64
	g.each(func(g *group) { n += int64(len(ts.threadsIn(g))) })
	return n
}

func (ts *tasks) populated(g *group) bool { return ts.tasksBelow(g) > 0 }

func (ts *tasks) realtimeIn(g *group) bool {
	return slices.ContainsFunc(ts.threadsIn(g), func(t *thread) bool { return t.realtime })
}
