// Package layout says which directories the groups of a policy have in each hierarchy of a host, and where the
// processes of a group are to sit: in directories of bulkhead's own, or with systemd in slices, keepers and the units
// that carry its limits. It reads nothing; all it knows comes in as values. A Layout may be read by several goroutines.
//
//	l := layout.New(facts, names, layout.NewForest(facts, hostPart, groups), nil)
//	group, ours := l.Group(dir)            // whose directory it is
//	dirs := l.Place(&process, "mysql3306") // where a process of the group is to sit, by hierarchy
package layout

import (
	"errors"
	"path"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/systemd/unitname"
)

// Layout is the shape of our tree: which directories there are in each hierarchy, and in which of
// them a group's own processes sit.
//
// A group has a directory in each hierarchy that holds a limit of its own, of a group above it or of
// one below it, and in v1's cpuacct, which only counts. The processes of a group with children sit
// in its leaf "db", because cgroup v2 allows none beside child groups that have controllers.
//
// A hierarchy is flat when no limit asked for in it descends (v1's blkio.throttle: measured, a child of a
// 10 MiB/s group reads at full speed). There the processes of a group sit in the directory of
// the nearest group, itself or above it, that has a limit; a group without one is not in it at all.
type Layout struct {
	Names       Names
	Owner       map[cgroup.Dir]string // the group of each directory that is laid
	hierarchies []host.Hierarchy
	dirs        []cgroup.Dir
	own         map[string]map[string]cgroup.Dir // group → hierarchy → directory that carries its limits
	member      map[string]map[string]cgroup.Dir // group → hierarchy → directory of its processes
	flat        map[string]bool                  // hierarchy ID

	systemd  Systemd
	answers  bool                    // systemd could be asked; without it there are only the kernel's files
	Owned    map[string]bool         // hierarchy ID: systemd makes the directories
	budgets  map[string]bool         // hierarchy ID: a limit asked for there holds only what sits in the very directory
	Anchors  map[cgroup.Dir]bool     // slices that hold controllers beside a unit that is to start elsewhere
	Governed map[cgroup.Dir]Governed // of the dirs, those of units that carry a group's limits
	fromUnit map[string]bool         // groups whose processes may be taken out of a unit
	Adopts   map[string]bool         // groups that units are to start in
	slices   map[string]string       // directory of an administrator's slice → its group
	TooLong  error                   // a name that systemd does not take
}

// New gives the tree for the groups of a forest on this host. Released groups must be left out of it. Without groups
// there is no tree. names holds the names that directories and units of ours have or had; s is nil without systemd.
func New(f *host.Facts, names Names, t *Forest, s *Systemd) Layout {
	l := Layout{
		Names:  names,
		Owner:  make(map[cgroup.Dir]string),
		own:    make(map[string]map[string]cgroup.Dir, len(t.Nodes)),
		member: make(map[string]map[string]cgroup.Dir, len(t.Nodes)),
		flat:   make(map[string]bool),

		Owned: make(map[string]bool), budgets: make(map[string]bool), Governed: make(map[cgroup.Dir]Governed),
		Anchors:  make(map[cgroup.Dir]bool),
		fromUnit: t.fromUnit, Adopts: t.adopts, slices: make(map[string]string),
	}
	l.know(f, s)
	for _, n := range t.Nodes {
		l.own[n.Path] = make(map[string]cgroup.Dir, len(f.Hierarchies))
		l.member[n.Path] = make(map[string]cgroup.Dir, len(f.Hierarchies))
	}
	if len(t.Nodes) == 1 { // the root group alone holds nothing
		return l
	}
	rows := Rows(f)
	for _, h := range f.Hierarchies {
		l.lay(f, h, t, t.askedOf(f, h, rows[h.ID]), len(rows[h.ID]) > 0)
		l.budgets[h.ID] = slices.ContainsFunc(rows[h.ID], func(r *knob.Row) bool {
			return IsBudget(r) && slices.ContainsFunc(t.Nodes, func(n *Node) bool { return r.Asked(n.Settings) })
		})
	}
	return l
}

// know takes in what is known of systemd, which may be nothing.
func (l *Layout) know(f *host.Facts, s *Systemd) {
	if s != nil {
		l.systemd, l.answers = *s, !s.Mute
		for unit, k := range s.Kept { // one that the policy no longer has, too
			if unitname.TypeOf(unit) == "slice" {
				l.slices[k.Dir] = k.Group
			}
		}
	}
	for _, h := range f.Hierarchies {
		if Owned(f, h) {
			l.Owned[h.ID] = true
		}
	}
}

// lay lays one hierarchy: knobs says whether the table has rows for it.
func (l *Layout) lay(f *host.Facts, h host.Hierarchy, t *Forest, asked map[string]asking, knobs bool) {
	counts := h.Version == 1 && slices.Contains(h.Controllers, "cpuacct") && !h.ReadOnly || Tracks(f, h)
	needed := counts || slices.ContainsFunc(t.Nodes, func(n *Node) bool { return asked[n.Path].any })
	// systemd makes a unit's directories in every hierarchy in which it counts.
	if !needed && !(l.Owned[h.ID] && knobs) {
		return
	}
	l.hierarchies = append(l.hierarchies, h)
	l.flat[h.ID] = !counts && !slices.ContainsFunc(t.Nodes, func(n *Node) bool { return asked[n.Path].descends })
	switch {
	case l.Owned[h.ID]:
		l.TooLong = errors.Join(l.TooLong, l.layUnits(h, t, needed))
		if needed && l.flat[h.ID] {
			l.shareMembers(h.ID, t, asked)
		}
		if !Tracks(f, h) {
			l.layGoverned(h)
		}
	case l.flat[h.ID]:
		l.layFlat(h.ID, t, asked)
	default:
		l.layTree(h.ID, t, asked, counts)
	}
}

// layTree lays a hierarchy whose limits descend.
func (l *Layout) layTree(hierarchy string, t *Forest, asked map[string]asking, everyone bool) {
	above, below := t.spread(asked)
	for _, n := range t.Nodes {
		if !l.Has(n.Path) || !everyone && !asked[n.Path].any && !above[n.Path] && !below[n.Path] {
			continue
		}
		dir := l.addDir(hierarchy, n.Path, "")
		switch {
		case n.Path == RootGroup:
		case n.Inner:
			l.member[n.Path][hierarchy] = l.addDir(hierarchy, n.Path, Leaf)
		default:
			l.member[n.Path][hierarchy] = dir
		}
	}
}

// layFlat lays a hierarchy whose limits hold only what sits in the very directory.
func (l *Layout) layFlat(hierarchy string, t *Forest, asked map[string]asking) {
	_, below := t.spread(asked)
	for _, n := range t.Nodes {
		if l.Has(n.Path) && (asked[n.Path].any || below[n.Path]) {
			l.addDir(hierarchy, n.Path, "")
		}
		for m := n; m != nil && m.Path != RootGroup; m = m.Parent {
			if asked[m.Path].any {
				l.member[n.Path][hierarchy] = l.own[m.Path][hierarchy]
				break
			}
		}
	}
}

// addDir adds the directory of a group, or its leaf.
func (l *Layout) addDir(hierarchy, group, leaf string) cgroup.Dir {
	d := cgroup.Dir{Hierarchy: hierarchy, Path: path.Join(l.Names.Dir(group), leaf)}
	l.dirs = append(l.dirs, d)
	l.Owner[d] = group
	if leaf == "" {
		l.own[group][hierarchy] = d
	}
	return d
}

// Member gives the directory of the group's own processes in each hierarchy, by its ID. It is empty
// for the root group and for a group that is not part of the layout.
func (l Layout) Member(group string) map[string]cgroup.Dir { return l.member[group] }

// Own gives the directory that carries the group's limits in each hierarchy, by its ID.
func (l Layout) Own(group string) map[string]cgroup.Dir { return l.own[group] }

// Dirs gives every directory, hierarchy by hierarchy, parents before their children.
func (l Layout) Dirs() []cgroup.Dir { return l.dirs }

// Hierarchies gives the hierarchies that the layout needs, in the order of the facts.
func (l Layout) Hierarchies() []host.Hierarchy { return l.hierarchies }

// Has says whether a group has directories: each has, but for what lies above all where there is no root group.
func (l Layout) Has(group string) bool { return group != RootGroup || l.Names.Root != "" }

// Holds says whether a directory is part of the layout.
func (l Layout) Holds(d cgroup.Dir) bool {
	_, ok := l.Owner[d]
	return ok
}

// Group gives the group that a directory of ours belongs to, by its path alone: a leaf "db" belongs to the group above
// it. ok is false for all other directories.
func (l Layout) Group(d cgroup.Dir) (group string, ok bool) {
	if l.Owned[d.Hierarchy] {
		if l.Names.IsAnchor(d.Path) {
			return RootGroup, true
		}
		for slice, group := range l.slices {
			if rest, inside := Below(slice, d.Path); inside && (rest == "" || !classify.IsOthers(group)) {
				return group, true
			}
		}
		return l.Names.groupOfSlice(d.Path)
	}
	return l.Names.GroupOf(d.Path)
}
