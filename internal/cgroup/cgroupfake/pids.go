package cgroupfake

import (
	"fmt"
	"syscall"

	"bulkhead/internal/cgroup/cgroupfake/kstrto"
)

// pidsFiles are those of the pids controller, the same on both versions.
func pidsFiles() []*file {
	var files []*file
	for _, version := range []int{1, 2} {
		files = append(files,
			&file{name: "pids.max", version: version, controller: "pids", place: notRoot, initial: "max",
				write: func(_ *kernel, g *group, text string) error {
					if g.setLimit("pids.max", text, 4<<20) != nil { // PID_MAX_LIMIT
						return syscall.EINVAL
					}
					return nil
				}},
			count("pids.current", version, "pids",
				func(k *kernel, g *group) int64 { return k.tasksBelow(g) }).at(notRoot),
			&file{name: "pids.events", version: version, controller: "pids", place: notRoot,
				read: func(_ *kernel, g *group) string { return fmt.Sprintf("max %d", g.refused) }},
		)
	}
	return files
}

// forking gives the process that is to have one task more: EAGAIN where pids.max is reached.
func (ts *tasks) forking(pid int) (*process, error) {
	p := ts.processes[pid]
	if p == nil {
		return nil, syscall.ESRCH
	}
	return p, ts.mayFork(p.threads[0])
}

// mayFork holds one task more against pids.max of every ancestor.
func (ts *tasks) mayFork(t *thread) error {
	for _, g := range t.groups {
		for _, up := range g.ancestors() {
			limit, err := kstrto.Signed(up.values["pids.max"])
			if err == nil && ts.tasksBelow(up) >= limit {
				up.refused++
				return syscall.EAGAIN
			}
		}
	}
	return nil
}
