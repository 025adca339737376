package cgroupfake

import (
	"time"

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

// older says whether the modelled kernel is older than v. The zero version is the newest.
func (o Options) older(v host.Version) bool {
	at := o.Kernel
	if at.Major == 0 {
		return false
	}
	return at.Major < v.Major || at.Major == v.Major && at.Minor < v.Minor
}

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
