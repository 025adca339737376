package observe

import (
	"strings"

	"bulkhead/internal/metrics"
)

// hostRows are the metrics of the host, without those of devices. Most show a figure as its collector reads it.
var hostRows = []Row{
	{Name: "bulkhead_host_cpus", Part: Stat, Kind: metrics.Gauge, Source: "`/sys/devices/system/cpu/online`",
		sample: hostCPUs, Help: "CPUs that are online."},
	{Name: "bulkhead_host_cpu_seconds_total", Part: Stat, Kind: metrics.Counter, Labels: []string{"state"},
		Source: "`/proc/stat`", sample: hostCPU, Help: "Time of all CPUs, busy and idle; waiting for a disk is idle."},
	{Name: "bulkhead_host_tasks_blocked", Part: Stat, Kind: metrics.Gauge, Source: "`/proc/stat`",
		sample: one(func(s *Sample) float64 { return float64(s.Host.Blocked) }),
		Help:   "Threads of the host in uninterruptible sleep."},
	figures(Stat, "context_switches_total", "`/proc/stat`", "Switches of all CPUs from one thread to another."),
	figures(Stat, "forks_total", "`/proc/stat`", "Processes and threads that were made."),
	figures(Stat, "interrupts_total", "`/proc/stat`", "Interrupts of all CPUs."),
	{Name: "bulkhead_host_load1", Part: LoadAverage, Kind: metrics.Gauge, Source: "`/proc/loadavg`",
		sample: one(func(s *Sample) float64 { return s.Host.Load }), Help: "Load average of the host over one minute."},
	{Name: "bulkhead_host_memory_bytes", Part: MemInfo, Kind: metrics.Gauge, Labels: []string{"kind"},
		Source: "`/proc/meminfo`", sample: hostMemory, Help: "Memory of the host by kind; the kinds overlap."},
	figures(MemInfoNodes, "numa_memory_bytes", "`/sys/devices/system/node/node*/meminfo`",
		"Memory of a NUMA node by kind; the kinds overlap.", "node", "kind"),
	figures(VMStat, "vm_events_total", "`/proc/vmstat`", "What memory management did, by the kernel's names for it.",
		"event"),
	figures(NetStat, "tcp_events_total", "`/proc/net/snmp`, `/proc/net/netstat`",
		"What TCP did: retransmitted segments, resets, and connections that a full queue of a listener refused.",
		"event"),
	figures(NetStat, "tcp_connections", "`/proc/net/snmp`", "TCP connections that are established."),
	figures(Files, "files", "`/proc/sys/fs/file-nr`", "Open files of the host."),
	figures(Files, "files_limit", "`/proc/sys/fs/file-nr`", "How many files may be open: fs.file-max."),
	figures(Clock, "time_seconds", "clock_gettime(2)", "Time of the host's clock, as Unix time."),
	figures(Kernel, "info", "uname(2)", "1; the kernel release and the architecture are labels.",
		"release", "machine"),
}

// hostDeviceRows are the metrics of the host's devices, of which it may have thousands.
var hostDeviceRows = []Row{
	figures(FileSystems, "filesystem_bytes", "statfs(2)",
		"Size of a file system, what is free, and what is free for others than root.", "mount", "kind"),
	figures(FileSystems, "filesystem_files", "statfs(2)", "Inodes of a file system, and those that are free.",
		"mount", "kind"),
	figures(NetDev, "network_bytes_total", "`/proc/net/dev`", "Bytes that an interface sent and received.",
		"device", "direction"),
	figures(NetDev, "network_packets_total", "`/proc/net/dev`", "Packets that an interface sent and received.",
		"device", "direction"),
	figures(NetDev, "network_errors_total", "`/proc/net/dev`", "Packets that were lost or damaged.",
		"device", "direction"),
	figures(NetDev, "network_dropped_total", "`/proc/net/dev`", "Packets that were dropped for want of room.",
		"device", "direction"),
	figures(DiskStats, "disk_bytes_total", "`/proc/diskstats`", "Bytes read from and written to a block device.",
		"device", "direction"),
	figures(DiskStats, "disk_operations_total", "`/proc/diskstats`", "Requests that a block device has completed.",
		"device", "direction"),
	figures(DiskStats, "disk_operation_seconds_total", "`/proc/diskstats`",
		"Time that these requests took, in the queue too; over the requests it is their latency.",
		"device", "direction"),
	figures(DiskStats, "disk_busy_seconds_total", "`/proc/diskstats`",
		"Time in which a block device had a request at all.", "device"),
	figures(DiskStats, "disk_requests", "`/proc/diskstats`", "Requests that a block device has not completed.",
		"device"),
}

// figures is a row that shows the figures of one name as they were read. One whose name ends in _total is a counter.
func figures(part Part, name, source, help string, labels ...string) Row {
	short, counter := strings.CutSuffix(name, "_total")
	r := Row{Name: "bulkhead_host_" + name, Part: part, Kind: metrics.Gauge, Labels: labels, Source: source,
		Help: help, sample: func(s *Sample, tell Tell) {
			for i := range s.Host.Figures {
				if f := &s.Host.Figures[i]; f.Name == short {
					tell(f.Value, f.Labels...)
				}
			}
		}}
	if counter {
		r.Kind = metrics.Counter
	}
	return r
}
