package cgroup

import (
	"maps"
	"slices"
	"strings"
)

// Usage is what a group and everything below it use, as far as one directory tells. A nil field was
// not there to be read. Usages of the same group in several hierarchies are put together with Merge.
type Usage struct {
	Memory MemoryUsage `json:"memory,omitzero"`
	CPU    CPUUsage    `json:"cpu,omitzero"`
	Tasks  TaskUsage   `json:"tasks,omitzero"`
	// IO is by device number, sorted by it.
	IO []IOUsage `json:"io,omitempty"`
	// Pressure is by resource: "cpu", "memory", "io". cgroup2 with CONFIG_PSI (kernel 4.20) only.
	Pressure map[string]Pressure `json:"pressure,omitempty"`
}

// MemoryUsage is in bytes. Anonymous, File, Shared and Kernel do not overlap; Huge is charged apart.
type MemoryUsage struct {
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
	HighHits    *int64 `json:"high_hits,omitempty"`  // v2 "high" of memory.events: allocations slowed down above memory.high
}

// CPUUsage is in microseconds since the group was made.
type CPUUsage struct {
	Total            *int64 `json:"total_us,omitempty"`
	User             *int64 `json:"user_us,omitempty"`
	System           *int64 `json:"system_us,omitempty"`
	Periods          *int64 `json:"periods,omitempty"` // enforcement periods in which the group wanted to run
	ThrottledPeriods *int64 `json:"throttled_periods,omitempty"`
	Throttled        *int64 `json:"throttled_us,omitempty"`
}

// TaskUsage counts threads.
type TaskUsage struct {
	Current   *int64 `json:"current,omitempty"`
	Peak      *int64 `json:"peak,omitempty"`       // kernel 6.1
	LimitHits *int64 `json:"limit_hits,omitempty"` // forks refused at pids.max
}

// IOUsage is what went to and came from one block device.
type IOUsage struct {
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

// The files that Stat reads, by version. A directory has those of its hierarchy's controllers.
var (
	usageFilesV1 = []string{
		"memory.stat", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.kmem.usage_in_bytes",
		"memory.oom_control", "memory.failcnt",
		"cpuacct.stat", "cpuacct.usage", "cpu.stat",
		"pids.current", "pids.peak", "pids.events",
		"blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive",
		"blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced",
	}
	usageFilesV2 = []string{
		"memory.stat", "memory.current", "memory.peak", "memory.swap.current", "memory.events",
		"cpu.stat", "pids.current", "pids.peak", "pids.events", "io.stat",
		"cpu.pressure", "memory.pressure", "io.pressure",
	}
)

// Stat reads what d says about the use of its group. Errors: ErrGone.
func (t *Tree) Stat(d Dir) (Usage, error) {
	names := slices.Clone(usageFilesV2)
	if t.v1(d) {
		names = slices.Clone(usageFilesV1)
	}
	files, err := t.Files(d)
	if err != nil {
		return Usage{}, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(files, name) })
	names = append(names, slices.DeleteFunc(files, func(name string) bool { return !hugeUsage(name) })...)
	values, err := t.ReadMany(d, names)
	if err != nil {
		return Usage{}, err
	}
	if t.v1(d) {
		return usageV1(values), nil
	}
	return usageV2(values), nil
}

// IO reads what was read and written so far: on v1 by the processes in d alone, on v2 by those below it too.
func (t *Tree) IO(d Dir) ([]IOUsage, error) {
	if t.v1(d) {
		const bytes, ops = "blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"
		values, err := t.ReadMany(d, []string{bytes, ops})
		return parseBlkio(values[bytes], values[ops]), err
	}
	values, err := t.ReadMany(d, []string{"io.stat"})
	return parseIOStat(values["io.stat"]), err
}

// hugeUsage says whether the file counts the huge pages of one size in use: "hugetlb.2MB.current".
func hugeUsage(name string) bool {
	size, found := strings.CutPrefix(name, "hugetlb.")
	if !found {
		return false
	}
	_, file, _ := strings.Cut(size, ".")
	return file == "current" || file == "usage_in_bytes"
}

func usageV1(files map[string]string) Usage {
	var u Usage
	stat := parseFlat(files["memory.stat"])
	// total_… covers the groups below, also where use_hierarchy is off.
	total := func(name string) *int64 { return first(stat, "total_"+name, name) }
	u.Memory = MemoryUsage{
		Current:     number(files, "memory.usage_in_bytes"),
		Peak:        number(files, "memory.max_usage_in_bytes"),
		Swap:        total("swap"),
		Anonymous:   total("rss"),
		Shared:      total("shmem"),
		File:        less(total("cache"), total("shmem")),
		Unevictable: total("unevictable"),
		Transparent: total("rss_huge"),
		Kernel:      number(files, "memory.kmem.usage_in_bytes"),
		Huge:        sumHuge(files),
		OOMKills:    first(parseFlat(files["memory.oom_control"]), "oom_kill"),
		LimitHits:   number(files, "memory.failcnt"),
	}
	cpu, acct := parseFlat(files["cpu.stat"]), parseFlat(files["cpuacct.stat"])
	u.CPU = CPUUsage{
		Total:            scale(number(files, "cpuacct.usage"), 1, 1000), // ns
		User:             scale(first(acct, "user"), tickMicroseconds, 1),
		System:           scale(first(acct, "system"), tickMicroseconds, 1),
		Periods:          first(cpu, "nr_periods"),
		ThrottledPeriods: first(cpu, "nr_throttled"),
		Throttled:        scale(first(cpu, "throttled_time"), 1, 1000), // ns
	}
	u.Tasks = tasks(files)
	bytes, recursive := files["blkio.throttle.io_service_bytes_recursive"]
	ops := files["blkio.throttle.io_serviced_recursive"]
	if !recursive {
		bytes, ops = files["blkio.throttle.io_service_bytes"], files["blkio.throttle.io_serviced"]
	}
	u.IO = parseBlkio(bytes, ops)
	return u
}

// tickMicroseconds is one tick of cpuacct.stat: USER_HZ is 100 on every Linux that matters (time(7)).
const tickMicroseconds = 10_000

func usageV2(files map[string]string) Usage {
	var u Usage
	stat, events := parseFlat(files["memory.stat"]), parseFlat(files["memory.events"])
	u.Memory = MemoryUsage{
		Current:     number(files, "memory.current"),
		Peak:        number(files, "memory.peak"),
		Swap:        number(files, "memory.swap.current"),
		Anonymous:   first(stat, "anon"),
		Shared:      first(stat, "shmem"),
		File:        less(first(stat, "file"), first(stat, "shmem")),
		Unevictable: first(stat, "unevictable"),
		Transparent: first(stat, "anon_thp"),
		Kernel:      first(stat, "kernel"),
		Huge:        sumHuge(files),
		OOMKills:    first(events, "oom_kill"),
		LimitHits:   first(events, "max"),
		HighHits:    first(events, "high"),
	}
	if u.Memory.Kernel == nil { // before kernel 5.18
		u.Memory.Kernel = sum(stat, "kernel_stack", "pagetables", "percpu", "slab")
	}
	cpu := parseFlat(files["cpu.stat"])
	u.CPU = CPUUsage{
		Total:            first(cpu, "usage_usec"),
		User:             first(cpu, "user_usec"),
		System:           first(cpu, "system_usec"),
		Periods:          first(cpu, "nr_periods"),
		ThrottledPeriods: first(cpu, "nr_throttled"),
		Throttled:        first(cpu, "throttled_usec"),
	}
	u.Tasks = tasks(files)
	u.IO = parseIOStat(files["io.stat"])
	for _, resource := range []string{"cpu", "memory", "io"} {
		if p := ParsePressure(files[resource+".pressure"]); p != (Pressure{}) {
			if u.Pressure == nil {
				u.Pressure = make(map[string]Pressure)
			}
			u.Pressure[resource] = p
		}
	}
	return u
}

func tasks(files map[string]string) TaskUsage {
	return TaskUsage{
		Current:   number(files, "pids.current"),
		Peak:      number(files, "pids.peak"),
		LimitHits: first(parseFlat(files["pids.events"]), "max"),
	}
}

// number parses a file that holds one number.
func number(files map[string]string, name string) *int64 { return parseNumber(files[name]) }

// first gives the value of the first of names that is there.
func first(stat map[string]int64, names ...string) *int64 {
	for _, name := range names {
		if n, found := stat[name]; found {
			return &n
		}
	}
	return nil
}

// sum adds those of names that are there; nil when none is.
func sum(stat map[string]int64, names ...string) *int64 {
	var total *int64
	for _, name := range names {
		total = add(total, first(stat, name))
	}
	return total
}

func add(a, b *int64) *int64 {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	return new(*a + *b)
}

// less gives a-b, not below 0: the kernel's counters are not read at one instant.
func less(a, b *int64) *int64 {
	if a == nil || b == nil {
		return a
	}
	return new(max(*a-*b, 0))
}

func scale(n *int64, times, by int64) *int64 {
	if n == nil {
		return nil
	}
	return new(*n * times / by)
}

func sumHuge(files map[string]string) *int64 {
	var total *int64
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if hugeUsage(name) {
			total = add(total, number(files, name))
		}
	}
	return total
}

// Add counts o in: another directory of the same group in the same hierarchy. Both peaks together are no peak, for they were
// at different times, so none is told; of pressure that of the first is.
func (u *Usage) Add(o Usage) {
	for _, p := range []struct{ to, from []**int64 }{
		{u.Memory.fields(), o.Memory.fields()},
		{u.CPU.fields(), o.CPU.fields()},
		{u.Tasks.fields(), o.Tasks.fields()},
	} {
		for i, to := range p.to {
			*to = add(*to, *p.from[i])
		}
	}
	u.Memory.Peak, u.Tasks.Peak = nil, nil
	u.IO = slices.Clone(u.IO)
	for _, more := range o.IO {
		i := slices.IndexFunc(u.IO, func(d IOUsage) bool { return d.Device == more.Device })
		if i < 0 {
			u.IO = append(u.IO, more)
			continue
		}
		d := &u.IO[i]
		d.ReadBytes, d.WrittenBytes = d.ReadBytes+more.ReadBytes, d.WrittenBytes+more.WrittenBytes
		d.Reads, d.Writes = d.Reads+more.Reads, d.Writes+more.Writes
	}
	slices.SortFunc(u.IO, func(a, b IOUsage) int { return strings.Compare(a.Device, b.Device) })
	if len(u.Pressure) == 0 {
		u.Pressure = o.Pressure
	}
}

// Merge fills what u lacks from o: another hierarchy's view of the same group.
func (u *Usage) Merge(o Usage) {
	for _, p := range []struct{ to, from []**int64 }{
		{u.Memory.fields(), o.Memory.fields()},
		{u.CPU.fields(), o.CPU.fields()},
		{u.Tasks.fields(), o.Tasks.fields()},
	} {
		for i, to := range p.to {
			if *to == nil {
				*to = *p.from[i]
			}
		}
	}
	if len(u.IO) == 0 {
		u.IO = o.IO
	}
	if len(u.Pressure) == 0 {
		u.Pressure = o.Pressure
	}
}

func (m *MemoryUsage) fields() []**int64 {
	return []**int64{&m.Current, &m.Peak, &m.Swap, &m.Anonymous, &m.File, &m.Shared, &m.Unevictable,
		&m.Transparent, &m.Kernel, &m.Huge, &m.OOMKills, &m.LimitHits, &m.HighHits}
}

func (c *CPUUsage) fields() []**int64 {
	return []**int64{&c.Total, &c.User, &c.System, &c.Periods, &c.ThrottledPeriods, &c.Throttled}
}

func (t *TaskUsage) fields() []**int64 { return []**int64{&t.Current, &t.Peak, &t.LimitHits} }

// Pinned is the memory that cannot be reclaimed: anonymous, shared and, beyond what those hold,
// unevictable file pages are not told apart by the kernel, so the larger of the two sums is taken.
// nil when the directory has no memory controller.
func (m MemoryUsage) Pinned() *int64 {
	held := add(m.Anonymous, m.Shared)
	if held == nil || m.Unevictable != nil && *m.Unevictable > *held {
		return m.Unevictable
	}
	return held
}
