package planner

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// enable hands controllers down the v2 tree, from the root of the hierarchy on. A directory with
// processes refuses that (EBUSY, "no internal processes"), so they leave it first.
func (p *planner) enable() {
	p.untangle()
	for _, dir := range p.handing() {
		missing := without(p.d.Enabled[dir], p.handed(dir))
		if len(missing) == 0 {
			continue
		}
		p.evacuate(dir, dir.Child(layout.Leaf))
		p.steps = append(p.steps, p.subtreeStep(dir, missing, nil,
			"limits of groups below need "+strings.Join(missing, ", ")))
	}
}

// handing lists the v2 directories that must hand controllers down, parents first.
func (p *planner) handing() []cgroup.Dir {
	var dirs []cgroup.Dir
	for dir := range p.d.Enabled {
		dirs = append(dirs, dir)
	}
	slices.SortFunc(dirs, func(a, b cgroup.Dir) int {
		if a.Hierarchy != b.Hierarchy {
			return strings.Compare(a.Hierarchy, b.Hierarchy)
		}
		return layout.CompareDirs(a, b)
	})
	return dirs
}

// handed gives the controllers that a directory hands down now.
func (p *planner) handed(dir cgroup.Dir) []string {
	if p.isNew[dir] {
		return nil
	}
	enabled := host.V1Names(p.o.Subtree[dir].Enabled)
	if p.d.Layout.Owned[dir.Hierarchy] {
		return without(enabled, layout.UnitControllers)
	}
	return enabled
}

func without(these, those []string) []string {
	return slices.DeleteFunc(slices.Clone(these), func(s string) bool { return slices.Contains(those, s) })
}

// subtreeStep describes one write to cgroup.subtree_control.
func (p *planner) subtreeStep(dir cgroup.Dir, add, remove []string, reason string) plan.Step {
	step := plan.Step{
		Op: plan.OpWrite, Group: p.groupOf(dir), Dir: dir, File: desired.FileSubtree,
		Old: strings.Join(mapped(p.handed(dir), host.V2Name), " "),
		New: subtreeWords(add, remove), Undo: subtreeWords(remove, add), Reason: reason,
	}
	if p.isNew[dir] {
		step.Old = ""
	}
	return step
}

// subtreeWords is a write to cgroup.subtree_control: "+cpu -io".
func subtreeWords(add, remove []string) string {
	var words []string
	for _, c := range add {
		words = append(words, "+"+host.V2Name(c))
	}
	for _, c := range remove {
		words = append(words, "-"+host.V2Name(c))
	}
	return strings.Join(words, " ")
}

// untangle takes processes out of directories that hand controllers down already. Somebody put them there, and
// the kernel let them in because cpu, cpuset and pids may govern threads: such a directory is then the root
// of a threaded tree, and no process can enter those below it (EOPNOTSUPP) until it is empty.
func (p *planner) untangle() {
	for _, h := range p.d.Layout.Hierarchies() {
		if h.Version != 2 {
			continue
		}
		for _, dir := range p.ours[h.ID] {
			if p.d.Layout.Holds(dir) && len(p.handed(dir)) > 0 {
				p.evacuate(dir, cgroup.Dir{})
			}
		}
	}
}

// evacuate moves what sits directly in a directory of ours out of the way: into its leaf, where the group's
// limits go on holding it, or where there is none to where it came from.
func (p *planner) evacuate(dir, leaf cgroup.Dir) {
	group, ok := p.d.Layout.Group(dir)
	if !ok || p.isNew[dir] {
		return
	}
	for i := range p.table {
		proc := &p.table[i]
		if p.where(proc, dir.Hierarchy) != dir.Path || layout.Gone(proc) {
			continue
		}
		to := leaf.Path
		if !p.d.Layout.Holds(leaf) {
			to = p.home(proc, dir.Hierarchy, group)
		}
		p.move(proc, dir.Hierarchy, to, group, "cgroup v2 allows no processes beside child groups with limits")
	}
}

// disable takes away controllers that nobody below needs any more, from the bottom up. In directories
// that are about to go only those that stand in the way of one above are taken away.
func (p *planner) disable() {
	drops := make(map[cgroup.Dir][]string)
	var dirs []cgroup.Dir
	for _, h := range p.in.Facts.Hierarchies {
		if h.Version != 2 {
			continue
		}
		for _, dir := range p.ours[h.ID] {
			var drop []string
			switch {
			case p.d.Layout.Holds(dir):
				drop = without(p.handed(dir), p.d.Enabled[dir])
			case p.isObsolete[dir]:
				for _, c := range p.handed(dir) {
					if slices.Contains(drops[dir.Parent()], c) {
						drop = append(drop, c)
					}
				}
			}
			if len(drop) > 0 {
				drops[dir] = drop
				dirs = append(dirs, dir)
			}
		}
	}
	for _, dir := range slices.Backward(dirs) {
		step := p.subtreeStep(dir, nil, drops[dir],
			fmt.Sprintf("no group below %s needs %s any more", path.Base(dir.Path), strings.Join(drops[dir], ", ")))
		for _, child := range p.ours[dir.Hierarchy] {
			if child.Parent() == dir {
				step.Restore = append(step.Restore, p.restores(child, func(r *knob.Row) bool {
					return slices.Contains(drops[dir], r.Controller)
				})...)
			}
		}
		p.steps = append(p.steps, step)
		p.dropped[dir] = drops[dir]
	}
}

// handsDown says whether the files of a controller will be there in a directory when the plan is done.
// Controllers enabled above our root stay so until everything is released.
func (p *planner) handsDown(dir cgroup.Dir, controller string) bool {
	if p.d.Layout.Owned[dir.Hierarchy] && slices.Contains(layout.UnitControllers, controller) {
		return true
	}
	h, _ := p.in.Facts.Hierarchy(dir.Hierarchy)
	_, inside := p.d.Layout.Group(dir.Parent())
	return h.Version != 2 || !inside || slices.Contains(p.d.Enabled[dir.Parent()], controller)
}

// chargesMemory says whether a move in this hierarchy leaves charged memory behind.
func (p *planner) chargesMemory(hierarchy string) bool {
	h, ok := p.in.Facts.HierarchyOf("memory")
	return ok && h.ID == hierarchy && (h.Version == 1 ||
		p.anyValue(hierarchy, policy.KeyMemoryMax, policy.KeyMemoryHigh, policy.KeyMemoryLow, policy.KeyMemoryMin))
}

func (p *planner) anyValue(hierarchy string, keys ...policy.Key) bool {
	for dir, values := range p.d.Values {
		for _, v := range values {
			if dir.Hierarchy == hierarchy && slices.Contains(keys, v.Setting.Key) {
				return true
			}
		}
	}
	return false
}
