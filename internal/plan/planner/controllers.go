package planner

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/current"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
)

// enable hands controllers down the v2 tree, from the root of the hierarchy on. A directory with
// processes refuses that (EBUSY, "no internal processes"), so they leave it first.
func (w *writer) enable() {
	w.untangle()
	for _, dir := range w.handing() {
		missing := current.Without(w.Desired.Enabled[dir], w.Handed(dir))
		if len(missing) == 0 {
			continue
		}
		w.evacuate(dir, dir.Child(layout.Leaf))
		w.out.Steps = append(w.out.Steps, w.subtreeStep(dir, missing, nil,
			"limits of groups below need "+strings.Join(missing, ", ")))
	}
}

// handing lists the v2 directories that must hand controllers down, parents first.
func (w *writer) handing() []cgroup.Dir {
	return slices.SortedFunc(maps.Keys(w.Desired.Enabled), func(a, b cgroup.Dir) int {
		return cmp.Or(strings.Compare(a.Hierarchy, b.Hierarchy), layout.CompareDirs(a, b))
	})
}

// subtreeStep describes one write to cgroup.subtree_control.
func (w *writer) subtreeStep(dir cgroup.Dir, add, remove []string, reason string) plan.Step {
	c := change.Change{Target: dir.File(desired.FileSubtree).Target(), New: subtreeWords(add, remove),
		Undo: subtreeWords(remove, add)}
	if !w.IsNew[dir] {
		c.Old = strings.Join(signed("", w.Handed(dir)), " ")
	}
	return plan.Step{Change: c, Group: w.GroupOf(dir), Reason: reason}
}

// disable takes away controllers that nobody below needs any more, from the bottom up. In directories
// that are about to go only those that stand in the way of one above are taken away.
func (w *writer) disable() {
	drops := make(map[cgroup.Dir][]string)
	var dirs []cgroup.Dir
	for _, h := range w.In.Facts.Hierarchies {
		if h.Version != 2 {
			continue
		}
		for _, dir := range w.Ours[h.ID] {
			var drop []string
			switch {
			case w.Desired.Layout.Holds(dir):
				drop = current.Without(w.Handed(dir), w.Desired.Enabled[dir])
			case w.IsObsolete[dir]:
				for _, c := range w.Handed(dir) {
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
		step := w.subtreeStep(dir, nil, drops[dir],
			fmt.Sprintf("no group below %s needs %s any more", path.Base(dir.Path), strings.Join(drops[dir], ", ")))
		for _, child := range w.Ours[dir.Hierarchy] {
			if child.Parent() == dir {
				step.Restore = append(step.Restore, w.restores(child, func(r *knob.Row) bool {
					return slices.Contains(drops[dir], r.Controller)
				})...)
			}
		}
		w.out.Steps = append(w.out.Steps, step)
		w.dropped[dir] = drops[dir]
	}
}

// removeDirs removes directories, children before parents. One in which a process stays is kept, and
// with it those above.
func (w *writer) removeDirs(dirs []cgroup.Dir, why func(cgroup.Dir) string) {
	kept := make(map[cgroup.Dir]bool)
	for i := range w.table {
		proc := &w.table[i]
		if proc.Exited() {
			continue
		}
		for _, h := range w.In.Facts.Hierarchies {
			if path := w.where(proc, h.ID); path != "" {
				kept[cgroup.Dir{Hierarchy: h.ID, Path: path}] = true
			}
		}
	}
	for _, dir := range slices.Backward(dirs) {
		if kept[dir] {
			w.out.Note(w.GroupOf(dir), "", "%s is kept: a process or a group sits in it", dir)
			kept[dir.Parent()] = true
			continue
		}
		w.out.Steps = append(w.out.Steps, plan.Step{
			Change: change.Of(dir.Target(), cgroup.There, ""), Group: w.GroupOf(dir),
			Unit: w.Desired.Layout.Unit(dir), Reason: why(dir), Restore: w.restoresAll(dir),
		})
	}
}
