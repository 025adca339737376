package control

import (
	"bulkhead/internal/cgroup"
)

// Strays are the processes that somebody else moved since the last look: members that are no longer listed in a
// directory of their group, and processes that are listed there and were elsewhere. A move by others changes
// nothing that a scanner sees without reading a process from end to end, and the kernel tells of none. Of the
// listing a member may be missing although it is there (cgroup v1, while others fork), so these are only to be read
// anew.
func (c *Controller) Strays() []int {
	v := c.memory.view
	if v == nil {
		return nil
	}
	listed := map[cgroup.Dir]map[int]bool{} // false: a member that is to be there
	for _, g := range v.Classified.Groups {
		for _, d := range v.Layout.Member(g.Path) {
			listed[d] = map[int]bool{}
		}
	}
	for i := range v.Observed.Processes {
		p := &v.Observed.Processes[i]
		for hierarchy, path := range p.Cgroups {
			if pids, ours := listed[cgroup.Dir{Hierarchy: hierarchy, Path: path}]; ours {
				pids[p.PID] = false
			}
		}
	}
	var strays []int
	for d, pids := range listed {
		now, err := v.Tree.Procs(d)
		if err != nil {
			continue // a directory that is gone is the look's to find
		}
		for _, pid := range now {
			if _, known := pids[pid]; !known {
				strays = append(strays, pid)
			}
			pids[pid] = true
		}
		for pid, there := range pids {
			if !there {
				strays = append(strays, pid)
			}
		}
	}
	return strays
}
