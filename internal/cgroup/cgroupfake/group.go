package cgroupfake

import (
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake/kstrto"
	"bulkhead/internal/host"
)

// group is one directory.
type group struct {
	host.Hierarchy
	name     string
	parent   *group // nil for the root of a hierarchy
	children map[string]*group
	values   map[string]string       // of files that hold one
	lines    map[string][]deviceLine // of files that hold a line per device, newest device first
	counters map[string]string       // what a test put there with Set
	memory   memory
	oomKills int64
	refused  int64 // forks at pids.max
	gone     bool
	owned    map[string]cgroup.Ownership // of files whose owner somebody has changed
}

// deviceLine is what one device has in a per-device file; nil values print no line.
type deviceLine struct {
	device string
	values map[string]string // "" is the key of files with a single number
}

func (g *group) root() bool { return g.parent == nil }

// path starts with "/".
func (g *group) path() string {
	if g.parent == nil {
		return "/"
	}
	return path.Join(g.parent.path(), g.name)
}

// dir is the group's name in the cgroup package.
func (g *group) dir() cgroup.Dir { return cgroup.Dir{Hierarchy: g.ID, Path: g.path()} }

// each calls do for g and every group below it, parents first, sorted.
func (g *group) each(do func(*group)) {
	do(g)
	for _, name := range slices.Sorted(maps.Keys(g.children)) {
		g.children[name].each(do)
	}
}

// ancestors gives g, its parent, and so on up to the root.
func (g *group) ancestors() []*group {
	var up []*group
	for ; g != nil; g = g.parent {
		up = append(up, g)
	}
	return up
}

// find gives the group at a path relative to g; nil when there is none.
func (g *group) find(rel string) *group {
	for name := range strings.SplitSeq(rel, "/") {
		if name == "." || name == "" {
			continue
		}
		if g = g.children[name]; g == nil {
			return nil
		}
	}
	return g
}

// available gives the controllers whose files the group has.
func (g *group) available() []string {
	if g.Version == 1 || g.root() {
		return g.Controllers
	}
	return g.parent.enabled()
}

// enabled gives what a v2 group hands to its children.
func (g *group) enabled() []string { return strings.Fields(g.values["cgroup.subtree_control"]) }

// value gives what g keeps under a name.
func (g *group) value(name, initial string) string {
	if text, set := g.values[name]; set {
		return text
	}
	return initial
}

// number gives a kept value as a number; "max" and everything else that is none gives missing.
func (g *group) number(name string, missing int64) int64 {
	n, err := kstrto.Signed(g.values[name])
	if err != nil {
		return missing
	}
	return n
}

// memory is what is charged to one group itself, in bytes.
type memory struct{ anonymous, file, shared, peak, failures int64 }

func (m memory) total() int64 { return m.anonymous + m.file + m.shared }

func (m *memory) add(o memory) {
	m.anonymous += o.anonymous
	m.file += o.file
	m.shared += o.shared
}

// charged is what the group and everything below it hold.
func charged(g *group) memory {
	var m memory
	g.each(func(g *group) { m.add(g.memory) })
	return m
}
