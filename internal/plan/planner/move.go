package planner

import (
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
)

// removeDirs removes directories, children before parents. One in which a process stays is kept, and
// with it those above.
func (w *writer) removeDirs(dirs []cgroup.Dir, why func(cgroup.Dir) string) {
	kept := make(map[cgroup.Dir]bool)
	for i := range w.table {
		proc := &w.table[i]
		if layout.Gone(proc) {
			continue
		}
		for _, h := range w.in.Facts.Hierarchies {
			if path := w.where(proc, h.ID); path != "" {
				kept[cgroup.Dir{Hierarchy: h.ID, Path: path}] = true
			}
		}
	}
	for _, dir := range slices.Backward(dirs) {
		if kept[dir] {
			w.out.Note(w.groupOf(dir), "", "%s is kept: a process or a group sits in it", dir)
			kept[dir.Parent()] = true
			continue
		}
		w.out.Steps = append(w.out.Steps, plan.Step{
			Op: plan.OpRemoveDir, Group: w.groupOf(dir), Dir: dir, Unit: w.d.Layout.Unit(dir),
			Undo:    string(plan.OpMakeDir),
			Reason:  why(dir),
			Restore: w.restoresAll(dir),
		})
	}
}

const whyNoGroup = "the policy makes no such group of what runs here now"
