//go:build root

package advice

import (
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fault is what is planted, and how it must be found.
type fault struct {
	what string
	// The finding: the rule, on what ("" is the host), and what its evidence holds: a part of a value, and a part of
	// where that was read.
	rule, on, value, from string
	file, good, bad       string // of a file of the kernel: itself, its value before, and the planted one
	tuned                 bool   // tune is to put it right
	always                bool   // the machine is made with it: it is found before, too
}

// knob is a fault of a file of the kernel that tune puts right.
func knob(what, rule, on, file, good, bad string) fault {
	return fault{what: what, rule: rule, on: on, value: bad, from: file, file: file, good: good, bad: bad, tuned: true}
}

// sysctl is one by the name of a sysctl.
func sysctl(rule, on, name, good, bad string) fault {
	return knob(name+" = "+bad, rule, on, "/proc/sys/"+strings.ReplaceAll(name, ".", "/"), good, bad)
}

const (
	thp    = "/sys/kernel/mm/transparent_hugepage/"
	queue  = "/sys/block/vdh/queue/"
	clocks = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
)

// shown gives a fault another text as its evidence; byHand is of one whose file tune leaves to the person.
func (f fault) shown(value string) fault { f.value = value; return f }
func (f fault) byHand() fault            { f.tuned = false; return f }

// faults are all that are planted.
var faults = []fault{
	sysctl("MEM-01", "mysql3306", "vm.swappiness", "1", "60"),
	sysctl("MEM-10", "redis6379", "vm.overcommit_memory", "1", "0"),
	knob("transparent huge pages always", "MEM-12", "postgresql5433", thp+"enabled", "madvise", "always"),
	knob("huge pages at a page fault", "MEM-13", "", thp+"defrag", "madvise", "always"),
	knob("huge pages of shared memory", "MEM-16", "", thp+"shmem_enabled", "never", "within_size"),
	sysctl("MEM-28", "", "vm.zone_reclaim_mode", "0", "1"),
	sysctl("MEM-37", "", "vm.panic_on_oom", "0", "1"),
	knob("equal pages are merged (KSM)", "MEM-44", "", "/sys/kernel/mm/ksm/run", "0", "1"),
	sysctl("MEM-35", "", "vm.vfs_cache_pressure", "100", "0"),
	sysctl("MEM-26", "", "vm.min_free_kbytes", "16384", "131072").shown("6 %").byHand(),
	sysctl("MEM-07", "postgresql5433", "vm.dirty_background_bytes", "67108864", "2147483648").shown("2 GiB"),
	sysctl("MEM-08", "postgresql5433", "vm.dirty_bytes", "536870912", "8589934592").shown("8 GiB"),
	sysctl("NET-01", "", "net.core.somaxconn", "4096", "128"),
	{what: "a queue of 511 with net.core.somaxconn = 128", rule: "NET-12", on: "redis6379", value: "511",
		from: "the server"},
	sysctl("NET-02", "", "net.ipv4.tcp_max_syn_backlog", "4096", "128"),
	// tune sets another file, net.ipv4.ip_local_reserved_ports.
	sysctl("NET-05", "mysql3306", "net.ipv4.ip_local_port_range", "32768\t60999", "1024\t65000").
		shown("1024").byHand(),
	{what: "connections dropped from a full queue", rule: "NET-03", value: "", from: "ListenOverflows"},
	sysctl("LIM-05", "", "fs.file-max", "200000", "8192"),
	sysctl("LIM-11", "", "kernel.pid_max", "4194304", "8192"),
	{what: "asynchronous I/O at 90 %", rule: "LIM-04", value: "%", from: "/proc/sys/fs/aio-nr", tuned: true},
	sysctl("CPU-05", "postgresql5433", "kernel.sched_autogroup_enabled", "0", "1"),
	knob("a slow clock", "CPU-04", "", clocks, "tsc", "hpet"),
	{what: "a profile of TuneD", rule: "CPU-19", value: "throughput-performance", from: "/etc/tuned/active_profile"},
	sysctl("NET-07", "", "net.ipv4.tcp_slow_start_after_idle", "0", "1"),
	sysctl("LIM-09", "redis6379", "kernel.core_pattern", "|/bin/false", "core").byHand(),
	knob("tasks are moved early", "CPU-06", "postgresql5433", "/sys/kernel/debug/sched/migration_cost_ns", "5000000",
		"500000").shown("").byHand(),
	{what: "mitigations=off", rule: "CPU-16", value: "", from: "/sys/devices/system/cpu/vulnerabilities", always: true},
	{what: "elevator= on the kernel command line", rule: "IO-02", value: "yes", from: "/proc/cmdline", always: true},
	{what: "200 MiB of huge pages that nobody uses", rule: "MEM-21", value: "", from: "HugePages_Free"},
	{what: "huge pages on one node alone", rule: "MEM-23", value: "0",
		from: "/sys/devices/system/node/node*/hugepages"},

	{what: "a buffer pool larger than a node", rule: "MEM-30", on: "mysql3306", value: "1.8 GiB", from: "the server"},
	{what: "buffers larger than the memory", rule: "MEM-45", value: "%", from: "mysql3306 1.8 GiB (the server"},
	{what: "footprints larger than the memory", rule: "MEM-49", value: "%", from: "mysql3306"},
	{what: "a group smaller than the buffer pool", rule: "MEM-39", on: "mysql3306", value: "300 MiB",
		from: "mariadb.service/memory.max"},
	{what: "large_pages without a pool", rule: "MEM-19", on: "mysql3306", value: "0 bytes", from: "HugetlbPages"},
	{what: "large_pages, and little memory may be locked", rule: "LIM-03", on: "mysql3306", value: "",
		from: "Max locked memory"},
	{what: "a pool of huge pages smaller than what wants it", rule: "MEM-47", value: "1089", // of 2 MiB, of 1189
		from: "mysql3306 1034"},
	{what: "memory of a database in swap", rule: "MEM-04", on: "mysql3306", value: "iB", from: "VmSwap"},
	{what: "the OOM killer takes the database first", rule: "MEM-36", on: "mysql3306", value: "0",
		from: "oom_score_adj"},
	{what: "512 open files", rule: "LIM-01", on: "mysql3306", value: "512", from: "Max open files"},
	{what: "fewer files than the settings need", rule: "LIM-10", on: "mysql3306", value: "512", from: "Max open files"},
	{what: "fewer tasks than connections", rule: "LIM-12", on: "mysql3306", value: "100",
		from: "mariadb.service/pids.max"},
	{what: "limits of PAM for a service", rule: "LIM-07", on: "mysql3306", value: "mysql.conf",
		from: "/etc/security/limits.conf"},
	{what: "30 s to stop", rule: "OPS-05", on: "mysql3306", value: "30 s", from: "mariadb.service TimeoutStopSec",
		tuned: true},
	{what: "systemd-oomd may kill it", rule: "OPS-04", on: "mysql3306", value: "mariadb.service",
		from: "ManagedOOMMemoryPressure", tuned: true},
	{what: "a unit with MemoryLimit=", rule: "OPS-12", value: "planted.slice", from: "/etc/systemd/system"},
	{what: "upgraded without asking", rule: "OPS-06", on: "mysql3306", value: "yes", from: "/etc/apt/apt.conf.d"},
	{what: "innodb_doublewrite off", rule: "ZFS-11", on: "mysql3306", value: "no", from: "the server"},
	{what: "innodb_flush_log_at_trx_commit = 2", rule: "OPS-22", on: "mysql3306", value: "2", from: "the server"},
	{what: "sync_binlog = 0, set while it ran", rule: "OPS-23", on: "mysql3306", value: "0", from: "the server"},
	{what: "data beside the operating system", rule: "IO-19", on: "mysql3306", value: "yes", from: "/var/lib/mysql",
		always: true},

	{what: "fsync off", rule: "OPS-20", on: "postgresql5433", value: "no", from: "/mnt/raid/pg/postgresql.conf"},
	{what: "full_page_writes off", rule: "OPS-21", on: "postgresql5433", value: "no",
		from: "/mnt/raid/pg/postgresql.conf"},
	{what: "its user is no system user", rule: "MEM-42", on: "postgresql5433", value: "yes", from: "logind"},
	{what: "RAID 5", rule: "IO-14", on: "md5", value: "raid5", from: "/sys/block/md5/md/level"},
	{what: "RAID 5 without a disk", rule: "IO-15", on: "md5", value: "1", from: "/sys/block/md5/md/degraded"},
	{what: "redo log beside data on a spinning disk", rule: "IO-18", on: "md5", value: "postgresql5433",
		from: "files of the instances"},

	{what: "Redis without maxmemory", rule: "MEM-50", on: "redis6379", value: "no", from: "the server"},
	knob("scheduler bfq on a virtual disk", "IO-01", "vdh", queue+"scheduler", "none", "bfq"),
	knob("a virtual disk as a spinning one", "IO-05", "vdh", queue+"rotational", "0", "1").shown("yes"),
	knob("16 requests in a queue", "IO-04", "vdh", queue+"nr_requests", "256", "16").byHand(),
	knob("requests are not merged", "IO-06", "vdh", queue+"nomerges", "0", "2"),
	knob("any CPU finishes a request", "IO-07", "vdh", queue+"rq_affinity", "1", "0"),
	knob("a disk is not counted", "IO-10", "vdh", queue+"iostats", "1", "0").shown("no").byHand(),
	{what: "a partition at sector 63", rule: "IO-16", on: "vdh", value: "vdh1", from: "/sys/block/vdh"},
	{what: "nobarrier", rule: "FS-02", on: "/mnt/odd", value: "nobarrier", from: "/proc/self/mountinfo", tuned: true},
	{what: "data=writeback", rule: "FS-03", on: "/mnt/odd", value: "data=writeback", from: "/proc/self/mountinfo"},
	{what: "discard", rule: "IO-13", on: "/mnt/odd", value: "discard", from: "/proc/self/mountinfo", tuned: true},
	{what: "strictatime", rule: "FS-01", on: "/mnt/odd", value: "rw", from: "/proc/self/mountinfo", tuned: true},
	{what: "a file system that is nearly full", rule: "FS-06", on: "/mnt/odd", value: "%", from: "statfs of /mnt/odd"},
	{what: "/dev/vdh1 in fstab", rule: "FS-12", on: "/mnt/odd", value: "/dev/vdh1", from: "/etc/fstab:"},
	{what: "ext4 that goes on after an error", rule: "FS-11", on: "/mnt/odd", value: "continue",
		from: "/proc/fs/ext4", tuned: true},
	{what: "5 % kept for root", rule: "FS-13", on: "/mnt/raid", value: "5 %", from: "/mnt/raid"},
	{what: "XFS of version 4", rule: "FS-10", on: "/mnt/xfs", value: "yes", from: "/mnt/xfs"},
	{what: "a snapshot of LVM", rule: "IO-20", on: "/mnt/data", value: "yes", from: "/sys/"},
	{what: "nobarrier for XFS in fstab", rule: "FS-04", on: "/mnt/xfs", value: "nobarrier", from: "/etc/fstab:"},

	{what: "data in memory", rule: "FS-09", on: "redis6381", value: "tmpfs", from: "/dev/shm/redis"},
	{what: "stopped by a limit of CPU", rule: "CPU-12", on: "redis6380", value: "%",
		from: "planted-small.service/cpu.stat"},
	{what: "killed at the limit of its group", rule: "MEM-38", on: "redis6380", value: "1",
		from: "planted-small.service/memory.events"},
	{what: "a process killed for lack of memory", rule: "MEM-27", value: "", from: "/proc/vmstat oom_kill"},
	{what: "CPUs of a node whose memory it may not use", rule: "CPU-13", on: "redis6380", value: "yes",
		from: "Mems_allowed_list"},
}

// dsn are how bulkhead asks the servers that are asked. The others' settings come from files.
var dsn = []string{"mysql3306=mysql://root@localhost/?socket=/run/mysqld/mysqld.sock",
	"redis6379=redis://127.0.0.1:6379"}

// setupAIO is io_setup(2).
func setupAIO(requests uintptr, ctx *uintptr) error {
	if _, _, errno := syscall.RawSyscall(unix.SYS_IO_SETUP, requests, uintptr(unsafe.Pointer(ctx)), 0); errno != 0 {
		return errno
	}
	return nil
}
