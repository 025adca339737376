package snapshot

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/systemd/unitname"
)

// observeSiblings reads who competes with our groups for CPU.
func observeSiblings(v *Snapshot) {
	h, ok := v.Facts.HierarchyOf("cpu")
	if !ok {
		return
	}
	top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
	v.Observed.Siblings = append([]plan.Sibling{{Dir: top, Tasks: rootTasks(v, h)}}, besides(v, h, top)...)
	v.Observed.Beside = map[cgroup.Dir][]plan.Sibling{}
	if v.Systemd == nil {
		return
	}
	v.Observed.Beside[top] = v.Observed.Siblings
	above := func(at string) {
		for d := (cgroup.Dir{Hierarchy: h.ID, Path: at}); d.Path != "/"; d = d.Parent() {
			if at := d.Parent(); v.Observed.Beside[at] == nil {
				first := plan.Sibling{Dir: at, Tasks: sliceTasks(v, h, at)}
				v.Observed.Beside[at] = append([]plan.Sibling{first}, besides(v, h, at)...)
			}
		}
	}
	for at, g := range v.Systemd.Governed {
		if !g.Inside {
			above(at)
		}
	}
	for _, g := range v.Classified.Groups {
		if own, ok := v.Layout.Own(g.Path)[h.ID]; ok && g.Slice != "" {
			above(own.Path)
		}
	}
}

// rootTasks counts what competes directly in the root of a hierarchy, task by task. Only who wants to run now counts: a
// host's many sleeping daemons do not make it a contended one. Without systemd everybody is there whom nobody has put
// elsewhere, so one for each CPU counts at least. systemd keeps everybody but kernel threads in units, and those that
// v1 does not show yet get a directory with the first weight beside them.
func rootTasks(v *Snapshot, h host.Hierarchy) int {
	tasks := 0
	for i := range v.Observed.Processes {
		p := &v.Observed.Processes[i]
		if p.Cgroups[h.ID] == "/" && !p.Kernel && (!v.Facts.Systemd || layout.UnitPath(p) == "/") {
			tasks += runnable(v.procs, p)
		}
	}
	if v.Facts.Systemd {
		return tasks
	}
	return max(tasks, len(v.Facts.CPUs))
}

// sliceTasks counts what competes directly in a slice on cgroup v1: who wants to run now in its units that have no
// directory under the cpu controller. A weight of one of them brings it one and none to its siblings (seen on 252).
func sliceTasks(v *Snapshot, h host.Hierarchy, at cgroup.Dir) int {
	tasks := 0
	for i := range v.Observed.Processes {
		p := &v.Observed.Processes[i]
		dir, _, unit := v.Names.UnitDir(p)
		_, governed := v.Systemd.Governed[dir]
		above := p.Cgroups[h.ID]
		if h.Version == 1 && unit && !governed && strings.HasPrefix(dir, at.Path+"/") &&
			(above == "/" || above == at.Path || strings.HasPrefix(at.Path, above+"/")) {
			tasks += runnable(v.procs, p)
		}
	}
	return tasks
}

// runnable counts the threads of a process that run or want to. Its own state is that of the first one.
func runnable(proc procfs.FS, p *procfs.Process) (tasks int) {
	const running = 'R'
	if p.Threads <= 1 {
		if p.State == running {
			return 1
		}
		return 0
	}
	all, err := proc.Tasks(p.PID)
	if err != nil {
		return 0 // it is gone
	}
	for _, t := range all {
		if t.State == running {
			tasks++
		}
	}
	return tasks
}

// besides reads the weights in a directory, what is ours left out, and what has no process and gets none by itself: a
// mount for one, which is a unit too. systemd brings what is at the top under the cpu controller once one of it has a
// weight, and on cgroup v2 the units of a slice, too; they count from the beginning.
func besides(v *Snapshot, h host.Hierarchy, at cgroup.Dir) (all []plan.Sibling) {
	file, weight := "cpu.shares", int64(1024)
	if h.Version == 2 {
		file, weight = "cpu.weight", 100
	}
	units := at // where systemd keeps who is in which unit
	if v.Systemd != nil {
		units.Hierarchy = layout.Tracker(v.Facts)
	}
	names, err := v.Tree.Children(at)
	if err != nil {
		names = nil // not made yet
	}
	if units != at {
		if more, err := v.Tree.Children(units); err == nil {
			names = append(names, more...)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		d := at.Child(name)
		if !v.isRival(d, units.Child(name)) {
			continue
		}
		values, err := v.Tree.ReadMany(d, []string{file, "cpu.idle"})
		sibling := plan.Sibling{Dir: d, Weight: weight}
		switch n, bad := strconv.ParseInt(values[file], 10, 64); {
		case err == nil && bad == nil:
			sibling.Weight, sibling.Idle = n, values["cpu.idle"] == "1"
		case v.Systemd == nil || err != nil && (units == at || at.Path != "/" || !errors.Is(err, cgroup.ErrGone)):
			continue // not under the cpu controller, or gone between the listing and the look
		}
		all = append(all, sibling)
	}
	return all
}

// isRival says whether a directory competes with our groups: it is none of ours, and no unit in which nobody is. unit
// is where systemd keeps who is in it.
func (s *Snapshot) isRival(d, unit cgroup.Dir) bool {
	if d.Parent().Path == "/" && s.Names.IsTop(path.Base(d.Path)) {
		return false
	}
	return s.Systemd == nil || !s.Names.IsAnchor(d.Path) && !IdleUnit(s.Tree, unit)
}

// IdleUnit says whether a unit that is no slice holds neither a process nor a group.
func IdleUnit(t *cgroup.Tree, d cgroup.Dir) bool {
	if kind := unitname.TypeOf(path.Base(d.Path)); kind == "" || kind == "slice" {
		return false
	}
	children, err := t.Children(d)
	if err != nil || len(children) > 0 {
		return false
	}
	procs, err := t.Procs(d)
	return err == nil && len(procs) == 0
}
