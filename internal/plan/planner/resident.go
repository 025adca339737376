package planner

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
)

// knowResidents places the processes that nothing claims in the group that they are in. Who gets into a
// group gets out by a rule, a pin, a release or the end of the group, and by nothing else: not by running
// another program or rewriting its arguments.
func (p *planner) knowResidents() {
	for i := range p.table {
		proc := &p.table[i]
		_, isPlaced := p.placed[proc.ID]
		_, isSkipped := p.skipped[proc.ID]
		if isPlaced || isSkipped || p.expelled(proc) {
			continue
		}
		if group, ok := p.d.Layout.Resident(proc); ok {
			p.placed[proc.ID] = placing{group: group, why: "no rule matches it, and it stays in its group",
				resident: true}
		}
	}
}

// expelled says whether the process, or an ancestor with nothing claimed between, was sent back.
func (p *planner) expelled(proc *procfs.Process) bool {
	if len(p.in.Expel) == 0 || p.in.Expel[proc.ID] {
		return len(p.in.Expel) > 0
	}
	for parent := range p.ancestors(proc) {
		if p.in.Expel[parent.ID] {
			return true
		}
		if placed, ok := p.placed[parent.ID]; ok && !placed.resident {
			return false
		}
	}
	return false
}

// dropElsewhere takes out of the targets of a resident what would move it from where others put it: only
// from a directory of ours, or from home, is it brought into the rest of its group.
func (p *planner) dropElsewhere(proc *procfs.Process, group string, targets map[string]string) {
	for h := range targets {
		dir := cgroup.Dir{Hierarchy: h, Path: p.where(proc, h)}
		_, ours := p.d.Layout.Group(dir)
		if ours && p.isForeign(dir) || !ours && dir.Path != p.home(proc, h, group) {
			delete(targets, h)
		}
	}
}

// isForeign says whether others made the directory or one that it lies in.
func (p *planner) isForeign(dir cgroup.Dir) bool {
	for ; dir.Path != "/" && dir.Path != "."; dir = dir.Parent() {
		if p.o.Foreign[dir] {
			return true
		}
	}
	return false
}

// ancestors yields the processes above one, nearest first. Pids are read while processes come and go, so
// the chain may close into a ring.
func (p *planner) ancestors(proc *procfs.Process) func(yield func(*procfs.Process) bool) {
	return func(yield func(*procfs.Process) bool) {
		seen := map[int]bool{proc.PID: true}
		for at := p.byPID[proc.PPID]; at != nil && !seen[at.PID]; at = p.byPID[at.PPID] {
			seen[at.PID] = true
			if !yield(at) {
				return
			}
		}
	}
}
