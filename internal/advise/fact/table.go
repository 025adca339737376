package fact

// Table is every fact, by scope and then by area.
var Table = []Row{
	{"host.kernel", Text, "", "/proc/sys/kernel/osrelease", "release of the kernel"},
	{"host.nodes", Number, "", "/sys/devices/system/node", "NUMA nodes"},
	{"host.memory", Number, Bytes, "/proc/meminfo MemTotal", "memory of the machine"},
	{"host.swap", Number, Bytes, "/proc/meminfo SwapTotal", "swap space"},
	{"host.commit_limit", Number, Bytes, "/proc/meminfo CommitLimit", "most memory that may be promised in mode 2"},
	{"host.committed", Number, Bytes, "/proc/meminfo Committed_AS", "memory that was promised to processes"},
	{"host.page_tables", Number, Bytes, "/proc/meminfo PageTables", "memory that page tables take"},
	{"host.page_tables_percent", Number, Percent, "/proc/meminfo", "share of memory that page tables take"},
	{"host.huge_pages", Number, "", "/proc/meminfo HugePages_Total", "pages in the pool of the default size"},
	{"host.huge_pages_idle", Number, "", "/proc/meminfo HugePages_Free - HugePages_Rsvd",
		"huge pages that nobody uses or has reserved"},
	{"host.huge_pages_idle_bytes", Number, Bytes, "/proc/meminfo", "memory in huge pages that nobody uses"},
	{"host.buffers_together", Number, Bytes, "sum over instances", "known main buffers of all instances together"},
	{"host.buffers_known", Flag, "", "sum over instances", "yes where the buffer of every instance could be read"},
	{"host.buffers_percent", Number, Percent, "sum over instances", "share of the host's memory that they are"},

	{"host.swappiness", Number, "", "/proc/sys/vm/swappiness",
		"cost of swapping beside that of reading files, 0 to 200"},
	{"host.overcommit", Number, "", "/proc/sys/vm/overcommit_memory", "0 heuristic, 1 always, 2 up to CommitLimit"},
	{"host.thp", Text, "", "/sys/kernel/mm/transparent_hugepage/enabled", "transparent huge pages"},
	{"host.thp_defrag", Text, "", "/sys/kernel/mm/transparent_hugepage/defrag",
		"what a page fault does to get a huge page"},
	{"host.thp_none", Number, "", "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none",
		"unused small pages that may become part of a huge page"},
	{"host.zone_reclaim", Number, "", "/proc/sys/vm/zone_reclaim_mode", "whether a node frees its own memory first"},
	{"host.numa_balancing", Number, "", "/proc/sys/kernel/numa_balancing", "whether pages follow tasks between nodes"},
	{"host.max_map_count", Number, "", "/proc/sys/vm/max_map_count", "most mappings of one process"},
	{"host.panic_on_oom", Number, "", "/proc/sys/vm/panic_on_oom", "whether the kernel panics when memory runs out"},
	{"host.psi", Flag, "", "/proc/pressure", "whether the kernel measures pressure (PSI)"},
	{"host.ksm", Number, "", "/sys/kernel/mm/ksm/run", "whether equal pages are merged (KSM)"},

	{"host.governors", List, "", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "frequency governors in use"},
	{"host.clocksource", Text, "", "/sys/devices/system/clocksource/clocksource0/current_clocksource",
		"what the kernel reads the time from"},
	{"host.autogroup", Number, "", "/proc/sys/kernel/sched_autogroup_enabled", "whether CPU time is shared by session"},
	{"host.tuned_profile", Text, "", "/etc/tuned/active_profile", "profile of TuneD in force"},
	{"host.cmdline_elevator", Flag, "", "/proc/cmdline", "whether elevator= is an argument of the kernel"},
	{"host.cgroups", Text, "", "/proc/self/mountinfo", "v1, hybrid or v2"},
	{"host.hung_tasks", Number, "", "/proc/sys/kernel/hung_task_detect_count", "tasks found hung since boot (6.13)"},

	{"host.somaxconn", Number, "", "/proc/sys/net/core/somaxconn", "longest queue of connections to accept"},
	{"host.keepalive", Number, "s", "/proc/sys/net/ipv4/tcp_keepalive_time", "idle time before the first keepalive"},
	{"host.port_low", Number, "", "/proc/sys/net/ipv4/ip_local_port_range", "first port of outgoing connections"},
	{"host.port_high", Number, "", "/proc/sys/net/ipv4/ip_local_port_range", "last port of outgoing connections"},
	{"host.reserved_ports", Text, "", "/proc/sys/net/ipv4/ip_local_reserved_ports",
		"ports kept from outgoing connections"},
	{"host.conntrack_percent", Number, Percent, "/proc/sys/net/netfilter/nf_conntrack_count, _max",
		"how full the table of connections is"},
	{"host.aio_percent", Number, Percent, "/proc/sys/fs/aio-nr, aio-max-nr",
		"how much of the asynchronous I/O is taken"},
	{"host.aio_max", Number, "", "/proc/sys/fs/aio-max-nr", "most requests of asynchronous I/O together"},
	{"host.io_uring_disabled", Number, "", "/proc/sys/kernel/io_uring_disabled",
		"0 for all, 1 for some, 2 for nobody (6.6)"},

	{"disk.scheduler", Text, "", "/sys/block/DISK/queue/scheduler", "the scheduler in force"},
	{"disk.kind", Text, "", "name of the device", "nvme, virtual, scsi, raid, mapper or other"},
	{"disk.rotational", Flag, "", "/sys/block/DISK/queue/rotational",
		"whether the kernel takes it for a spinning disk"},
	{"disk.databases", List, "", "open files and options", "instances that keep files on it"},
	{"disk.raid_level", Text, "", "/sys/block/DISK/md/level", "level of a software RAID; none elsewhere"},
	{"disk.raid_missing", Number, "", "/sys/block/DISK/md/degraded", "members that a software RAID lacks"},
	{"disk.wal_and_data", List, "", "open files and options", "instances with data and redo log on it"},

	{"mount.type", Text, "", "/proc/self/mountinfo", "type of the file system"},
	{"mount.options", List, "", "/proc/self/mountinfo", "options in force, of the mount and of the file system"},
	{"mount.listed_options", List, "", "/etc/fstab", "options at the next mount; none where it is not listed"},
	{"mount.listed_source", Text, "", "/etc/fstab", "the device as it is listed; none where it is not listed"},
	{"mount.databases", List, "", "open files and options", "instances that keep files on it"},

	{"instance.engine", Text, "", "process", "the engine, or its flavour: mariadb, percona, valkey"},
	{"instance.version", Text, "", "process, data directory", "its version"},
	{"instance.port", Number, "", "listening sockets", "its main TCP port"},
	{"instance.open_files", Number, "", "/proc/PID/limits", "open files that its process may have"},
	{"instance.swapped", Number, Bytes, "/proc/PID/status VmSwap", "memory of its main process that is swapped out"},
	{"instance.oom_score_adj", Number, "", "/proc/PID/oom_score_adj", "-1000 never killed, 1000 killed first"},
	{"instance.thp_off", Flag, "", "/proc/PID/status THP_enabled", "whether it switched huge pages off for itself"},
	{"instance.buffer", Number, Bytes, "option files and arguments", "its main buffer as configured"},
	{"instance.fsync", Flag, "", "option files and arguments", "whether PostgreSQL waits until the disk has it"},
	{"instance.full_page_writes", Flag, "", "option files and arguments", "whether PostgreSQL logs whole pages"},
	{"instance.huge_pages", Text, "", "option files and arguments", "huge_pages of PostgreSQL"},
	{"instance.io_method", Text, "", "option files and arguments", "io_method of PostgreSQL (18)"},
	{"instance.doublewrite", Flag, "", "option files and arguments", "innodb_doublewrite"},
	{"instance.data_type", Text, "", "/proc/PID/mountinfo", "type of the file system that holds its data"},
	{"instance.data_read_ahead", Number, "KiB", "/sys/block/DISK/queue/read_ahead_kb",
		"read-ahead of the device right below its data"},
	{"instance.data_on_root", Flag, "", "/proc/PID/mountinfo, /sys/dev/block", "whether data and / share a disk"},
}

// Find returns the row of a fact.
func Find(name string) (Row, bool) {
	r, ok := byName[name]
	return r, ok
}

var byName = func() map[string]Row {
	rows := make(map[string]Row, len(Table))
	for _, r := range Table {
		rows[r.Name] = r
	}
	return rows
}()
