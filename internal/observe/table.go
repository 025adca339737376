package observe

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/metrics"
)

// Table is every metric that is shown of a sample, in order of importance: where there is no room for all figures of a
// group, those at its end are left out. So what has figures of each device is last, that of the host behind that of
// groups.
var Table = slices.Concat(hostRows, agentRows, cpuRows, memoryRows, pressureRows, taskRows, limitRows, sloRows,
	networkRows, ioRows, databaseRows, blameRows, nodeRows, eachCPURows, hostDeviceRows, zfsRows)

var rowsByName = func() map[string]*Row {
	all := map[string]*Row{}
	for i := range Table {
		all[Table[i].Name] = &Table[i]
	}
	return all
}()

// RowOf is the row of a metric; nil for one that is not in the table.
func RowOf(metric string) *Row { return rowsByName[metric] }

var cpuRows = []Row{
	{Name: "bulkhead_group_cpu_seconds_total", Part: CPU, Kind: metrics.Counter, Fields: show("cpu.total_us"),
		Help: "CPU time of the group."},
	{Name: "bulkhead_group_cpu_mode_seconds_total", Part: CPU, Kind: metrics.Counter, Labels: []string{"mode"},
		Fields: show("user=cpu.user_us", "system=cpu.system_us"),
		Help:   "CPU time of the group by mode; on cgroup v1 counted in ticks."},
	{Name: "bulkhead_group_cpu_throttled_seconds_total", Part: CPU, Kind: metrics.Counter,
		Fields: show("cpu.throttled_us"),
		Help:   "Time for which its CPU limit held the group back, summed over the CPUs."},
	{Name: "bulkhead_group_cpu_periods_total", Part: CPU, Kind: metrics.Counter, Fields: show("cpu.periods"),
		Help: "Periods of its CPU limit in which the group wanted to run."},
	{Name: "bulkhead_group_cpu_throttled_periods_total", Part: CPU, Kind: metrics.Counter,
		Fields: show("cpu.throttled_periods"), Help: "Periods in which its CPU limit held the group back."},
}

var memoryRows = []Row{
	{Name: "bulkhead_group_memory_charged_bytes", Part: Memory, Kind: metrics.Gauge, Fields: show("memory.current"),
		Help: "Memory that is charged to the group, without huge pages of hugetlb: what memory.max limits."},
	{Name: "bulkhead_group_memory_peak_bytes", Part: Memory, Kind: metrics.Gauge, Fields: show("memory.peak"),
		Help: "Largest memory that was charged to the group."},
	{Name: "bulkhead_group_memory_bytes", Part: MemoryStat, Kind: metrics.Gauge, Labels: []string{"kind"},
		Fields: show("anonymous=memory.anonymous", "file=memory.file", "shared=memory.shared",
			"kernel=memory.kernel", "huge=memory.huge", "swap=memory.swap"),
		Help: "Memory of the group by kind; the kinds do not overlap, and swap is not in memory."},
	{Name: "bulkhead_group_memory_unevictable_bytes", Part: MemoryStat, Kind: metrics.Gauge,
		Fields: show("memory.unevictable"), Help: "Locked memory of the group, which is part of the kinds."},
	{Name: "bulkhead_group_memory_transparent_huge_bytes", Part: MemoryStat, Kind: metrics.Gauge,
		Fields: show("memory.transparent_huge"), Help: "Transparent huge pages, which are part of anonymous memory."},
	{Name: "bulkhead_group_memory_refaults_total", Part: MemoryStat, Kind: metrics.Counter,
		Fields: show("memory.refaults"),
		Help:   "Pages that reclaim took away from the group, and that were soon needed again."},
	{Name: "bulkhead_group_memory_oom_kills_total", Part: Memory, Kind: metrics.Counter,
		Fields: show("memory.oom_kills"), Help: "Processes of the group that were killed for want of memory."},
	{Name: "bulkhead_group_memory_limit_hits_total", Part: Memory, Kind: metrics.Counter,
		Fields: show("memory.limit_hits"), Help: "Times that the group reached its memory.max."},
	{Name: "bulkhead_group_memory_high_hits_total", Part: Memory, Kind: metrics.Counter,
		Fields: show("memory.high_hits"), Help: "Times that a task above memory.high had to reclaim."},
}

var ioRows = []Row{
	{Name: "bulkhead_group_io_bytes_total", Part: IO, Kind: metrics.Counter, Labels: []string{"device", "direction"},
		Fields: show("read=io[].read_bytes", "write=io[].written_bytes"),
		Help:   "Bytes that the group read from and wrote to a block device."},
	{Name: "bulkhead_group_io_operations_total", Part: IO, Kind: metrics.Counter,
		Labels: []string{"device", "direction"}, Fields: show("read=io[].reads", "write=io[].writes"),
		Help: "Requests of the group to a block device."},
}

var pressureRows = []Row{
	{Name: "bulkhead_group_pressure_seconds_total", Part: Pressure, Kind: metrics.Counter,
		Labels: []string{"resource", "kind"}, Fields: show(
			"cpu,some=pressure.cpu.some.total_us", "cpu,full=pressure.cpu.full.total_us",
			"memory,some=pressure.memory.some.total_us", "memory,full=pressure.memory.full.total_us",
			"io,some=pressure.io.some.total_us", "io,full=pressure.io.full.total_us"),
		Help: "Time in which at least one task (some) or all tasks (full) of the group waited for a resource."},
	{Name: "bulkhead_host_pressure_seconds_total", Part: Pressure, Kind: metrics.Counter,
		Labels: []string{"resource", "kind"}, Source: "`/proc/pressure` (kernel 4.20)", sample: hostPressure,
		Help: "Time in which at least one task (some) or all tasks (full) of the host waited for a resource."},
}

// notShown are the fields of metrics.Fields that no row shows, and why.
var notShown = map[string]string{
	"avg10": "the rate of the total says it", "avg60": "the rate of the total says it",
	"avg300": "the rate of the total says it",
}

var taskRows = []Row{
	{Name: "bulkhead_group_threads", Part: Tasks, Kind: metrics.Gauge, Fields: show("tasks.current"),
		Help: "Threads of the group."},
	{Name: "bulkhead_group_threads_peak", Part: Tasks, Kind: metrics.Gauge, Fields: show("tasks.peak"),
		Help: "Most threads of the group at a time."},
	{Name: "bulkhead_group_forks_refused_total", Part: Tasks, Kind: metrics.Counter,
		Fields: show("tasks.limit_hits"), Help: "Forks that the group's limit on tasks refused."},
	{Name: "bulkhead_group_processes", Part: Tasks, Kind: metrics.Gauge, Source: "the agent's last full look",
		group: func(_ *Sample, g *Group, tell Tell) { tell(float64(g.Processes)) },
		Help:  "Processes that belong to the group itself, without those of groups below it."},
	{Name: "bulkhead_group_tasks", Part: Tasks, Kind: metrics.Gauge, Labels: []string{"state"},
		Source: "`stat` of threads", group: groupTasks,
		Help: "Threads of the group that are runnable, or blocked in uninterruptible sleep."},
	{Name: "bulkhead_group_load1", Part: Tasks, Kind: metrics.Gauge, Source: "`stat` of threads", group: groupLoad,
		Help: "Load average of the group over one minute."},
	{Name: "bulkhead_group_cpu_waiting_seconds_total", Part: Threads, Kind: metrics.Counter,
		Source: "`schedstat` of threads", group: groupWaiting,
		Help: "Time for which threads of the group could run and had no CPU, also because its CPU limit held them " +
			"back."},
	{Name: "bulkhead_group_context_switches_total", Part: Threads, Kind: metrics.Counter, Labels: []string{"kind"},
		Source: "`status` of threads", group: groupSwitches,
		Help: "Switches away from threads of the group: because they waited (voluntary), or because others were to " +
			"run."},
	{Name: "bulkhead_group_threads_run_seconds_total", Part: Threads, Kind: metrics.Counter, Labels: []string{"cpu"},
		Recorded: true, Source: "`schedstat` and `stat` of threads",
		group: func(_ *Sample, g *Group, tell Tell) {
			if g.Threads != nil && len(g.EachCPU) == 0 {
				eachCPU(g.Threads.RanOn, tell)
			}
		}, Help: "CPU time of threads of the group by the CPU on which each was seen last, where the kernel does not " +
			"tell the group's own."},
	{Name: "bulkhead_group_threads_faults_total", Part: Threads, Kind: metrics.Counter, Recorded: true,
		Source: "`stat` of threads", group: func(_ *Sample, g *Group, tell Tell) {
			if g.Threads != nil {
				tell(float64(g.Threads.Faults))
			}
		}, Help: "Page faults of threads of the group."},
	{Name: "bulkhead_group_threads_io_bytes_total", Part: Threads, Kind: metrics.Counter,
		Labels: []string{"direction"}, Recorded: true, Source: "`io` of threads",
		group: func(_ *Sample, g *Group, tell Tell) {
			if g.Threads != nil {
				tell(float64(g.Threads.ReadBytes), "read")
				tell(float64(g.Threads.WrittenBytes), "write")
			}
		}, Help: "Bytes that threads of the group had read from any disk, and those that they wrote, also into page " +
			"cache that the kernel writes to a disk later."},
	{Name: "bulkhead_group_threads_io_operations_total", Part: Threads, Kind: metrics.Counter,
		Labels: []string{"direction"}, Recorded: true, Source: "`io` of threads",
		group: func(_ *Sample, g *Group, tell Tell) {
			if g.Threads != nil {
				tell(float64(g.Threads.Reads), "read")
				tell(float64(g.Threads.Writes), "write")
			}
		}, Help: "Calls for these bytes: at most one for each 4 KiB."},
}

// nodeRows are some figures for each NUMA node.
var nodeRows = []Row{
	{Name: "bulkhead_group_memory_node_bytes", Part: MemoryNodes, Kind: metrics.Gauge,
		Labels: []string{"node", "pages"}, Recorded: true,
		Source: "`memory.numa_stat`; huge pages `hugetlb.*.numa_stat` (kernel 5.17)",
		group: func(_ *Sample, g *Group, tell Tell) {
			for _, node := range slices.Sorted(maps.Keys(g.Nodes)) {
				for _, pages := range slices.Sorted(maps.Keys(g.Nodes[node])) {
					tell(float64(g.Nodes[node][pages]), strconv.Itoa(node), pages)
				}
			}
		}, Help: "Memory of the group on each NUMA node, by the pages that it is in: the usual ones, transparent " +
			"huge ones (cgroup v1 has them among the usual), those of a pool by their size, and page cache."},
}

// eachCPURows are as many figures as there are CPUs.
var eachCPURows = []Row{
	{Name: "bulkhead_group_cpus", Part: EachCPU, Kind: metrics.Gauge, Labels: []string{"cpus"},
		Recorded: true, Source: "`cpuset.cpus.effective`, v1 `cpuset.effective_cpus`",
		group: func(_ *Sample, g *Group, tell Tell) {
			if len(g.CPUs) > 0 {
				tell(float64(len(g.CPUs)), g.CPUs.String())
			}
		}, Help: "How many CPUs the group may run on, where a cpuset says so; the label lists them."},
	{Name: "bulkhead_group_cpu_each_seconds_total", Part: EachCPU, Kind: metrics.Counter, Labels: []string{"cpu"},
		Recorded: true, Source: "v1 `cpuacct.usage_percpu`; cgroup v2 does not tell",
		group: func(_ *Sample, g *Group, tell Tell) { eachCPU(g.EachCPU, tell) },
		Help:  "CPU time of the group on each CPU."},
	{Name: "bulkhead_host_cpu_each_seconds_total", Part: EachCPU, Kind: metrics.Counter, Labels: []string{"cpu"},
		Recorded: true, Source: "`/proc/stat`; with cgroup v1 `cpuacct.usage_percpu` of the root",
		sample: func(s *Sample, tell Tell) { eachCPU(s.Host.EachCPU, tell) },
		Help:   "Time for which each CPU was busy."},
}

// databaseRows are of groups whose database is asked.
var databaseRows = []Row{
	{Name: "bulkhead_group_work_total", Part: Databases, Kind: metrics.Counter, Labels: []string{"counter"},
		Source: "the database", group: func(_ *Sample, g *Group, tell Tell) {
			if g.Work != nil && g.Work.Counter != "" {
				tell(float64(g.Work.Done), g.Work.Counter)
			}
		}, Help: "What the group's database has done, by its own counter."},
	{Name: StatementCalls, Part: Databases, Kind: metrics.Counter, Labels: []string{"up_to"}, Recorded: true,
		Source: "the database", group: statements(func(s *Statements) float64 { return float64(s.Calls) }),
		Help: "Statements that took no longer than so many seconds, and longer than those of the bucket before."},
	{Name: StatementSeconds, Part: Databases, Kind: metrics.Counter, Labels: []string{"up_to"}, Recorded: true,
		Source: "the database", group: statements(func(s *Statements) float64 { return s.Took.Seconds() }),
		Help: "Time that these statements took together."},
}

// The metrics that the response times of a database are in.
const (
	StatementCalls   = "bulkhead_group_statement_calls_total"
	StatementSeconds = "bulkhead_group_statement_seconds_total"
)

var networkRows = []Row{
	{Name: "bulkhead_group_network_bytes_total", Part: Network, Kind: metrics.Counter, Labels: []string{"direction"},
		Source: "BPF programs on the group's directory", group: networkBytes,
		Help: "Bytes that the group sent (egress) and received (ingress) over all interfaces."},
	{Name: "bulkhead_group_network_dropped_total", Part: Network, Kind: metrics.Counter,
		Labels: []string{"device", "direction"}, Source: "classes of the interface",
		group: interfaces(func(on *metrics.InterfaceTraffic) float64 { return float64(on.Drops) }),
		Help:  "Packets that were dropped on an interface because of the group's limits."},
	{Name: "bulkhead_group_network_backlog_bytes", Part: Network, Kind: metrics.Gauge, Recorded: true,
		Labels: []string{"device", "direction"}, Source: "classes of the interface",
		group: interfaces(func(on *metrics.InterfaceTraffic) float64 { return float64(on.Backlog) }),
		Help:  "Bytes of the group that wait on an interface."},
}

var limitRows = []Row{
	{Name: "bulkhead_group_limits_not_in_force", Part: Limits, Kind: metrics.Gauge,
		Source: "the agent's last full look", group: notInForce,
		Help: "Limits of the group that the host does not hold as asked."},
	{Name: "bulkhead_group_limit", Part: Limits, Kind: metrics.Gauge, Labels: []string{"knob", "device"},
		Source: "the policy in force, with overrides and windows",
		group:  limits(func(l *Limit) *float64 { return l.Asked }),
		Help: "What is asked for a limit of the group in base units: cores, bytes, bytes or operations per second, " +
			"seconds, weights. No figure is no limit, or no number."},
	{Name: "bulkhead_group_limit_held", Part: Limits, Kind: metrics.Gauge, Labels: []string{"knob", "device"},
		Source: "files of the kernel, at the agent's last full look",
		group:  limits(func(l *Limit) *float64 { return l.Held }),
		Help:   "What the kernel holds for that limit, in the same unit."},
	{Name: "bulkhead_group_overrides", Part: Limits, Kind: metrics.Gauge, Recorded: true,
		Source: "the agent's last full look",
		group:  func(_ *Sample, g *Group, tell Tell) { tell(float64(g.Overrides)) },
		Help:   "Overrides of the group that people have set and that are in force."},
	{Name: "bulkhead_host_window_open", Part: Limits, Kind: metrics.Gauge, Labels: []string{"window"}, Recorded: true,
		Source: "the agent's last full look", sample: func(s *Sample, tell Tell) {
			for _, name := range s.Windows {
				tell(1, name)
			}
		}, Help: "1 while this schedule of the policy is open."},
}

// sloRows say what databases are promised.
var sloRows = []Row{
	sloRow("target", metrics.Gauge, func(s *api.SLO) *float64 { return &s.Target },
		"What the group's database is promised: seconds of p95 and heartbeat, a part of its time of waits, units of "+
			"work in a second."),
	sloRow("value", metrics.Gauge, func(s *api.SLO) *float64 { return s.Value },
		"What that was at the agent's last look, in the same unit."),
	sloRow("slack", metrics.Gauge, func(s *api.SLO) *float64 { return s.Slack },
		"How far the value is from the target, as a part of it; below 0 the target is missed."),
	sloRow("windows_total", metrics.Counter, func(s *api.SLO) *float64 { return new(float64(s.Windows)) },
		"Windows of 5 s whose value was known."),
	sloRow("missed_total", metrics.Counter, func(s *api.SLO) *float64 { return new(float64(s.Missed)) },
		"Those of them in which the target was missed at one look or more."),
	sloRow("held", metrics.Gauge, func(s *api.SLO) *float64 { return new(float64(len(s.Held))) },
		"Limits of other groups that are lowered for it."),
	sloRow("held_end_seconds", metrics.Gauge, held,
		"When the last of these groups of which that is known would end, as Unix time."),
}

// sloRow is a row of what is promised. How often and how far it went is for the record.
func sloRow(name string, kind metrics.Kind, value func(*api.SLO) *float64, help string) Row {
	return Row{Name: "bulkhead_group_slo_" + name, Part: Limits, Kind: kind, Labels: []string{"signal"},
		Recorded: kind == metrics.Counter || strings.HasPrefix(name, "held"),
		Source:   "the policy, and the agent's loop", group: promised(value), Help: help}
}

var agentRows = []Row{
	{Name: "bulkhead_agent_cpu_seconds_total", Part: OfAgent, Kind: metrics.Counter, Source: "getrusage(2)",
		sample: one(func(s *Sample) float64 { return s.Agent.CPU.Seconds() }), Help: "CPU time of the agent."},
	{Name: "bulkhead_agent_resident_bytes", Part: OfAgent, Kind: metrics.Gauge, Source: "`/proc/PID/status`",
		sample: one(func(s *Sample) float64 { return float64(s.Agent.Memory) }), Help: "Resident memory of the agent."},
	{Name: "bulkhead_agent_start_time_seconds", Part: OfAgent, Kind: metrics.Gauge, Source: "the agent",
		sample: one(func(s *Sample) float64 { return float64(s.Agent.Since.UnixNano()) / float64(time.Second) }),
		Help:   "When the agent started, as Unix time."},
	{Name: "bulkhead_agent_policy_revision", Part: OfAgent, Kind: metrics.Gauge, Source: "the agent",
		sample: one(func(s *Sample) float64 { return float64(s.Revision) }),
		Help:   "Revision of the applied policy; 0 when none is applied or everything is released."},
	{Name: "bulkhead_agent_failing", Part: OfAgent, Kind: metrics.Gauge, Source: "the agent",
		sample: one(func(s *Sample) float64 {
			if s.Agent.Error != "" {
				return 1
			}
			return 0
		}), Help: "1 while the agent cannot put everything right; `bulkhead status` says why."},
	agentCount("looks", "Looks of the agent at the host.", func(a *Agent) int64 { return a.Looks }),
	agentCount("moved", "Processes that the agent moved into their groups.", func(a *Agent) int64 { return a.Moved }),
	agentCount("repaired", "Values that the agent put back after somebody else changed them.",
		func(a *Agent) int64 { return a.Repaired }),
	agentCount("events", "Events of processes that the kernel told the agent.",
		func(a *Agent) int64 { return a.Events }),
	agentCount("events_lost", "Events that were lost; each loss was answered by a look at every process.",
		func(a *Agent) int64 { return a.Lost }),
	{Name: "bulkhead_agent_placement_slowest_seconds", Part: OfAgent, Kind: metrics.Gauge, Source: "the agent",
		sample: slowest, Help: "Longest time that a process waited for its group since the agent started."},
	{Name: "bulkhead_agent_sample_duration_seconds", Part: OfAgent, Kind: metrics.Gauge, Source: "the agent",
		sample: one(func(s *Sample) float64 { return s.Took.Seconds() }), Help: "How long it took to take the sample."},
	{Name: "bulkhead_agent_samples_skipped_total", Part: OfAgent, Kind: metrics.Counter, Source: "the agent",
		sample: one(func(s *Sample) float64 { return float64(s.Skipped) }),
		Help:   "Readings of collectors that did not begin because the one before had not ended."},
	{Name: "bulkhead_agent_trials", Part: OfAgent, Kind: metrics.Gauge, Labels: []string{"kind"}, Source: "the agent",
		sample: trials, Help: "1 while the policy's guard watches a change (guard), or one waits to be confirmed " +
			"(confirm)."},
	agentCount("undone", "Changes on trial that were undone.", func(a *Agent) int64 { return a.Undone }),
	collectorRow("age_seconds", "Time from the last reading of a collector to the sample.",
		func(s *Sample, c *Reading) float64 { return c.Age.Seconds() }),
	collectorRow("duration_seconds", "How long its last reading took, by the clock.",
		func(_ *Sample, c *Reading) float64 { return c.Took.Seconds() }),
	collectorRow("interval_seconds", "Time between two readings of a collector.",
		func(_ *Sample, c *Reading) float64 { return c.Every.Seconds() }),
	collectorRow("skipped_total", "Readings that did not begin because the one before had not ended.",
		func(_ *Sample, c *Reading) float64 { return float64(c.Skipped) }),
}

// collectorRow is a row with a figure of each collector that is on.
func collectorRow(name, help string, value func(*Sample, *Reading) float64) Row {
	r := Row{Name: "bulkhead_collector_" + name, Part: OfAgent, Kind: metrics.Gauge, Labels: []string{"collector"},
		Source: "the agent", Help: help, sample: func(s *Sample, tell Tell) {
			for i := range s.Collectors {
				c := &s.Collectors[i]
				tell(value(s, c), string(c.Name))
			}
		}}
	if strings.HasSuffix(name, "_total") {
		r.Kind = metrics.Counter
	}
	return r
}

// Own are the metrics of who shows a sample. They are of no sample.
var Own = []Row{
	{Name: "bulkhead_up", Kind: metrics.Gauge, Source: "`serve`",
		Help: "1 while the agent answers with a sample that is not too old."},
	{Name: "bulkhead_sample_age_seconds", Kind: metrics.Gauge, Source: "`serve`",
		Help: "Time since the last sample that was got was complete."},
	{Name: "bulkhead_series_dropped_total", Kind: metrics.Counter, Source: "`serve`",
		Help: "Figures that answers lacked because there were too many."},
	{Name: "bulkhead_build_info", Kind: metrics.Gauge, Source: "`serve`", Labels: []string{"version"},
		Help: "The version of this program."},
}
