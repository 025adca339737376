package layout

import (
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd/unitname"
)

// ProgramDirs are the absolute paths of a group's directories in the cgroup2 hierarchy.
func ProgramDirs(f *host.Facts, l Layout, group string) []string {
	h, ok := Unified(f)
	if !ok {
		return nil
	}
	var dirs []string
	if own, ok := l.Own(group)[h.ID]; ok {
		dirs = append(dirs, path.Join(h.Mount, own.Path))
	}
	for _, d := range l.Outside(group, h.ID) {
		dirs = append(dirs, path.Join(h.Mount, d.Path))
	}
	return dirs
}

// Resident gives the group in whose directories a process sits. Where these are of several groups, it is
// the innermost of the first one's line: a process of a group without io limits sits in blkio in a
// group above it, and one that was born while its parent moved sits in two groups. ok is false for a
// process that is in no directory of a group of the layout.
func (l Layout) Resident(proc *procfs.Process) (group string, ok bool) {
	for _, h := range l.hierarchies {
		owner, ours := l.Group(cgroup.Dir{Hierarchy: h.ID, Path: proc.Cgroups[h.ID]})
		if _, lives := l.own[owner]; !ours || !lives || owner == RootGroup {
			continue
		}
		if l.Owned[h.ID] {
			if _, _, inUnit := l.Names.UnitDir(proc); inUnit || l.Names.IsKeeperDir(proc.Cgroups[h.ID]) {
				continue
			}
		}
		if _, inner := Below(group, owner); inner || group == "" {
			group = owner
		}
	}
	return group, group != ""
}

// Placed says whether a process of a group is in the directories in which it is to sit (Place).
func (l Layout) Placed(p *procfs.Process, group string) bool {
	for hierarchy, d := range l.Place(p, group) {
		if p.Cgroups[hierarchy] != d.Path {
			return false
		}
	}
	return true
}

// Unit names the unit that systemd makes a directory for, "" for one that is ours alone.
func (l Layout) Unit(d cgroup.Dir) string {
	if !l.Owned[d.Hierarchy] || !l.answers {
		return ""
	}
	if name := path.Base(d.Path); slices.Contains([]string{"slice", "service", "scope"}, unitname.TypeOf(name)) {
		return name
	}
	return ""
}

// KnobUnit describes the unit of a directory to the knob table.
func (l Layout) KnobUnit(d cgroup.Dir) (knob.Unit, bool) {
	name := l.Unit(d)
	return knob.Unit{Name: name, Version: l.systemd.Version}, name != ""
}

// Theirs says whether a directory is that of a unit which bulkhead did not make, so that only what the group asks for
// is written there.
func (l Layout) Theirs(d cgroup.Dir) bool {
	if !l.Owned[d.Hierarchy] {
		return false
	}
	_, slice := l.slices[d.Path]
	return slice || l.Governed[d].Unit != ""
}

// Outside gives the directories of a group's units that are not in its slice and carry its limits by themselves.
func (l Layout) Outside(group, hierarchy string) []cgroup.Dir {
	var dirs []cgroup.Dir
	for d, g := range l.Governed {
		if d.Hierarchy == hierarchy && g.Group == group && !g.Inside {
			dirs = append(dirs, d)
		}
	}
	slices.SortFunc(dirs, CompareDirs)
	return dirs
}

// Place gives the directories in which a process of a group is to sit: the group's own, without those of hierarchies
// in which it stays in its unit, because that carries the limits or because it is not to be taken out of it.
//
// A command of `run` stays in its scope, in the group's slice, wherever the slice's limits reach it. Where a limit
// holds only what sits in the very directory (v1's blkio.throttle) it is with the group's others; systemd has it in the
// scope by another hierarchy.
func (l Layout) Place(p *procfs.Process, group string) map[string]cgroup.Dir {
	member := l.member[group]
	if len(l.Owned) == 0 || len(member) == 0 {
		return member
	}
	stays, runs := l.StaysInUnit(p, group), l.InRun(p, group)
	if !stays && !runs {
		return member
	}
	rest := make(map[string]cgroup.Dir, len(member))
	for hierarchy, d := range member {
		if !l.Owned[hierarchy] || runs && !l.reaches(group, hierarchy, p.Cgroups[hierarchy]) {
			rest[hierarchy] = d
		}
	}
	return rest
}

// InRun says whether a process is in the scope of a command of `run` in the slice of its group.
func (l Layout) InRun(p *procfs.Process, group string) bool {
	dir := l.Names.RunDir(UnitPath(p))
	return dir != "" && l.inSlice(group, dir)
}

// inSlice says whether a directory is the group's, and not that of a group below it, by its path in any hierarchy of
// systemd's.
func (l Layout) inSlice(group, dir string) bool {
	for hierarchy := range l.Owned {
		owner, ours := l.Group(cgroup.Dir{Hierarchy: hierarchy, Path: dir})
		return ours && owner == group
	}
	return false
}

// reaches says whether the limits of a group's slice hold what sits in a directory.
func (l Layout) reaches(group, hierarchy, dir string) bool {
	return !l.budgets[hierarchy] && l.inSlice(group, dir)
}

// HoldsRun says whether a directory is that of a command of `run` whose group is there: it comes with the command and
// goes with it.
func (l Layout) HoldsRun(d cgroup.Dir) bool {
	if !l.Owned[d.Hierarchy] || !l.Names.IsRun(path.Base(d.Path)) {
		return false
	}
	group, ours := l.Group(d)
	_, there := l.own[group]
	return ours && there && group != RootGroup
}

// StaysInUnit says whether a process of a group is left in the unit that it is in.
func (l Layout) StaysInUnit(p *procfs.Process, group string) bool {
	dir, unit, ok := l.Names.UnitDir(p)
	if !ok {
		return false
	}
	g, governed := l.systemd.Governed[dir]
	if _, within := Below(g.Group, group); governed && (g.Group == group || !within) {
		return true
	}
	if unitname.TypeOf(unit) == "scope" {
		return false // nobody but its processes holds a scope together
	}
	main := l.systemd.Main[unit]
	return !l.fromUnit[group] && !l.systemd.Pinned[p.ID] || main == 0 || main == p.PID
}

// Stuck says which unit keeps a process out of its group, "" for none: it is its main process, or a part of a service
// out of which the group takes nobody.
func (l Layout) Stuck(p *procfs.Process, group string) string {
	dir, unit, ok := l.Names.UnitDir(p)
	if g := l.systemd.Governed[dir]; len(l.Owned) == 0 || !ok || g.Group == group && g.Unit != "" ||
		!l.StaysInUnit(p, group) {
		return ""
	}
	return unit
}

// Held says whether the limits of its group hold a process, and which unit keeps it out of them, "" for none.
func Held(l Layout, p *procfs.Process, group string) (held bool, keeper string) {
	keeper = l.Stuck(p, group)
	return keeper == "" && l.Placed(p, group), keeper
}

// SliceName names the slice of a group that is there.
func (l Layout) SliceName(group string) (name string, ok bool) {
	for hierarchy, d := range l.own[group] {
		if l.Owned[hierarchy] {
			return d.Path[strings.LastIndexByte(d.Path, '/')+1:], true
		}
	}
	return "", false
}

// Settled says of processes that match no rule whether they are sorted already, for host.others: in a group of ours
// that is for rules, or where somebody else put them in the hierarchy that shares the CPU. It is nil where nobody is
// gathered: the policy does not ask for it, systemd sorts the processes, or nothing shares the CPU.
func (n Names) Settled(f *host.Facts, h policy.HostPart) classify.Settled {
	cpu, ok := f.HierarchyOf("cpu")
	if len(h.Others) == 0 || f.Systemd || !ok {
		return nil
	}
	return func(p *procfs.Process) bool {
		at := p.Cgroups[cpu.ID]
		group, ours := n.GroupOf(at)
		return at != "/" && !(ours && (classify.IsOthers(group) || group == RootGroup))
	}
}
