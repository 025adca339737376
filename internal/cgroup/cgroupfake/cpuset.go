package cgroupfake

import (
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/linux/idset"
)

// cpusetFiles are those of the cpuset controller. v2's effective sets are never empty: a group without
// CPUs of its own, or whose CPUs its parent lacks, has its parent's.
func cpusetFiles() []*file {
	var files []*file
	for _, what := range []string{"cpus", "mems"} {
		name := "cpuset." + what
		write := func(k *kernel, g *group, text string) error { return k.writeCPUSet(g, name, text) }
		effective := func(k *kernel, g *group) string { return k.effective(g, name).String() }
		files = append(files,
			&file{name: name, version: 1, controller: "cpuset", write: write},
			&file{name: "cpuset.effective_" + what, version: 1, controller: "cpuset", read: effective},
			&file{name: name, version: 2, controller: "cpuset", place: notRoot, write: write},
			&file{name: name + ".effective", version: 2, controller: "cpuset", read: effective},
		)
	}
	for _, name := range []string{"memory_migrate", "mem_hardwall", "memory_spread_page", "memory_spread_slab"} {
		files = append(files, boolean("cpuset."+name, "cpuset", "0"))
	}
	files = append(files, boolean("cpuset.sched_load_balance", "cpuset", "1"))
	for _, name := range []string{"cpuset.cpu_exclusive", "cpuset.mem_exclusive"} {
		files = append(files, exclusive(name))
	}
	return files
}

// exclusive needs a parent that is exclusive too.
func exclusive(name string) *file {
	f := boolean(name, "cpuset", "0")
	set := f.write
	f.write = func(k *kernel, g *group, text string) error {
		old := g.values[name]
		if err := set(k, g, text); err != nil {
			return err
		}
		if g.values[name] == "1" && !g.root() && !g.parent.root() && g.parent.values[name] != "1" {
			g.values[name] = old
			return syscall.EACCES
		}
		return nil
	}
	return f
}

func (o Options) everything(name string) idset.Set {
	if name == "cpuset.cpus" {
		return o.CPUs
	}
	return o.Nodes
}

// own is the set that a group keeps.
func own(g *group, name string) idset.Set {
	set, _ := idset.Parse(g.values[name])
	return set
}

func (k *kernel) effective(g *group, name string) idset.Set {
	if g.root() {
		return k.options.everything(name)
	}
	if g.Version == 1 {
		return own(g, name)
	}
	above := k.effective(g.parent, name)
	if both := own(g, name).Intersect(above); len(both) > 0 {
		return both
	}
	return above
}

func (k *kernel) writeCPUSet(g *group, name, text string) error {
	if g.root() {
		return syscall.EACCES
	}
	set, err := idset.Parse(strings.TrimSpace(text))
	if err != nil {
		return syscall.EINVAL
	}
	all := k.options.everything(name)
	if name == "cpuset.cpus" && len(set) > 0 && slices.Max(set) > slices.Max(all) {
		return syscall.ERANGE // beyond the possible CPUs
	}
	if !set.Subset(all) {
		return syscall.EINVAL
	}
	if g.Version == 1 {
		for _, child := range g.children {
			if !own(child, name).Subset(set) {
				return syscall.EBUSY
			}
		}
		if !g.parent.root() && !set.Subset(own(g.parent, name)) {
			return syscall.EACCES
		}
	}
	// v1 and v2 alike (validate_change).
	if len(set) == 0 && len(own(g, name)) > 0 && k.populated(g) {
		return syscall.ENOSPC
	}
	g.values[name] = set.String()
	return nil
}
