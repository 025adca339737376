package cgroupfake

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake/kstrto"
	"bulkhead/internal/cgroup/cgroupfake/oplog"
	"bulkhead/internal/host"
)

// kernel is what the modelled kernel holds. Who calls its methods holds mu, but for those of the log, which has a
// lock of its own.
type kernel struct {
	oplog.Log

	mu      sync.Mutex
	options Options
	roots   map[string]*group        // by hierarchy ID
	kinds   map[int]map[string]*file // by version and name
	tasks
}

// file is one kind of file: where it is, what it holds at first, what reading and writing it do.
type file struct {
	name       string
	version    int
	controller string // v1 name; "" for the files of the core
	place      place
	since      host.Version
	initial    string
	// inherit: a new group starts with its parent's value.
	inherit bool
	// writeOnly: reading is EINVAL.
	writeOnly bool
	// action: writing does something once; there is no state to dump.
	action bool
	// read gives the text; nil gives the value kept in the group.
	read func(*kernel, *group) string
	// write takes the text as the kernel's handler gets it; nil is EINVAL, what root gets on a read-only file.
	write func(*kernel, *group, string) error
}

// place says which groups have a file.
type place int

const (
	everywhere place = iota
	notRoot
	rootOnly
)

// holds says whether the file is part of the state that Dump shows.
func (f *file) holds() bool { return f.write != nil && !f.action && !f.writeOnly }

// file gives the file of that name in g; nil when it has none.
func (k *kernel) file(g *group, name string) *file {
	f := k.kinds[g.Version][name]
	if f == nil || !k.has(g, f) {
		return nil
	}
	return f
}

// files gives all files of g by name.
func (k *kernel) files(g *group) map[string]*file {
	found := make(map[string]*file)
	for name, f := range k.kinds[g.Version] {
		if k.has(g, f) {
			found[name] = f
		}
	}
	return found
}

func (k *kernel) has(g *group, f *file) bool {
	switch {
	case f.place == notRoot && g.root(), f.place == rootOnly && !g.root():
		return false
	case k.options.older(f.since), slices.Contains(k.options.Without, f.name):
		return false
	}
	return f.controller == "" || slices.Contains(g.available(), f.controller)
}

// value gives what reading f in g shows, without the last line break.
func (k *kernel) value(g *group, f *file) string {
	if text, set := g.counters[f.name]; set {
		return text
	}
	if f.read != nil {
		return f.read(k, g)
	}
	return g.value(f.name, f.initial)
}

// at gives the group of d; nil when there is none.
func (k *kernel) at(d cgroup.Dir) *group {
	root := k.roots[d.Hierarchy]
	if root == nil {
		return nil
	}
	return root.find(strings.TrimPrefix(d.Path, "/"))
}

func (k *kernel) newGroup(h host.Hierarchy, parent *group, name string) *group {
	g := &group{
		Hierarchy: h, name: name, parent: parent,
		children: make(map[string]*group),
		values:   make(map[string]string),
		lines:    make(map[string][]deviceLine),
		counters: make(map[string]string),
	}
	if parent == nil {
		k.fillRoot(g)
		return g
	}
	parent.children[name] = g
	for name, f := range k.files(g) {
		if f.inherit {
			g.values[name] = parent.value(name, f.initial)
		}
	}
	if parent.values["cgroup.clone_children"] == "1" {
		g.values["cgroup.clone_children"] = "1"
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			if f := k.file(g, name); f != nil {
				g.values[name] = parent.values[name]
			}
		}
	}
	return g
}

// fillRoot gives the root of a hierarchy what differs from the files' first values.
func (k *kernel) fillRoot(g *group) {
	if g.Version == 1 && slices.Contains(g.Controllers, "cpuset") {
		g.values["cpuset.cpus"] = k.options.CPUs.String()
		g.values["cpuset.mems"] = k.options.Nodes.String()
	}
	if slices.Contains(g.Controllers, "cpu") {
		g.values["cpu.rt_runtime_us"] = "950000"
	}
}

// full says whether cgroup.max.descendants or cgroup.max.depth allows no further child of g.
func (k *kernel) full(g *group) bool {
	for depth, up := range g.ancestors() {
		below := -1 // not counting itself
		up.each(func(*group) { below++ })
		if reached(up.values["cgroup.max.descendants"], below) || reached(up.values["cgroup.max.depth"], depth) {
			return true
		}
	}
	return false
}

func reached(limit string, n int) bool {
	most, err := kstrto.Signed(limit)
	return err == nil && int64(n) >= most
}

// drop unlinks an empty group. What is charged to it stays charged to its parent.
func (k *kernel) drop(g *group) {
	delete(g.parent.children, g.name)
	g.parent.memory.add(g.memory)
	for _, p := range k.processes {
		for i := range p.charges {
			if p.charges[i].group == g {
				p.charges[i].group = g.parent
			}
		}
	}
	g.gone = true
}

func (k *kernel) dump(b *strings.Builder, g *group) {
	fmt.Fprintf(b, "[%s]\n", g.dir())
	if pids := k.pidsIn(g); len(pids) > 0 {
		fmt.Fprintf(b, "processes = %s\n", strings.Trim(fmt.Sprint(pids), "[]"))
	}
	files := k.files(g)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if f := files[name]; f.holds() {
			fmt.Fprintf(b, "%s = %s\n", name, strings.ReplaceAll(k.value(g, f), "\n", " | "))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.owned)) {
		fmt.Fprintf(b, "%s is owned by %s\n", name, g.owned[name])
	}
}
