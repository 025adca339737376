// Package metrics reads what groups use and says how it changed: one table of fields, one sampler, one rule for
// counters that begin anew.
//
// A Sample is what was read at one moment; it is not changed afterwards. A Delta is computed from two samples of the
// same group, at whatever distance its user needs; nothing is read for it. [Fields] lists every figure with its unit,
// whether it is a counter or a gauge, the file of cgroup v1 and v2 that tells it, and the kernel that brought the file.
// A new figure is a new row of it.
//
// Samples and deltas may be shared between goroutines as long as nobody changes them. A Sampler, a TaskSampler and
// LoadAverages are for one goroutine at a time.
package metrics

import (
	"slices"
	"strings"
)

// Kind says how a field behaves over time.
type Kind string

// A gauge rises and falls. A counter only grows, from nothing, as long as its group exists.
const (
	Gauge   Kind = "gauge"
	Counter Kind = "counter"
)

// Unit is what a field is counted in.
type Unit string

// The units of the table. Percentages are of wall-clock time.
const (
	Bytes        Unit = "bytes"
	Microseconds Unit = "microseconds"
	Number       Unit = "number"
	Percent      Unit = "percent"
)

// Field is one figure of a group.
type Field struct {
	// Name is its path in the JSON of a Usage: "cpu.throttled_us", "io[].reads", "pressure.memory.full.total_us".
	Name   string
	Unit   Unit
	Kind   Kind
	V1, V2 Source
	Help   string

	value  func(*Usage) **int64 // of the group
	device func(*IO) *int64     // of one block device
}

// Source is the file of a group's directory that tells a field in one version of cgroups, and where in it. The zero
// value: no file does.
type Source struct {
	File string // "*" stands for a page size: the files of all sizes are added up
	// Keys are names of lines "name number", or of values on a device's line. The first one that is there counts.
	// Without a key the file holds a single number.
	Keys []string
	// Sum are the names whose values are added up where none of Keys is there: an older kernel.
	Sum []string
	// Less are names like Keys whose value is taken off.
	Less []string
	// Times and Per convert to the field's unit: value × Times ÷ Per. 0 is 1.
	Times, Per int64
	Since      string // the first kernel that has it; "": as old as the controller
}

// userTick is one tick of cpuacct.stat in microseconds: USER_HZ is 100 on every architecture that Linux runs databases
// on (time(7)).
const userTick = 10_000

func memory(of func(*Memory) **int64) func(*Usage) **int64 {
	return func(u *Usage) **int64 { return of(&u.Memory) }
}

func cpu(of func(*CPU) **int64) func(*Usage) **int64 {
	return func(u *Usage) **int64 { return of(&u.CPU) }
}

func tasks(of func(*Tasks) **int64) func(*Usage) **int64 {
	return func(u *Usage) **int64 { return of(&u.Tasks) }
}

func file(name string, keys ...string) Source { return Source{File: name, Keys: keys} }

// v1 memory.stat has the group alone and, as total_…, with the groups below, also where use_hierarchy is off.
func total(key string) []string { return []string{"total_" + key, key} }

// Fields is the table: every figure that a Usage holds, in the order in which it is shown.
//
// The texts are documented in Documentation/admin-guide/cgroup-v2.rst,
// Documentation/admin-guide/cgroup-v1/{memory,cpuacct,pids, blkio-controller,hugetlb}.rst,
// Documentation/scheduler/sched-bwc.rst and Documentation/accounting/psi.rst.
var Fields = slices.Concat(memoryFields, cpuFields, taskFields, ioFields, pressureFields())

var memoryFields = []Field{
	{Name: "memory.current", Unit: Bytes, Kind: Gauge,
		V1: file("memory.usage_in_bytes"), V2: file("memory.current"),
		Help:  "charged memory, huge pages of hugetlb excepted",
		value: memory(func(m *Memory) **int64 { return &m.Current })},
	{Name: "memory.peak", Unit: Bytes, Kind: Gauge,
		V1: file("memory.max_usage_in_bytes"), V2: Source{File: "memory.peak", Since: "5.19"},
		Help: "largest memory.current", value: memory(func(m *Memory) **int64 { return &m.Peak })},
	{Name: "memory.swap", Unit: Bytes, Kind: Gauge,
		V1: Source{File: "memory.stat", Keys: total("swap")}, V2: file("memory.swap.current"),
		Help: "swapped out", value: memory(func(m *Memory) **int64 { return &m.Swap })},
	{Name: "memory.anonymous", Unit: Bytes, Kind: Gauge,
		V1: Source{File: "memory.stat", Keys: total("rss")}, V2: file("memory.stat", "anon"),
		Help:  "anonymous memory, transparent huge pages included",
		value: memory(func(m *Memory) **int64 { return &m.Anonymous })},
	{Name: "memory.file", Unit: Bytes, Kind: Gauge,
		V1:   Source{File: "memory.stat", Keys: total("cache"), Less: total("shmem")},
		V2:   Source{File: "memory.stat", Keys: []string{"file"}, Less: []string{"shmem"}},
		Help: "page cache without shared memory", value: memory(func(m *Memory) **int64 { return &m.File })},
	{Name: "memory.shared", Unit: Bytes, Kind: Gauge,
		V1: Source{File: "memory.stat", Keys: total("shmem")}, V2: file("memory.stat", "shmem"),
		Help: "shared memory and tmpfs", value: memory(func(m *Memory) **int64 { return &m.Shared })},
	{Name: "memory.unevictable", Unit: Bytes, Kind: Gauge,
		V1: Source{File: "memory.stat", Keys: total("unevictable")}, V2: file("memory.stat", "unevictable"),
		Help:  "locked memory; part of the kinds before",
		value: memory(func(m *Memory) **int64 { return &m.Unevictable })},
	{Name: "memory.transparent_huge", Unit: Bytes, Kind: Gauge,
		V1: Source{File: "memory.stat", Keys: total("rss_huge")}, V2: file("memory.stat", "anon_thp"),
		Help:  "transparent huge pages; part of anonymous",
		value: memory(func(m *Memory) **int64 { return &m.Transparent })},
	// "kernel" is there since 5.18.
	{Name: "memory.kernel", Unit: Bytes, Kind: Gauge,
		V1: file("memory.kmem.usage_in_bytes"),
		V2: Source{File: "memory.stat", Keys: []string{"kernel"},
			Sum: []string{"kernel_stack", "pagetables", "percpu", "slab"}},
		Help:  "page tables, stacks, slab and other kernel memory",
		value: memory(func(m *Memory) **int64 { return &m.Kernel })},
	{Name: "memory.huge", Unit: Bytes, Kind: Gauge,
		V1: file("hugetlb.*.usage_in_bytes"), V2: Source{File: "hugetlb.*.current", Since: "5.6"},
		Help: "hugetlb pages in use, of every size", value: memory(func(m *Memory) **int64 { return &m.Huge })},
	{Name: "memory.oom_kills", Unit: Number, Kind: Counter,
		V1:   Source{File: "memory.oom_control", Keys: []string{"oom_kill"}, Since: "4.13"},
		V2:   Source{File: "memory.events", Keys: []string{"oom_kill"}, Since: "4.13"},
		Help: "processes killed for want of memory", value: memory(func(m *Memory) **int64 { return &m.OOMKills })},
	{Name: "memory.limit_hits", Unit: Number, Kind: Counter,
		V1: file("memory.failcnt"), V2: file("memory.events", "max"),
		Help:  "times that the hard limit was reached",
		value: memory(func(m *Memory) **int64 { return &m.LimitHits })},
	{Name: "memory.high_hits", Unit: Number, Kind: Counter,
		V2:    file("memory.events", "high"),
		Help:  "times that a task above memory.high had to reclaim",
		value: memory(func(m *Memory) **int64 { return &m.HighHits })},
	// One line for all until 5.8.
	{Name: "memory.refaults", Unit: Number, Kind: Counter,
		V1: Source{File: "memory.stat", Keys: total("workingset_refault"),
			Sum: []string{"total_workingset_refault_anon", "total_workingset_refault_file"}},
		V2: Source{File: "memory.stat", Keys: []string{"workingset_refault"},
			Sum: []string{"workingset_refault_anon", "workingset_refault_file"}},
		Help:  "pages that reclaim took away, and that were soon needed again",
		value: memory(func(m *Memory) **int64 { return &m.Refaults })},
}

var cpuFields = []Field{
	{Name: "cpu.total_us", Unit: Microseconds, Kind: Counter,
		V1: Source{File: "cpuacct.usage", Per: 1000}, V2: file("cpu.stat", "usage_usec"),
		Help: "CPU time", value: cpu(func(c *CPU) **int64 { return &c.Total })},
	{Name: "cpu.user_us", Unit: Microseconds, Kind: Counter,
		V1:   Source{File: "cpuacct.stat", Keys: []string{"user"}, Times: userTick},
		V2:   file("cpu.stat", "user_usec"),
		Help: "CPU time in user mode", value: cpu(func(c *CPU) **int64 { return &c.User })},
	{Name: "cpu.system_us", Unit: Microseconds, Kind: Counter,
		V1:   Source{File: "cpuacct.stat", Keys: []string{"system"}, Times: userTick},
		V2:   file("cpu.stat", "system_usec"),
		Help: "CPU time in the kernel", value: cpu(func(c *CPU) **int64 { return &c.System })},
	{Name: "cpu.periods", Unit: Number, Kind: Counter,
		V1: file("cpu.stat", "nr_periods"), V2: file("cpu.stat", "nr_periods"),
		Help:  "enforcement periods in which the group wanted to run",
		value: cpu(func(c *CPU) **int64 { return &c.Periods })},
	{Name: "cpu.throttled_periods", Unit: Number, Kind: Counter,
		V1: file("cpu.stat", "nr_throttled"), V2: file("cpu.stat", "nr_throttled"),
		Help:  "periods in which its limit held it back",
		value: cpu(func(c *CPU) **int64 { return &c.ThrottledPeriods })},
	{Name: "cpu.throttled_us", Unit: Microseconds, Kind: Counter,
		V1:    Source{File: "cpu.stat", Keys: []string{"throttled_time"}, Per: 1000},
		V2:    file("cpu.stat", "throttled_usec"),
		Help:  "time for which its limit held it back, summed over the CPUs",
		value: cpu(func(c *CPU) **int64 { return &c.Throttled })},
}

var taskFields = []Field{
	{Name: "tasks.current", Unit: Number, Kind: Gauge,
		V1: file("pids.current"), V2: file("pids.current"),
		Help: "threads", value: tasks(func(t *Tasks) **int64 { return &t.Current })},
	{Name: "tasks.peak", Unit: Number, Kind: Gauge,
		V1: Source{File: "pids.peak", Since: "6.1"}, V2: Source{File: "pids.peak", Since: "6.1"},
		Help: "most threads at a time", value: tasks(func(t *Tasks) **int64 { return &t.Peak })},
	{Name: "tasks.limit_hits", Unit: Number, Kind: Counter,
		V1: file("pids.events", "max"), V2: file("pids.events", "max"),
		Help: "forks that the limit refused", value: tasks(func(t *Tasks) **int64 { return &t.LimitHits })},
}

// The files of blk-throttle in v1. With "_recursive" behind the name they count the groups below too; older kernels
// lack those.
const (
	blkioBytes = "blkio.throttle.io_service_bytes"
	blkioOps   = "blkio.throttle.io_serviced"
	recursive  = "_recursive"
)

var ioFields = []Field{
	{Name: "io[].read_bytes", Unit: Bytes, Kind: Counter,
		V1: file(blkioBytes, "Read"), V2: file("io.stat", "rbytes"),
		Help: "read from the device", device: func(io *IO) *int64 { return &io.ReadBytes }},
	{Name: "io[].written_bytes", Unit: Bytes, Kind: Counter,
		V1: file(blkioBytes, "Write"), V2: file("io.stat", "wbytes"),
		Help: "written to the device", device: func(io *IO) *int64 { return &io.WrittenBytes }},
	{Name: "io[].reads", Unit: Number, Kind: Counter,
		V1: file(blkioOps, "Read"), V2: file("io.stat", "rios"),
		Help: "read requests", device: func(io *IO) *int64 { return &io.Reads }},
	{Name: "io[].writes", Unit: Number, Kind: Counter,
		V1: file(blkioOps, "Write"), V2: file("io.stat", "wios"),
		Help: "write requests", device: func(io *IO) *int64 { return &io.Writes }},
}

// Resources are those whose pressure the kernel tells (CONFIG_PSI; cgroup v2 only).
var Resources = []string{"cpu", "memory", "io"}

// pressureFields are the values of the lines "some" and "full" of the *.pressure files.
func pressureFields() (fields []Field) {
	for _, resource := range Resources {
		for line, who := range map[string]string{"some": "at least one task", "full": "all tasks"} {
			since := "4.20"
			if resource == "cpu" && line == "full" {
				since = "5.13"
			}
			of := Source{File: resource + ".pressure", Since: since}
			name, help := "pressure."+resource+"."+line, who+" waited for "+resource
			for _, average := range []string{"avg10", "avg60", "avg300"} {
				of.Keys = []string{line, average}
				fields = append(fields, Field{Name: name + "." + average, Unit: Percent, Kind: Gauge, V2: of,
					Help: "part of the last " + average[3:] + " s in which " + help})
			}
			of.Keys = []string{line, "total"}
			fields = append(fields, Field{Name: name + ".total_us", Unit: Microseconds, Kind: Counter, V2: of,
				Help: "time in which " + help})
		}
	}
	slices.SortFunc(fields, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	return fields
}

// source is where a version of cgroups tells a field.
func (f *Field) source(version int) Source {
	if version == 1 {
		return f.V1
	}
	return f.V2
}
