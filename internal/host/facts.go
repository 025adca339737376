package host

import (
	"slices"

	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/procfs"
)

// Facts is one look at the machine.
type Facts struct {
	Hostname string
	Kernel   Version // of /proc/sys/kernel/osrelease
	BootID   string  // /proc/sys/kernel/random/boot_id

	MemTotal  int64 // bytes, MemTotal of /proc/meminfo
	SwapTotal int64 // bytes
	PageSize  int64 // bytes

	CPUs  idset.Set // online CPUs
	Nodes []Node    // NUMA nodes by ID; at least one: a machine without NUMA is one node 0

	HugePageSizes []int64 // bytes, from /sys/kernel/mm/hugepages, ascending
	HugePage      int64   // bytes: the default size of huge pages; 0 where the kernel has none

	Mounts      mountinfo.Mounts
	Hierarchies []Hierarchy       // every mounted cgroup hierarchy, by ID
	Controllers []Controller      // by name
	Devices     []blockdev.Device // block devices by number

	IOCost bool // there is iocost, to weigh the requests of groups on cgroup v2
	BFQ    bool // there is the scheduler BFQ, loaded or to be had as a module

	Pressure bool `json:",omitempty"` // the kernel counts how long tasks wait (PSI, kernel 4.20)

	// BlindedBy is the first directory of net_cls or net_prio that gives sockets a class or a priority, or the word
	// on one that is gone, where that keeps the kernel from telling the cgroup2 directory of a socket; "" where it
	// can tell.
	BlindedBy string `json:",omitempty"`

	PIDMax     int64 // /proc/sys/kernel/pid_max
	ThreadsMax int64 // /proc/sys/kernel/threads-max

	// Systemd is true when PID 1 is systemd: it then owns the cgroup tree.
	Systemd bool
	// SysResource says whether this process has CAP_SYS_RESOURCE, without which a lower
	// oom_score_adj is refused (proc(5)).
	SysResource bool
}

// Hierarchy returns the mounted hierarchy of that ID.
func (f *Facts) Hierarchy(id string) (Hierarchy, bool) {
	return find(f.Hierarchies, func(h Hierarchy) bool { return h.ID == id })
}

// HierarchyOf returns the mounted hierarchy that holds a controller, which has its v1 name: "blkio"
// also for the io controller of v2.
func (f *Facts) HierarchyOf(controller string) (Hierarchy, bool) {
	return find(f.Hierarchies, func(h Hierarchy) bool { return h.Has(controller) })
}

// Unified returns the cgroup2 hierarchy.
func (f *Facts) Unified() (Hierarchy, bool) { return f.Hierarchy(procfs.UnifiedID) }

// Controller returns what is known of a controller, by its v1 name.
func (f *Facts) Controller(name string) (Controller, bool) {
	return find(f.Controllers, func(c Controller) bool { return c.Name == name })
}

// Storage gives what the facts alone tell of storage.
func (f *Facts) Storage() *blockdev.Storage { return blockdev.NewStorage(f.Devices, f.Mounts) }

// Node returns the NUMA node of that number.
func (f *Facts) Node(id int) (Node, bool) {
	return find(f.Nodes, func(n Node) bool { return n.ID == id })
}

// Device returns the block device of that number, "8:16".
func (f *Facts) Device(number string) (blockdev.Device, bool) {
	return find(f.Devices, func(d blockdev.Device) bool { return d.Number == number })
}

func find[T any](list []T, is func(T) bool) (T, bool) {
	for _, v := range list {
		if is(v) {
			return v, true
		}
	}
	var none T
	return none, false
}

// capSysResource is the number of CAP_SYS_RESOURCE (linux/capability.h).
const capSysResource = 24

// Hierarchy is one mounted cgroup hierarchy.
type Hierarchy struct {
	// ID is the stable name used everywhere: the sorted controllers joined by commas ("cpu",
	// "cpu,cpuacct"), "name=systemd" for a named one, "unified" for cgroup2.
	ID          string
	Version     int      // 1 or 2
	Controllers []string // sorted, by their v1 names
	Mount       string   // mount point below the root of Host
	Root        string   // root field of mountinfo; "/" unless a container's view is mounted
	Options     []string // of the super block: "favordynmods", "memory_recursiveprot", "noprefix", …
	ReadOnly    bool
	// Lacks names those of optionalFiles that the controllers should bring and this kernel does not have.
	Lacks []string `json:",omitempty"`
}

// Controller is one cgroup controller that the kernel has (/proc/cgroups and the hierarchies).
type Controller struct {
	// The v1 name: "blkio", "cpu", "cpuacct", "cpuset", "freezer", "hugetlb", "memory", "pids", …; v2's "io" is listed
	// as "blkio".
	Name      string
	Hierarchy string // ID of the hierarchy that holds it; "" when none is mounted
	Enabled   bool   // false: switched off at boot (cgroup_disable=)
	Hint      string // when Hierarchy is "" and Enabled: the mount command that would give it
}

// Node is a NUMA node.
type Node struct {
	ID       int
	CPUs     idset.Set // online CPUs of the node; empty for a node of memory alone
	MemTotal int64     // bytes
}

// Has says whether the hierarchy holds a controller, by its v1 name.
func (h Hierarchy) Has(controller string) bool { return slices.Contains(h.Controllers, controller) }
