package metrics

// Usage is what a group and everything below it use, as far as one directory tells. A nil field was
// not there to be read. Usages of the same group in several hierarchies are put together with Merge.
type Usage struct {
	Memory Memory `json:"memory,omitzero"`
	CPU    CPU    `json:"cpu,omitzero"`
	Tasks  Tasks  `json:"tasks,omitzero"`
	// IO is by device number, sorted by it.
	IO []IO `json:"io,omitempty"`
	// Pressure is by resource: "cpu", "memory", "io". cgroup2 with CONFIG_PSI (kernel 4.20) only.
	Pressure map[string]Pressure `json:"pressure,omitempty"`
}

// Memory is in bytes. Anonymous, File, Shared and Kernel do not overlap; Huge is charged apart.
type Memory struct {
	Current     *int64 `json:"current,omitempty"` // all that is charged, huge pages excepted
	Peak        *int64 `json:"peak,omitempty"`    // largest Current; v2 since kernel 5.19
	Swap        *int64 `json:"swap,omitempty"`
	Anonymous   *int64 `json:"anonymous,omitempty"`   // anonymous memory, transparent huge pages included
	File        *int64 `json:"file,omitempty"`        // page cache without shared memory
	Shared      *int64 `json:"shared,omitempty"`      // shmem and tmpfs
	Unevictable *int64 `json:"unevictable,omitempty"` // mlocked and the like; part of the kinds above
	Transparent *int64 `json:"transparent_huge,omitempty"`
	Kernel      *int64 `json:"kernel,omitempty"` // page tables, stacks, slab, …
	Huge        *int64 `json:"huge,omitempty"`   // hugetlb pages of every size
	OOMKills    *int64 `json:"oom_kills,omitempty"`
	LimitHits   *int64 `json:"limit_hits,omitempty"` // v1 memory.failcnt, v2 "max" of memory.events
	// v2 "high" of memory.events: allocations slowed down above memory.high
	HighHits *int64 `json:"high_hits,omitempty"`
	Refaults *int64 `json:"refaults,omitempty"` // pages that reclaim took away, and that were soon needed again
}

// CPU is in microseconds since the group was made.
type CPU struct {
	Total            *int64 `json:"total_us,omitempty"`
	User             *int64 `json:"user_us,omitempty"`
	System           *int64 `json:"system_us,omitempty"`
	Periods          *int64 `json:"periods,omitempty"` // enforcement periods in which the group wanted to run
	ThrottledPeriods *int64 `json:"throttled_periods,omitempty"`
	Throttled        *int64 `json:"throttled_us,omitempty"`
}

// Tasks counts threads.
type Tasks struct {
	Current   *int64 `json:"current,omitempty"`
	Peak      *int64 `json:"peak,omitempty"`       // kernel 6.1
	LimitHits *int64 `json:"limit_hits,omitempty"` // forks refused at pids.max
}

// IO is what went to and came from one block device.
type IO struct {
	Device       string `json:"device"` // "8:16"
	ReadBytes    int64  `json:"read_bytes"`
	WrittenBytes int64  `json:"written_bytes"`
	Reads        int64  `json:"reads"`
	Writes       int64  `json:"writes"`
}

// Pressure is one *.pressure file (Documentation/accounting/psi.rst).
type Pressure struct {
	Some *Stall `json:"some,omitempty"` // at least one task waited
	Full *Stall `json:"full,omitempty"` // all of them did
}

// Stall is one line of it: percentages of the time over three windows, and the sum in microseconds.
type Stall struct {
	Avg10  float64 `json:"avg10"`
	Avg60  float64 `json:"avg60"`
	Avg300 float64 `json:"avg300"`
	Total  int64   `json:"total_us"`
}

// Pinned is the memory that cannot be reclaimed, in bytes; nil when the directory has no memory controller. Unevictable
// memory is partly anonymous and shared memory and partly file pages, which the kernel does not tell apart: Pinned is
// the larger one of Unevictable and the sum of Anonymous and Shared.
func (m Memory) Pinned() *int64 {
	held := add(m.Anonymous, m.Shared)
	if held == nil || m.Unevictable != nil && *m.Unevictable > *held {
		return m.Unevictable
	}
	return held
}
