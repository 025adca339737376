// Package cgroupfake is a model of the kernel's cgroup file systems, for tests without root. Its
// Kernel embeds a real cgroup.Tree, so that only the kernel is fake: which files a group has, what
// they hold at first, which writes are refused with which errno, what a write changes elsewhere.
//
// The rules were measured on kernel 6.18 (v1 controllers, hugetlb and the core on v2) and, for the
// v2 controllers, taken from the kernel's documentation and source. The package conformance runs
// the same assertions on the model and on a real kernel; where they disagree the model is wrong.
//
// Not modelled: threaded v2 groups, cpuset partitions, swap, uclamp, zswap, devices and net_* beyond
// holding their values, delegation (every writer is root).
package cgroupfake

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake/oplog"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
)

// Operation is one thing done to the model.
type Operation = oplog.Operation

// Kernel is the model. It is safe for concurrent use. All of cgroup.Tree's methods work on it.
type Kernel struct {
	*cgroup.Tree
	*kernel
}

// New makes a model with these hierarchies mounted and nothing but their roots in them.
func New(hierarchies []host.Hierarchy, o Options) *Kernel {
	if o.CPUs == nil {
		o.CPUs = idset.Set{0, 1}
	}
	if o.Nodes == nil {
		o.Nodes = idset.Set{0}
	}
	if o.HugePageSizes == nil {
		o.HugePageSizes = []int64{2 << 20, 1 << 30}
	}
	if o.Devices == nil {
		o.Devices = []string{"7:0", "8:0", "8:16"}
	}
	o.MemTotal = cmp.Or(o.MemTotal, 16<<30)
	o.PageSize = cmp.Or(o.PageSize, 4096)
	o.RemoveWait = cmp.Or(o.RemoveWait, 5*time.Millisecond)
	o.FreezeWait = cmp.Or(o.FreezeWait, 5*time.Millisecond)
	k := &kernel{
		options: o,
		roots:   make(map[string]*group),
		kinds:   make(map[int]map[string]*file),
		tasks:   tasks{processes: make(map[int]*process), nextPID: 100},
	}
	for _, f := range table(o) {
		if k.kinds[f.version] == nil {
			k.kinds[f.version] = make(map[string]*file)
		}
		k.kinds[f.version][f.name] = f
	}
	for _, h := range hierarchies {
		k.roots[h.ID] = k.newGroup(h, nil, "")
	}
	tree := cgroup.NewWith(hierarchies, cgroup.Options{
		Open:       func(h host.Hierarchy) (cgroup.Mount, error) { return &mount{k: k, root: k.roots[h.ID]}, nil },
		Processes:  &processTable{k},
		RemoveWait: o.RemoveWait,
		FreezeWait: o.FreezeWait,
	})
	return &Kernel{Tree: tree, kernel: k}
}

// table is every kind of file of this machine.
func table(o Options) []*file {
	return slices.Concat(coreV1(), coreV2(), cpuFiles(), cpusetFiles(), memoryFiles(), blkioFiles(),
		pidsFiles(), freezerFiles(), otherFiles(), hugetlbFiles(o.HugePageSizes))
}

// Vanish removes a directory with everything below it, as another administrator would: the processes
// inside go to the hierarchy's root first.
func (k *Kernel) Vanish(d cgroup.Dir) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(d)
	if g == nil || g.root() {
		return
	}
	var below []*group
	g.each(func(g *group) { below = append(below, g) })
	slices.Reverse(below)
	for _, g := range below {
		for _, t := range k.threadsIn(g) {
			t.groups[g.ID] = k.roots[g.ID]
		}
		k.drop(g)
	}
}

// Set puts text into a file past every rule: what a counter has counted, or what another writer left.
func (k *Kernel) Set(f cgroup.File, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(f.Dir)
	if g == nil {
		panic("cgroupfake: Set in a group that is not there: " + f.String())
	}
	if spec := k.file(g, f.Name); spec != nil && spec.read == nil {
		g.values[f.Name] = text
		return
	}
	g.counters[f.Name] = text
}

// Dump is the whole state as text: every group of every hierarchy with its processes and the value of
// each file that can be set, sorted. Two equal dumps are two equal hosts, counters apart.
func (k *Kernel) Dump() string { return k.DumpBelow("/") }

// DumpBelow is Dump for the groups at and below a path, in each hierarchy that has it.
func (k *Kernel) DumpBelow(at string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(k.roots)) {
		top := k.roots[id].find(strings.TrimPrefix(at, "/"))
		if top == nil {
			continue
		}
		top.each(func(g *group) { k.dump(&b, g) })
	}
	return b.String()
}
