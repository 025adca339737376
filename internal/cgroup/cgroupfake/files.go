package cgroupfake

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/host"
)

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
	read func(*Kernel, *group) string
	// write takes the text as the kernel's handler gets it; nil is EINVAL, what root gets on a read-only file.
	write func(*Kernel, *group, string) error
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

// Kernel versions that brought a file to v2, v1 or both.
var (
	since413 = host.Version{Major: 4, Minor: 13}
	since419 = host.Version{Major: 4, Minor: 19}
	since420 = host.Version{Major: 4, Minor: 20}
	since52  = host.Version{Major: 5, Minor: 2}
	since513 = host.Version{Major: 5, Minor: 13}
	since514 = host.Version{Major: 5, Minor: 14}
	since515 = host.Version{Major: 5, Minor: 15}
	since519 = host.Version{Major: 5, Minor: 19}
	since61  = host.Version{Major: 6, Minor: 1}
	since612 = host.Version{Major: 6, Minor: 12}
)

// older says whether the modelled kernel is older than v. The zero version is the newest.
func (k *Kernel) older(v host.Version) bool {
	at := k.options.Kernel
	if at.Major == 0 {
		return false
	}
	return at.Major < v.Major || at.Major == v.Major && at.Minor < v.Minor
}

// table is every kind of file of this machine.
func (k *Kernel) table() []*file {
	return slices.Concat(coreV1(), coreV2(), cpuFiles(), cpusetFiles(), memoryFiles(), blkioFiles(),
		pidsFiles(), freezerFiles(), otherFiles(), hugetlbFiles(k.options.HugePageSizes))
}

// file gives the file of that name in g; nil when it has none.
func (k *Kernel) file(g *group, name string) *file {
	f := k.kinds[g.Version][name]
	if f == nil || !k.has(g, f) {
		return nil
	}
	return f
}

// files gives all files of g by name.
func (k *Kernel) files(g *group) map[string]*file {
	found := make(map[string]*file)
	for name, f := range k.kinds[g.Version] {
		if k.has(g, f) {
			found[name] = f
		}
	}
	return found
}

func (k *Kernel) has(g *group, f *file) bool {
	switch {
	case f.place == notRoot && g.root(), f.place == rootOnly && !g.root():
		return false
	case k.older(f.since), slices.Contains(k.options.Without, f.name):
		return false
	}
	return f.controller == "" || slices.Contains(g.available(), f.controller)
}

// value gives what reading f in g shows, without the last line break.
func (k *Kernel) value(g *group, f *file) string {
	if text, set := g.counters[f.name]; set {
		return text
	}
	if f.read != nil {
		return f.read(k, g)
	}
	return g.value(f.name, f.initial)
}

// value gives what g keeps under a name.
func (g *group) value(name, initial string) string {
	if text, set := g.values[name]; set {
		return text
	}
	return initial
}

// number gives a kept value as a number; "max" and everything else that is none gives missing.
func (g *group) number(name string, missing int64) int64 {
	n, err := parseSigned(g.values[name])
	if err != nil {
		return missing
	}
	return n
}

// flag is a file that takes 0 and 1; what else the kernel answers to is refused.
func flag(name string, version int, controller, initial string, refused syscall.Errno) *file {
	return &file{name: name, version: version, controller: controller, initial: initial,
		write: func(_ *Kernel, g *group, text string) error {
			n, err := parseSigned(text)
			if err != nil {
				return err
			}
			if n != 0 && n != 1 {
				return refused
			}
			g.values[name] = fmt.Sprint(n)
			return nil
		}}
}

// boolean is a file that takes any number and keeps whether it is 0.
func boolean(name string, controller, initial string) *file {
	return &file{name: name, version: 1, controller: controller, initial: initial,
		write: func(_ *Kernel, g *group, text string) error {
			n, err := parseUnsigned(text)
			if err != nil {
				return err
			}
			g.values[name] = "0"
			if n != 0 {
				g.values[name] = "1"
			}
			return nil
		}}
}

// counter is a read-only file that shows the same text until Set says otherwise.
func counter(name string, version int, controller, initial string) *file {
	return &file{name: name, version: version, controller: controller,
		read: func(*Kernel, *group) string { return initial }}
}

// count is a read-only file that is computed.
func count(name string, version int, controller string, n func(*Kernel, *group) int64) *file {
	return &file{name: name, version: version, controller: controller,
		read: func(k *Kernel, g *group) string { return fmt.Sprint(n(k, g)) }}
}

func (f *file) at(p place) *file { f.place = p; return f }

func (f *file) from(v host.Version) *file { f.since = v; return f }

// coreV1 are the files of every v1 directory.
func coreV1() []*file {
	procs := func(name string, whole bool) *file {
		return &file{name: name, version: 1, action: true,
			read: func(k *Kernel, g *group) string {
				if whole {
					return joinInts(k.pidsIn(g))
				}
				return joinInts(k.tidsIn(g))
			},
			write: func(k *Kernel, g *group, text string) error { return k.attach(g, text, whole) }}
	}
	return []*file{
		procs("cgroup.procs", true),
		procs("tasks", false),
		boolean("cgroup.clone_children", "", "0"),
		boolean("notify_on_release", "", "0"),
		counter("cgroup.sane_behavior", 1, "", "0").at(rootOnly),
		counter("release_agent", 1, "", "").at(rootOnly),
	}
}

// coreV2 are the files of every cgroup2 directory, with and without controllers.
func coreV2() []*file {
	limit := func(name string) *file {
		return &file{name: name, version: 2, initial: "max",
			write: func(_ *Kernel, g *group, text string) error {
				return g.setLimit(name, text, 1<<31-1)
			}}
	}
	some, full := "some avg10=0.00 avg60=0.00 avg300=0.00 total=0", "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"
	stall := some + full
	return []*file{
		{name: "cgroup.procs", version: 2, action: true,
			read:  func(k *Kernel, g *group) string { return joinInts(k.pidsIn(g)) },
			write: func(k *Kernel, g *group, text string) error { return k.attach(g, text, true) }},
		{name: "cgroup.threads", version: 2, action: true,
			read: func(k *Kernel, g *group) string { return joinInts(k.tidsIn(g)) },
			write: func(*Kernel, *group, string) error {
				return syscall.EOPNOTSUPP // threads move inside threaded groups only
			}},
		{name: "cgroup.controllers", version: 2,
			read: func(_ *Kernel, g *group) string { return joinControllers(g.available()) }},
		{name: "cgroup.subtree_control", version: 2,
			read:  func(_ *Kernel, g *group) string { return joinControllers(g.enabled()) },
			write: (*Kernel).writeSubtree},
		{name: "cgroup.events", version: 2, place: notRoot, read: events},
		flag("cgroup.freeze", 2, "", "0", syscall.ERANGE).at(notRoot).from(since52),
		{name: "cgroup.kill", version: 2, place: notRoot, since: since514, writeOnly: true, write: (*Kernel).killAll},
		limit("cgroup.max.depth"), limit("cgroup.max.descendants"),
		count("cgroup.stat", 2, "", nil).descendants(),
		counter("cgroup.type", 2, "", "domain").at(notRoot),
		flag("cgroup.pressure", 2, "", "1", syscall.ERANGE).at(notRoot).from(since61),
		{name: "cpu.stat", version: 2, read: cpuStatV2},
		{name: "cpu.pressure", version: 2, since: since420,
			read: func(k *Kernel, _ *group) string {
				if k.older(since513) {
					return some
				}
				return stall
			}},
		counter("memory.pressure", 2, "", stall).from(since420),
		counter("io.pressure", 2, "", stall).from(since420),
	}
}

// descendants makes f the cgroup.stat file.
func (f *file) descendants() *file {
	f.read = func(_ *Kernel, g *group) string {
		n := -1
		g.each(func(*group) { n++ })
		return fmt.Sprintf("nr_descendants %d\nnr_dying_descendants 0", n)
	}
	return f
}

// setLimit keeps "max" or a number from 0 to most.
func (g *group) setLimit(name, text string, most int64) error {
	text = strings.TrimSpace(text)
	if text == "max" {
		g.values[name] = text
		return nil
	}
	n, err := parseSigned(text)
	switch {
	case err != nil:
		return err
	case n < 0 || n > most:
		return syscall.ERANGE
	}
	g.values[name] = fmt.Sprint(n)
	return nil
}

// events is cgroup.events: whether processes are inside or below, and whether all of them are stopped.
func events(k *Kernel, g *group) string {
	var populated, frozen int
	if k.populated(g) {
		populated = 1
	}
	if k.frozen(g) {
		frozen = 1
	}
	return fmt.Sprintf("populated %d\nfrozen %d", populated, frozen)
}

// threadedControllers can be enabled beside processes; the others make the group a pure inner node
// (Documentation/admin-guide/cgroup-v2.rst, "No Internal Process Constraint").
var threadedControllers = []string{"cpu", "cpuset", "perf_event", "pids"}

// canBeThreadRoot is the kernel's cgroup_can_be_thread_root.
func (k *Kernel) canBeThreadRoot(g *group) bool {
	if g.root() {
		return true
	}
	for _, child := range g.children {
		if k.populated(child) {
			return false
		}
	}
	return !slices.ContainsFunc(g.enabled(), domainController)
}

func domainController(name string) bool { return !slices.Contains(threadedControllers, name) }

// validDomain is cgroup_is_valid_domain: no ancestor below the root holds processes beside threaded
// controllers that it hands down.
func (k *Kernel) validDomain(g *group) bool {
	if g.root() {
		return true
	}
	for up := g.parent; up != nil && !up.root(); up = up.parent {
		if len(k.threadsIn(up)) > 0 && len(up.enabled()) > 0 {
			return false
		}
	}
	return true
}

// writeSubtree is cgroup.subtree_control: "+name -name …", all or nothing.
func (k *Kernel) writeSubtree(g *group, text string) error {
	var enable, disable []string
	for word := range strings.FieldsSeq(text) {
		name := word[1:]
		if name == "io" {
			name = "blkio"
		}
		if !slices.Contains(knownControllers, name) || word == "+blkio" || word == "-blkio" {
			return syscall.EINVAL
		}
		switch word[0] {
		case '+':
			enable = append(enable, name)
		case '-':
			disable = append(disable, name)
		default:
			return syscall.EINVAL
		}
	}
	enabled := g.enabled()
	enable = slices.DeleteFunc(enable, func(name string) bool { return slices.Contains(enabled, name) })
	disable = slices.DeleteFunc(disable, func(name string) bool { return !slices.Contains(enabled, name) })
	for _, name := range enable {
		if !slices.Contains(g.available(), name) {
			return syscall.ENOENT
		}
	}
	for _, name := range disable {
		for _, child := range g.children {
			if slices.Contains(child.enabled(), name) {
				return syscall.EBUSY
			}
		}
	}
	if err := k.mayEnable(g, enable); err != nil {
		return err
	}
	for _, child := range g.children {
		k.forget(child, disable)
	}
	enabled = slices.DeleteFunc(append(enabled, enable...),
		func(name string) bool { return slices.Contains(disable, name) })
	slices.Sort(enabled)
	g.values["cgroup.subtree_control"] = strings.Join(enabled, " ")
	return nil
}

// mayEnable is cgroup_vet_subtree_control_enable.
func (k *Kernel) mayEnable(g *group, enable []string) error {
	switch {
	case len(enable) == 0 || g.root():
		return nil
	case !k.validDomain(g):
		return syscall.EOPNOTSUPP
	case !slices.ContainsFunc(enable, domainController) && k.canBeThreadRoot(g):
		return nil
	case len(k.threadsIn(g)) > 0:
		return syscall.EBUSY
	}
	return nil
}

// forget drops what a group kept for controllers that it loses: enabling them again starts afresh.
func (k *Kernel) forget(g *group, controllers []string) {
	for name, f := range k.kinds[2] {
		if slices.Contains(controllers, f.controller) {
			delete(g.values, name)
			delete(g.lines, name)
			delete(g.counters, name)
		}
	}
	if slices.Contains(controllers, "memory") {
		g.parent.memory.add(g.memory)
		g.memory = memory{}
	}
}

var knownControllers = []string{"blkio", "cpu", "cpuset", "hugetlb", "memory", "misc", "perf_event", "pids", "rdma"}

// joinControllers prints controllers as the kernel does, in the order of its own list.
func joinControllers(names []string) string {
	var words []string
	for _, name := range []string{"cpuset", "cpu", "blkio", "memory", "hugetlb", "pids", "rdma", "misc"} {
		if slices.Contains(names, name) {
			if name == "blkio" {
				name = "io"
			}
			words = append(words, name)
		}
	}
	return strings.Join(words, " ")
}

func joinInts(numbers []int) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = fmt.Sprint(n)
	}
	return strings.Join(words, "\n")
}

// otherFiles belong to controllers that bulkhead does not set; they keep what is written.
func otherFiles() []*file {
	keep := func(name, controller, initial string) *file {
		return &file{name: name, version: 1, controller: controller, initial: initial,
			write: func(_ *Kernel, g *group, text string) error {
				g.values[name] = strings.TrimSpace(text)
				return nil
			}}
	}
	files := []*file{
		counter("devices.list", 1, "devices", "a *:* rwm"),
		keep("net_cls.classid", "net_cls", "0"),
		keep("net_prio.ifpriomap", "net_prio", ""),
		counter("net_prio.prioidx", 1, "net_prio", "1"),
		counter("cpuacct.stat", 1, "cpuacct", "user 0\nsystem 0"),
		counter("cpuacct.usage", 1, "cpuacct", "0"),
		counter("cpuacct.usage_percpu", 1, "cpuacct", "0 0"),
	}
	for _, name := range []string{"devices.allow", "devices.deny"} {
		files = append(files, &file{name: name, version: 1, controller: "devices", writeOnly: true,
			write: func(*Kernel, *group, string) error { return nil }})
	}
	return files
}
