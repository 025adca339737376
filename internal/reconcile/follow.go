package reconcile

import (
	"slices"
	"sync"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/transaction"
)

// forkTime is for how long the forks of a process that was placed are held against it: events of what it
// forked before it was inside come within milliseconds.
const forkTime = 2 * time.Second

// byInheritance marks a process that its parent forked while the parent was on its way into a group.
const byInheritance = "inheritance"

// inherit places what a process forked while it was on its way into a group: had the move been faster, it
// would have been born inside. It goes by events, which say who forked whom when; a process that a rule, a pin
// or a protection has a say about is left to them.
func (m *memory) inherit(v *transaction.View, forks []Fork, now time.Time) {
	if m.movers == nil {
		m.movers = map[int]mover{}
	}
	for pid, was := range m.movers {
		if now.Sub(was.at) > forkTime {
			delete(m.movers, pid)
		}
	}
	for _, f := range forks {
		delete(m.movers, f.Child) // a process before it had the number
	}
	for i := range v.Classified.Placements {
		p := &v.Classified.Placements[i]
		if !policy.Released(v.Released, p.Group) && !v.Layout.Placed(&p.Process, p.Group) {
			m.movers[p.Process.PID] = mover{p.Group, p.Process.Cgroups, now}
		}
	}
	if len(forks) == 0 || len(m.movers) == 0 {
		return
	}
	claimed := claimedIn(v)
	var heirs []classify.Placement
	protected := sync.OnceValue(func() func(int) string { return classify.Protector(v.Rules) })
	for _, f := range forks {
		parent, moving := m.movers[f.Parent]
		if !moving || claimed[f.Child] {
			continue
		}
		m.movers[f.Child] = mover{parent.group, parent.from, now} // alive or not: it may have forked too
		i, alive := slices.BinarySearchFunc(v.Observed.Processes, f.Child,
			func(p procfs.Process, pid int) int { return p.PID - pid })
		if !alive {
			continue
		}
		p := v.Observed.Processes[i]
		if !stayedBehind(p, v.Layout.Place(&p, parent.group), parent.from) || v.Expel[p.ID] ||
			protected()(p.PID) != "" {
			continue
		}
		heirs = append(heirs, classify.Placement{
			Process: p, Group: parent.group, By: byInheritance, Rule: "its parent was on its way there when it forked",
		})
	}
	v.Snapshot = v.With(heirs...)
}

// claimedIn names the processes that a rule, a pin or a protection has a say about.
func claimedIn(v *transaction.View) map[int]bool {
	claimed := make(map[int]bool, len(v.Classified.Placements)+len(v.Classified.Skips))
	for i := range v.Classified.Placements {
		claimed[v.Classified.Placements[i].Process.PID] = true
	}
	for i := range v.Classified.Skips {
		claimed[v.Classified.Skips[i].Process.PID] = true
	}
	return claimed
}

// misplaced lists the members of groups that are not released and that are not in their directories.
func misplaced(v *transaction.View) (all []procfs.ID) {
	for i := range v.Classified.Placements {
		p := &v.Classified.Placements[i]
		if !policy.Released(v.Released, p.Group) && !v.Layout.Placed(&p.Process, p.Group) {
			all = append(all, p.Process.ID)
		}
	}
	return all
}

// stayedBehind says whether a process is not in all the directories, and else where its parent was.
func stayedBehind(p procfs.Process, dirs map[string]cgroup.Dir, from map[string]string) bool {
	behind := false
	for hierarchy, d := range dirs {
		switch p.Cgroups[hierarchy] {
		case d.Path:
		case from[hierarchy]:
			behind = true
		default:
			return false
		}
	}
	return behind
}

// ungoverned says whether a process of a group is in a unit that the last look did not know as the group's: whose
// limits are then its properties, or the group's no more.
func ungoverned(v *transaction.View, p classify.Placement) bool {
	if v.Systemd == nil {
		return false
	}
	dir, _, ok := v.Names.UnitDir(&p.Process)
	return ok && v.Systemd.Governed[dir].Group != p.Group
}

// withAncestors adds to processes their ancestors and one more, in order of pid. Served says that one of them is
// the main process of an instance: then what it is to the instance only a whole look tells.
func withAncestors(fresh []procfs.Process, more int, instances []engine.Instance,
	table func(pid int) (procfs.Process, bool)) (procs []procfs.Process, served bool) {
	procs = slices.Grow(slices.Clone(fresh), 8)
	at := func(pid int) int {
		for i := range procs {
			if procs[i].PID == pid {
				return i
			}
		}
		return -1
	}
	add := func(pid int) (parent int, isNew bool) {
		if at(pid) >= 0 {
			return 0, false
		}
		p, found := table(pid)
		if found {
			procs = append(procs, p)
		}
		return p.PPID, found
	}
	for i := range fresh {
		for parent, isNew := add(fresh[i].PPID); isNew; parent, isNew = add(parent) {
			continue
		}
	}
	for i := range instances {
		if n := at(instances[i].Main.PID); n >= 0 && procs[n].ID == instances[i].Main {
			return nil, true
		}
	}
	add(more)
	slices.SortFunc(procs, func(a, b procfs.Process) int { return a.PID - b.PID })
	return procs, false
}
