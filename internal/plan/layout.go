package plan

import (
	"errors"
	"path"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd/unitname"
)

// Leaf is the directory of an inner group's own processes. The name is reserved: no group has it.
const Leaf = "db"

// RootGroup is the group path of what lies above all groups: our root group, where the policy asks for one, else the
// top of each hierarchy. It holds no process.
const RootGroup = ""

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
	names       Names
	hierarchies []host.Hierarchy
	dirs        []cgroup.Dir
	owner       map[cgroup.Dir]string
	own         map[string]map[string]cgroup.Dir // group → hierarchy → directory that carries its limits
	member      map[string]map[string]cgroup.Dir // group → hierarchy → directory of its processes
	flat        map[string]bool                  // hierarchy ID

	systemd  Systemd
	answers  bool                    // systemd could be asked; without it there are only the kernel's files
	owned    map[string]bool         // hierarchy ID: systemd makes the directories
	budgets  map[string]bool         // hierarchy ID: a limit asked for there holds only what sits in the very directory
	anchors  map[cgroup.Dir]bool     // slices that hold controllers beside a unit that is to start elsewhere
	governed map[cgroup.Dir]Governed // of the dirs, those of units that carry a group's limits
	fromUnit map[string]bool         // groups whose processes may be taken out of a unit
	adopts   map[string]bool         // groups that units are to start in
	slices   map[string]string       // directory of an administrator's slice → its group
	tooLong  error                   // a name that systemd does not take
}

// NewLayout gives the tree for these groups on this host. groups hold parents before children, as
// classify gives them; released ones must be left out. Without groups there is no tree.
// names holds the names that directories and units of ours have or had; s is nil without systemd.
func NewLayout(f *host.Facts, hostPart policy.HostPart, names Names, groups []classify.Group, s *Systemd) Layout {
	return newLayout(f, names, newForest(f, hostPart, groups), s)
}

func newLayout(f *host.Facts, names Names, t *forest, s *Systemd) Layout {
	l := Layout{
		names:  names,
		owner:  make(map[cgroup.Dir]string),
		own:    make(map[string]map[string]cgroup.Dir, len(t.nodes)),
		member: make(map[string]map[string]cgroup.Dir, len(t.nodes)),
		flat:   make(map[string]bool),

		owned: make(map[string]bool), budgets: make(map[string]bool), governed: make(map[cgroup.Dir]Governed),
		anchors:  make(map[cgroup.Dir]bool),
		fromUnit: t.fromUnit, adopts: t.adopts, slices: make(map[string]string),
	}
	l.know(f, s)
	for _, n := range t.nodes {
		l.own[n.path] = make(map[string]cgroup.Dir, len(f.Hierarchies))
		l.member[n.path] = make(map[string]cgroup.Dir, len(f.Hierarchies))
	}
	if len(t.nodes) == 1 { // the root group alone holds nothing
		return l
	}
	rows := rowsByHierarchy(f)
	for _, h := range f.Hierarchies {
		l.lay(f, h, t, t.askedOf(f, h, rows[h.ID]), len(rows[h.ID]) > 0)
		l.budgets[h.ID] = slices.ContainsFunc(rows[h.ID], func(r *knob.Row) bool {
			return isBudget(r) && slices.ContainsFunc(t.nodes, func(n *node) bool { return r.Asked(n.settings) })
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
		if owned(f, h) {
			l.owned[h.ID] = true
		}
	}
}

// lay lays one hierarchy: knobs says whether the table has rows for it.
func (l *Layout) lay(f *host.Facts, h host.Hierarchy, t *forest, asked map[string]asking, knobs bool) {
	counts := h.Version == 1 && slices.Contains(h.Controllers, "cpuacct") && !h.ReadOnly || Tracks(f, h)
	needed := counts || slices.ContainsFunc(t.nodes, func(n *node) bool { return asked[n.path].any })
	// systemd makes a unit's directories in every hierarchy in which it counts.
	if !needed && !(l.owned[h.ID] && knobs) {
		return
	}
	l.hierarchies = append(l.hierarchies, h)
	l.flat[h.ID] = !counts && !slices.ContainsFunc(t.nodes, func(n *node) bool { return asked[n.path].descends })
	switch {
	case l.owned[h.ID]:
		l.tooLong = errors.Join(l.tooLong, l.layUnits(h, t, needed))
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
func (l *Layout) layTree(hierarchy string, t *forest, asked map[string]asking, everyone bool) {
	above, below := t.spread(asked)
	for _, n := range t.nodes {
		if !l.has(n.path) || !everyone && !asked[n.path].any && !above[n.path] && !below[n.path] {
			continue
		}
		dir := l.addDir(hierarchy, n.path, "")
		switch {
		case n.path == RootGroup:
		case n.inner:
			l.member[n.path][hierarchy] = l.addDir(hierarchy, n.path, Leaf)
		default:
			l.member[n.path][hierarchy] = dir
		}
	}
}

// layFlat lays a hierarchy whose limits hold only what sits in the very directory.
func (l *Layout) layFlat(hierarchy string, t *forest, asked map[string]asking) {
	_, below := t.spread(asked)
	for _, n := range t.nodes {
		if l.has(n.path) && (asked[n.path].any || below[n.path]) {
			l.addDir(hierarchy, n.path, "")
		}
		for m := n; m != nil && m.path != RootGroup; m = m.parent {
			if asked[m.path].any {
				l.member[n.path][hierarchy] = l.own[m.path][hierarchy]
				break
			}
		}
	}
}

// addDir adds the directory of a group, or its leaf.
func (l *Layout) addDir(hierarchy, group, leaf string) cgroup.Dir {
	d := cgroup.Dir{Hierarchy: hierarchy, Path: path.Join(l.names.Dir(group), leaf)}
	l.dirs = append(l.dirs, d)
	l.owner[d] = group
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

// has says whether a group has directories: each has, but for what lies above all where there is no root group.
func (l Layout) has(group string) bool { return group != RootGroup || l.names.Root != "" }

// Holds says whether a directory is part of the layout.
func (l Layout) Holds(d cgroup.Dir) bool {
	_, ok := l.owner[d]
	return ok
}

// Group gives the group that a directory of ours belongs to, by its path alone: a leaf "db" belongs to the group above
// it. ok is false for all other directories.
func (l Layout) Group(d cgroup.Dir) (group string, ok bool) {
	if l.owned[d.Hierarchy] {
		if l.names.IsAnchor(d.Path) {
			return RootGroup, true
		}
		for slice, group := range l.slices {
			if rest, inside := below(slice, d.Path); inside && (rest == "" || !classify.IsOthers(group)) {
				return group, true
			}
		}
		return l.names.groupOfSlice(d.Path)
	}
	return l.names.groupOf(d.Path)
}

// below gives the part of p that lies below the directory top, "" for top itself.
func below(top, p string) (rest string, ok bool) {
	switch {
	case p == top:
		return "", true
	case len(p) > len(top) && p[:len(top)] == top && p[len(top)] == '/':
		return p[len(top)+1:], true
	}
	return "", false
}

// forest is the groups with our root group above them.
type forest struct {
	nodes    []*node // parents before children, the root group first
	byPath   map[string]*node
	fromUnit map[string]bool   // groups whose processes may be taken out of a unit
	adopts   map[string]bool   // groups that units are to start in
	slices   map[string]string // groups that have a slice of an administrator's
}

// node is one group.
type node struct {
	path     string
	parent   *node
	children []*node
	inner    bool
	settings policy.Settings
	owner    []policy.Owner
}

func newForest(f *host.Facts, hostPart policy.HostPart, groups []classify.Group) *forest {
	root := &node{path: RootGroup, inner: true, settings: rootSettings(f, hostPart)}
	t := &forest{
		nodes: []*node{root}, byPath: map[string]*node{RootGroup: root},
		fromUnit: map[string]bool{}, adopts: map[string]bool{}, slices: map[string]string{},
	}
	for _, g := range groups {
		parent := t.byPath[g.Parent]
		if parent == nil { // a child of a released group
			continue
		}
		n := &node{path: g.Path, parent: parent, inner: g.Inner, settings: g.Settings, owner: g.Owner}
		t.fromUnit[g.Path], t.adopts[g.Path] = g.FromUnit, g.Adopt != ""
		if g.Slice != "" {
			t.slices[g.Path] = g.Slice
		}
		parent.children = append(parent.children, n)
		t.nodes = append(t.nodes, n)
		t.byPath[g.Path] = n
	}
	return t
}

// asking says what a group asks of one hierarchy.
type asking struct{ any, descends bool }

// asked looks which groups ask for a limit that one of the rows holds. A row whose value new
// directories copy from their parent counts as one that descends: see follow.
func (t *forest) asked(rows []*knob.Row) map[string]asking {
	asked := make(map[string]asking, len(t.nodes))
	for _, n := range t.nodes {
		var sum asking
		for _, r := range rows {
			if r.Asked(n.settings) {
				sum = asking{any: true, descends: sum.descends || r.Descends || r.Inherits}
			}
		}
		asked[n.path] = sum
	}
	return asked
}

// askedOf is asked for one hierarchy. Limits on interfaces ask for cgroup2 directories, whatever controllers that has:
// sockets are told apart by them.
func (t *forest) askedOf(f *host.Facts, h host.Hierarchy, rows []*knob.Row) map[string]asking {
	asked := t.asked(rows)
	if first, ok := unified(f); !ok || first.ID != h.ID ||
		!slices.ContainsFunc(t.nodes, func(n *node) bool { return hasShare(n.settings) }) {
		return asked
	}
	for _, n := range t.nodes {
		if n.path != RootGroup { // those without a limit are counted
			asked[n.path] = asking{any: true, descends: true}
		}
	}
	return asked
}

// spread says for each group whether one above it, and whether one below it, asks.
func (t *forest) spread(asked map[string]asking) (above, below map[string]bool) {
	above, below = make(map[string]bool, len(t.nodes)), make(map[string]bool, len(t.nodes))
	for _, n := range t.nodes {
		if p := n.parent; p != nil {
			above[n.path] = above[p.path] || asked[p.path].any
		}
	}
	for _, n := range slices.Backward(t.nodes) {
		if p := n.parent; p != nil && (below[n.path] || asked[n.path].any) {
			below[p.path] = true
		}
	}
	return above, below
}
