package cgroupfake

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/cgroup/cgroupfake/kstrto"
)

// coreV1 are the files of every v1 directory.
func coreV1() []*file {
	procs := func(name string, whole bool) *file {
		return &file{name: name, version: 1, action: true,
			read: func(k *kernel, g *group) string {
				if whole {
					return joinInts(k.pidsIn(g))
				}
				return joinInts(k.tidsIn(g))
			},
			write: func(k *kernel, g *group, text string) error { return k.attach(g, text, whole) }}
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
			write: func(_ *kernel, g *group, text string) error {
				return g.setLimit(name, text, 1<<31-1)
			}}
	}
	some, full := "some avg10=0.00 avg60=0.00 avg300=0.00 total=0", "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"
	stall := some + full
	return []*file{
		{name: "cgroup.procs", version: 2, action: true,
			read:  func(k *kernel, g *group) string { return joinInts(k.pidsIn(g)) },
			write: func(k *kernel, g *group, text string) error { return k.attach(g, text, true) }},
		{name: "cgroup.threads", version: 2, action: true,
			read: func(k *kernel, g *group) string { return joinInts(k.tidsIn(g)) },
			write: func(*kernel, *group, string) error {
				return syscall.EOPNOTSUPP // threads move inside threaded groups only
			}},
		{name: "cgroup.controllers", version: 2,
			read: func(_ *kernel, g *group) string { return joinControllers(g.available()) }},
		{name: "cgroup.subtree_control", version: 2,
			read:  func(_ *kernel, g *group) string { return joinControllers(g.enabled()) },
			write: (*kernel).writeSubtree},
		{name: "cgroup.events", version: 2, place: notRoot, read: events},
		flag("cgroup.freeze", 2, "", "0", syscall.ERANGE).at(notRoot).from(since52),
		{name: "cgroup.kill", version: 2, place: notRoot, since: since514, writeOnly: true, write: (*kernel).killAll},
		limit("cgroup.max.depth"), limit("cgroup.max.descendants"),
		{name: "cgroup.stat", version: 2, read: descendants},
		counter("cgroup.type", 2, "", "domain").at(notRoot),
		flag("cgroup.pressure", 2, "", "1", syscall.ERANGE).at(notRoot).from(since61),
		{name: "cpu.stat", version: 2, read: cpuStatV2},
		{name: "cpu.pressure", version: 2, since: since420,
			read: func(k *kernel, _ *group) string {
				if k.options.older(since513) {
					return some
				}
				return stall
			}},
		counter("memory.pressure", 2, "", stall).from(since420),
		counter("io.pressure", 2, "", stall).from(since420),
	}
}

// descendants is cgroup.stat.
func descendants(_ *kernel, g *group) string {
	n := -1
	g.each(func(*group) { n++ })
	return fmt.Sprintf("nr_descendants %d\nnr_dying_descendants 0", n)
}

// events is cgroup.events: whether processes are inside or below, and whether all of them are stopped.
func events(k *kernel, g *group) string {
	var populated, frozen int
	if k.populated(g) {
		populated = 1
	}
	if k.frozen(g) {
		frozen = 1
	}
	return fmt.Sprintf("populated %d\nfrozen %d", populated, frozen)
}

// attach is a write to cgroup.procs, or of v1's tasks when whole is false.
func (k *kernel) attach(g *group, text string, whole bool) error {
	pid, err := kstrto.Signed(strings.TrimSpace(text))
	if err != nil || pid < 0 {
		return syscall.EINVAL
	}
	t := k.thread(int(pid))
	switch {
	case t == nil:
		return syscall.ESRCH
	case t.process.kernel:
		return syscall.EINVAL
	}
	moving := []*thread{t}
	if whole {
		moving = t.process.threads
	}
	if err := k.mayAttach(g, moving); err != nil {
		return err
	}
	for _, t := range moving {
		t.groups[g.ID] = g
	}
	return nil
}

func (k *kernel) mayAttach(g *group, moving []*thread) error {
	if g.Version == 2 {
		switch { // cgroup_migrate_vet_dst
		case !k.validDomain(g):
			return syscall.EOPNOTSUPP
		case !k.canBeThreadRoot(g) && len(g.enabled()) > 0:
			return syscall.EBUSY
		}
		return nil
	}
	if g.Has("cpuset") && (len(k.effective(g, "cpuset.cpus")) == 0 || len(k.effective(g, "cpuset.mems")) == 0) {
		return syscall.ENOSPC
	}
	if g.Has("cpu") && !g.root() && k.file(g, "cpu.rt_runtime_us") != nil && realtime(g) == 0 &&
		slices.ContainsFunc(moving, func(t *thread) bool { return t.realtime }) {
		return syscall.EINVAL
	}
	return nil
}

// killAll is cgroup.kill.
func (k *kernel) killAll(g *group, text string) error {
	if n, err := kstrto.Signed(text); err != nil || n != 1 {
		return cmp.Or(err, error(syscall.ERANGE))
	}
	g.each(func(g *group) {
		for _, pid := range k.pidsIn(g) {
			k.exit(pid)
		}
	})
	return nil
}

// threadedControllers can be enabled beside processes; the others make the group a pure inner node
// (Documentation/admin-guide/cgroup-v2.rst, "No Internal Process Constraint").
var threadedControllers = []string{"cpu", "cpuset", "perf_event", "pids"}

// canBeThreadRoot is the kernel's cgroup_can_be_thread_root.
func (ts *tasks) canBeThreadRoot(g *group) bool {
	if g.root() {
		return true
	}
	for _, child := range g.children {
		if ts.populated(child) {
			return false
		}
	}
	return !slices.ContainsFunc(g.enabled(), domainController)
}

func domainController(name string) bool { return !slices.Contains(threadedControllers, name) }

// validDomain is cgroup_is_valid_domain: no ancestor below the root holds processes beside threaded
// controllers that it hands down.
func (ts *tasks) validDomain(g *group) bool {
	if g.root() {
		return true
	}
	for up := g.parent; up != nil && !up.root(); up = up.parent {
		if len(ts.threadsIn(up)) > 0 && len(up.enabled()) > 0 {
			return false
		}
	}
	return true
}

// writeSubtree is cgroup.subtree_control: "+name -name …", all or nothing.
func (k *kernel) writeSubtree(g *group, text string) error {
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
func (ts *tasks) mayEnable(g *group, enable []string) error {
	switch {
	case len(enable) == 0 || g.root():
		return nil
	case !ts.validDomain(g):
		return syscall.EOPNOTSUPP
	case !slices.ContainsFunc(enable, domainController) && ts.canBeThreadRoot(g):
		return nil
	case len(ts.threadsIn(g)) > 0:
		return syscall.EBUSY
	}
	return nil
}

// forget drops what a group kept for controllers that it loses: enabling them again starts afresh.
func (k *kernel) forget(g *group, controllers []string) {
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
