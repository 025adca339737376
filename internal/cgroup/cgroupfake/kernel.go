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
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
)

// Options describe the modelled machine. The zero value is a two-CPU machine with one NUMA node,
// 4 KiB pages, huge pages of 2 MiB and 1 GiB, the disks 8:0 and 8:16, a loop device 7:0 and the newest kernel.
type Options struct {
	CPUs, Nodes   idset.Set
	MemTotal      int64 // bytes; 0 is 16 GiB
	PageSize      int64 // bytes
	HugePageSizes []int64
	Devices       []string // numbers of whole disks; any other is ENODEV
	// Kernel leaves out files that are younger than it; the zero version is the newest.
	Kernel host.Version
	// Without names files that this kernel was built or booted without: "memory.memsw.limit_in_bytes".
	Without []string
	// RemoveWait and FreezeWait are those of cgroup.Options; 0 is a few milliseconds here.
	RemoveWait, FreezeWait time.Duration
}

// Kernel is the model. It is safe for concurrent use. All of cgroup.Tree's methods work on it.
type Kernel struct {
	*cgroup.Tree

	mu        sync.Mutex
	options   Options
	roots     map[string]*group // by hierarchy ID
	order     []string          // hierarchy IDs as given
	processes map[int]*process
	nextPID   int
	clock     uint64 // start times
	changes   []Operation
	intercept func(Operation) error
	kinds     map[int]map[string]*file // by version and name
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
	k := &Kernel{
		options:   o,
		roots:     make(map[string]*group),
		processes: make(map[int]*process),
		kinds:     make(map[int]map[string]*file),
		nextPID:   100,
	}
	for _, f := range k.table() {
		if k.kinds[f.version] == nil {
			k.kinds[f.version] = make(map[string]*file)
		}
		k.kinds[f.version][f.name] = f
	}
	for _, h := range hierarchies {
		k.roots[h.ID] = k.newGroup(h, nil, "")
		k.order = append(k.order, h.ID)
	}
	k.Tree = cgroup.NewWith(hierarchies, cgroup.Options{
		Open:       func(h host.Hierarchy) (cgroup.Mount, error) { return &mount{k: k, root: k.roots[h.ID]}, nil },
		Processes:  &processTable{k},
		RemoveWait: o.RemoveWait,
		FreezeWait: o.FreezeWait,
	})
	return k
}

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

func (k *Kernel) newGroup(h host.Hierarchy, parent *group, name string) *group {
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
func (k *Kernel) fillRoot(g *group) {
	if g.Version == 1 && slices.Contains(g.Controllers, "cpuset") {
		g.values["cpuset.cpus"] = k.options.CPUs.String()
		g.values["cpuset.mems"] = k.options.Nodes.String()
	}
	if slices.Contains(g.Controllers, "cpu") {
		g.values["cpu.rt_runtime_us"] = "950000"
	}
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

// at gives the group of d; nil when there is none.
func (k *Kernel) at(d cgroup.Dir) *group {
	root := k.roots[d.Hierarchy]
	if root == nil {
		return nil
	}
	return root.find(strings.TrimPrefix(d.Path, "/"))
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

// mount implements cgroup.Mount.
type mount struct {
	k    *Kernel
	root *group
}

func (m *mount) Open(dir string) (cgroup.Directory, error) {
	if err := m.k.before(Operation{Op: "open", File: cgroup.File{Dir: m.dir(dir)}}); err != nil {
		return nil, err
	}
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	g := m.root.find(dir)
	if g == nil {
		return nil, syscall.ENOENT
	}
	return &directory{k: m.k, g: g}, nil
}

// Option says whether a mount option is set. The model takes cgroup2's favordynmods, which changes nothing else of it.
func (m *mount) Option(name string) (bool, error) {
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	return slices.Contains(m.root.Options, name), nil
}

// SetOption sets or clears a mount option.
func (m *mount) SetOption(name string, on bool) error {
	if err := m.k.before(Operation{Op: "write", File: m.dir("").File(name)}); err != nil {
		return err
	}
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	m.root.Options = slices.DeleteFunc(slices.Clone(m.root.Options), func(o string) bool { return o == name })
	if on {
		m.root.Options = append(m.root.Options, name)
	}
	return nil
}

func (m *mount) dir(rel string) cgroup.Dir {
	return cgroup.Dir{Hierarchy: m.root.ID, Path: path.Join("/", rel)}
}

func (m *mount) Mkdir(dir string) error {
	if err := m.k.before(Operation{Op: "mkdir", File: cgroup.File{Dir: m.dir(dir)}}); err != nil {
		return err
	}
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	parent, name := m.root.find(path.Dir(dir)), path.Base(dir)
	switch {
	case parent == nil:
		return syscall.ENOENT
	case parent.children[name] != nil || m.k.file(parent, name) != nil:
		return syscall.EEXIST
	case strings.Contains(name, "\n"):
		return syscall.EINVAL
	case m.k.full(parent):
		return syscall.EAGAIN
	}
	m.k.newGroup(parent.Hierarchy, parent, name)
	return nil
}

// full says whether cgroup.max.descendants or cgroup.max.depth allows no further child of g.
func (k *Kernel) full(g *group) bool {
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
	most, err := parseSigned(limit)
	return err == nil && int64(n) >= most
}

func (m *mount) Rmdir(dir string) error {
	if err := m.k.before(Operation{Op: "rmdir", File: cgroup.File{Dir: m.dir(dir)}}); err != nil {
		return err
	}
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	g := m.root.find(dir)
	switch {
	case g == nil:
		return syscall.ENOENT
	case g.root(), len(g.children) > 0, len(m.k.threadsIn(g)) > 0:
		return syscall.EBUSY
	}
	m.k.drop(g)
	return nil
}

// drop unlinks an empty group. What is charged to it stays charged to its parent.
func (k *Kernel) drop(g *group) {
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

func (m *mount) Close() error { return nil }

// directory implements cgroup.Directory.
type directory struct {
	k *Kernel
	g *group
}

func (d *directory) file(name string) cgroup.File { return d.g.dir().File(name) }

func (d *directory) ReadFile(name string) ([]byte, error) {
	if err := d.k.before(Operation{Op: "read", File: d.file(name)}); err != nil {
		return nil, err
	}
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	f := d.k.file(d.g, name)
	switch {
	case d.g.gone || f == nil:
		return nil, syscall.ENOENT
	case f.writeOnly:
		return nil, syscall.EINVAL
	}
	return []byte(d.k.value(d.g, f) + "\n"), nil
}

func (d *directory) WriteFile(name string, data []byte) error {
	if err := d.k.before(Operation{Op: "write", File: d.file(name), Value: string(data)}); err != nil {
		return err
	}
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	f := d.k.file(d.g, name)
	switch {
	case d.g.gone || f == nil:
		return syscall.ENOENT
	case f.write == nil:
		return syscall.EINVAL
	case len(data) == 0:
		return nil // cgroup_file_write: nothing to do
	}
	return f.write(d.k, d.g, string(data))
}

func (d *directory) Names() (dirs, files []string, err error) {
	if err := d.k.before(Operation{Op: "list", File: cgroup.File{Dir: d.g.dir()}}); err != nil {
		return nil, nil, err
	}
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	if d.g.gone {
		return nil, nil, syscall.ENOENT
	}
	return slices.Collect(maps.Keys(d.g.children)), slices.Collect(maps.Keys(d.k.files(d.g))), nil
}

func (d *directory) Close() error { return nil }

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

func (k *Kernel) dump(b *strings.Builder, g *group) {
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
