package plan

import (
	"path"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

// DefaultRoot names our root group when the policy does not.
const DefaultRoot = "bulkhead"

// Leaf is the directory of an inner group's own processes. The name is reserved: no group has it.
const Leaf = "db"

// RootGroup is the group path of our root group, which holds every other group and no process.
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
	root        string // name of the root group
	hierarchies []host.Hierarchy
	dirs        []cgroup.Dir
	owner       map[cgroup.Dir]string
	own         map[string]map[string]cgroup.Dir // group → hierarchy → directory that carries its limits
	member      map[string]map[string]cgroup.Dir // group → hierarchy → directory of its processes
	flat        map[string]bool                  // hierarchy ID
}

// NewLayout gives the tree for these groups on this host. groups hold parents before children, as
// classify gives them; released ones must be left out. Without groups there is no tree.
func NewLayout(f *host.Facts, hostPart policy.HostPart, groups []classify.Group) Layout {
	return newLayout(f, hostPart.Root, newForest(f, hostPart, groups))
}

func newLayout(f *host.Facts, root string, t *forest) Layout {
	if root == "" {
		root = DefaultRoot
	}
	l := Layout{
		root:   root,
		owner:  make(map[cgroup.Dir]string),
		own:    make(map[string]map[string]cgroup.Dir, len(t.nodes)),
		member: make(map[string]map[string]cgroup.Dir, len(t.nodes)),
		flat:   make(map[string]bool),
	}
	for _, n := range t.nodes {
		l.own[n.path] = make(map[string]cgroup.Dir, len(f.Hierarchies))
		l.member[n.path] = make(map[string]cgroup.Dir, len(f.Hierarchies))
	}
	if len(t.nodes) == 1 { // the root group alone holds nothing
		return l
	}
	rows := rowsByHierarchy(f)
	for _, h := range f.Hierarchies {
		asked := t.asked(rows[h.ID])
		counts := h.Version == 1 && slices.Contains(h.Controllers, "cpuacct") && !h.ReadOnly
		if !counts && !slices.ContainsFunc(t.nodes, func(n *node) bool { return asked[n.path].any }) {
			continue
		}
		l.hierarchies = append(l.hierarchies, h)
		if !counts && !slices.ContainsFunc(t.nodes, func(n *node) bool { return asked[n.path].descends }) {
			l.flat[h.ID] = true
			l.layFlat(h.ID, t, asked)
		} else {
			l.layTree(h.ID, t, asked, counts)
		}
	}
	return l
}

// layTree lays a hierarchy whose limits descend.
func (l *Layout) layTree(hierarchy string, t *forest, asked map[string]asking, everyone bool) {
	above, below := t.spread(asked)
	for _, n := range t.nodes {
		if !everyone && !asked[n.path].any && !above[n.path] && !below[n.path] {
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
		if asked[n.path].any || below[n.path] {
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
	d := cgroup.Dir{Hierarchy: hierarchy, Path: path.Join("/", l.root, group, leaf)}
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

// Root is the directory of our root group in a hierarchy, whether the layout needs it there or not.
func (l Layout) Root(hierarchy string) cgroup.Dir {
	return cgroup.Dir{Hierarchy: hierarchy, Path: "/" + l.root}
}

// Holds says whether a directory is part of the layout.
func (l Layout) Holds(d cgroup.Dir) bool {
	_, ok := l.owner[d]
	return ok
}

// Group gives the group that a directory below our root belongs to, by its path alone: a leaf "db"
// belongs to the group above it. ok is false outside our tree.
func (l Layout) Group(d cgroup.Dir) (group string, ok bool) {
	rest, ok := below("/"+l.root, d.Path)
	if !ok {
		return "", false
	}
	if path.Base(rest) == Leaf {
		rest = path.Dir(rest)
	}
	if rest == "." {
		rest = RootGroup
	}
	return rest, true
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
	nodes  []*node // parents before children, the root group first
	byPath map[string]*node
}

// node is one group.
type node struct {
	path     string
	parent   *node
	children []*node
	inner    bool
	settings policy.Settings
}

func newForest(f *host.Facts, hostPart policy.HostPart, groups []classify.Group) *forest {
	root := &node{path: RootGroup, inner: true, settings: rootSettings(f, hostPart)}
	t := &forest{nodes: []*node{root}, byPath: map[string]*node{RootGroup: root}}
	for _, g := range groups {
		parent := t.byPath[g.Parent]
		if parent == nil { // a child of a released group
			continue
		}
		n := &node{path: g.Path, parent: parent, inner: g.Inner, settings: g.Settings}
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
			if len(r.Instances(n.settings)) > 0 {
				sum = asking{any: true, descends: sum.descends || r.Descends || r.Inherits}
			}
		}
		asked[n.path] = sum
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
