package kernelfile

import (
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/policy"
)

// counts is why counters are left out.
const counts = "it only counts, and limits nothing"

// inMatch is what to do about numbers of processes.
const inMatch = "say with match: which processes are meant"

// leftOut are files that are known and have no place in a policy: why, and what to do instead.
var leftOut = map[string][2]string{
	"cpu.stat": {counts}, "cpu.pressure": {counts}, "cpu.uclamp.min": {convert.NoKey},
	"cpu.uclamp.max":  {convert.NoKey},
	"cpu.weight.nice": {"it is cpu.weight on another scale", "write cpu.weight"},
	"cpuset.cpu_exclusive": {"bulkhead gives CPUs, and takes them from nobody",
		"give the other groups other CPUs"},
	"cpuset.cpus.partition": {"bulkhead gives CPUs, and takes them from nobody",
		"give the other groups other CPUs"},
	"cpuset.cpus.exclusive": {"bulkhead gives CPUs, and takes them from nobody",
		"give the other groups other CPUs"},
	"cpuset.mem_exclusive": {"bulkhead gives nodes, and takes them from nobody",
		"give the other groups other nodes"},
	"cpuset.mem_hardwall": {convert.NoKey},
	"cpuset.memory_migrate": {"cgroup v2 moves pages by itself, v1 leaves them where they are",
		"restart the database to have its memory on other nodes"},
	"cpuset.memory_pressure":          {counts},
	"cpuset.memory_pressure_enabled":  {counts},
	"cpuset.memory_spread_page":       {"cgroup v2 has no such file", "start the database with numactl --interleave"},
	"cpuset.memory_spread_slab":       {"cgroup v2 has no such file"},
	"cpuset.sched_load_balance":       {convert.NoKey},
	"cpuset.sched_relax_domain_level": {convert.NoKey},
	"memory.use_hierarchy": {"bulkhead looks which way the host has it",
		"limits of a group cover the groups inside it"},
	"memory.move_charge_at_immigrate": {"kernels no longer move charges with a process",
		"start the database in its group"},
	"memory.kmem.limit_in_bytes": {"kernels no longer have a limit of their own for kernel memory",
		"memory.max covers it on cgroup v2"},
	"memory.kmem.tcp.limit_in_bytes": {convert.NoKey, "memory.max covers it on cgroup v2"},
	"memory.zswap.max":               {convert.NoKey},
	"memory.zswap.writeback":         {convert.NoKey},
	"memory.swap.high":               {convert.NoKey, "memory.swap is the most"},
	"memory.force_empty":             {"it acts once, when it is written"},
	"memory.reclaim":                 {"it acts once, when it is written"},
	"blkio.reset_stats":              {"it acts once, when it is written"},
	"cpuacct.usage":                  {counts},
	"blkio.leaf_weight":              {"kernels no longer have it"},
	"blkio.leaf_weight_device":       {"kernels no longer have it"},
	"io.latency":                     {convert.NoKey},
	"io.cost.qos":                    {"it belongs to the host, not to a group"},
	"io.cost.model":                  {"it belongs to the host, not to a group"},
	"io.prio.class":                  {convert.NoKey},
	"blkio.prio.class":               {convert.NoKey},
	"freezer.state": {"a state is no limit",
		"`bulkhead freeze GROUP --for 10m` stops a group, always with an end"},
	"cgroup.freeze": {"a state is no limit",
		"`bulkhead freeze GROUP --for 10m` stops a group, always with an end"},
	"cgroup.kill":                  {"it acts once, when it is written"},
	"cgroup.pressure":              {"counters of pressure stay as they are"},
	"cgroup.event_control":         {"it is for programs that wait for events"},
	"cgroup.threads":               {"a thread number belongs to one boot", inMatch},
	"cgroup.sane_behavior":         {counts},
	"cgroup.controllers":           {counts},
	"memory.pressure_level":        {"it is for programs that wait for events"},
	"cpu.uclamp.latency_sensitive": {convert.NoKey},
	"cgroup.max.depth":             {convert.NoKey},
	"cgroup.max.descendants":       {convert.NoKey},
	"cgroup.type":                  {convert.NoKey},
	"cgroup.subtree_control":       {"bulkhead turns controllers on where a limit needs them"},
	"cgroup.clone_children":        {"bulkhead gives each group its own values"},
	"tasks":                        {"a process number belongs to one boot", inMatch},
	"cgroup.procs":                 {"a process number belongs to one boot", inMatch},
	"notify_on_release":            {"bulkhead's agent sees when a group is empty"},
	"release_agent":                {"bulkhead's agent sees when a group is empty"},
}

// removed by any kernel's name: read-only files by what they end in.
var countingSuffixes = []string{
	".stat", ".usage_in_bytes", ".max_usage_in_bytes", ".failcnt", ".current", ".peak", ".events", ".events.local",
	".numa_stat", ".usage", ".usage_percpu",
	".usage_sys", ".usage_user", ".usage_all", ".pressure", ".rsvd.current", ".effective", ".effective_cpus",
	".effective_mems", ".swap.events", ".slabinfo", ".kmem.slabinfo", ".stat.local", ".self_freezing",
	".parent_freezing", ".exclusive.effective",
}

// hugeFile splits "hugetlb.2MB.limit_in_bytes" into its page size and what the file is.
func hugeFile(file string) (size, rest string, ok bool) {
	name, ok := strings.CutPrefix(file, "hugetlb.")
	if !ok {
		return "", "", false
	}
	size, rest, ok = strings.Cut(name, ".")
	return size, rest, ok && policy.HugePageSize(size) > 0
}

func counting(file string) bool {
	return slices.ContainsFunc(countingSuffixes, func(s string) bool { return strings.HasSuffix(file, s) })
}

// ioCounter knows the counters of v1's blkio, which are many.
func ioCounter(file string) bool {
	name := strings.TrimPrefix(strings.TrimPrefix(file, "blkio."), "throttle.")
	return strings.HasPrefix(name, "io_") || name == "sectors" || name == "sectors_recursive" || name == "time" ||
		name == "time_recursive"
}
