package gather

const (
	sysctls = "proc/sys/"
	sda     = "sys/devices/pci0000:00/0000:00:17.0/ata1/host1/target1:0:0/1:0:0:0/block/sda/"
	sdb     = "sys/devices/pci0000:00/0000:00:17.0/ata2/host2/target2:0:0/2:0:0:0/block/sdb/"
	groups  = "sys/fs/cgroup/db.slice/"
	huge    = "sys/kernel/mm/transparent_hugepage/"
)

// planted are faults, each with the files that make it, the rules that must find it, and a value that is evidence.
var planted = []struct {
	files    []string
	rules    []string
	evidence string
}{
	{[]string{sysctls + "vm/swappiness", "60\n"},
		[]string{"MEM-01 mongodb27017 mysql3306 oracle-BX1 postgresql5432"}, "60"},
	{[]string{sysctls + "vm/overcommit_memory", "2\n"}, []string{"MEM-10 mysql3306 oracle-BX1"}, "2"},
	{[]string{huge + "enabled", "[always] madvise never\n"}, []string{"MEM-12 mysql3306 postgresql5432"}, "always"},
	{[]string{huge + "defrag", "[always] defer madvise never\n"}, []string{"MEM-13"}, "always"},
	{[]string{huge + "hugepages-64kB/enabled", "[always] inherit never\n"}, []string{"MEM-15"}, "64kB"},
	{[]string{huge + "shmem_enabled", "always [within_size] never\n"}, []string{"MEM-16"}, "within_size"},
	{[]string{sysctls + "vm/dirty_background_bytes", "0\n", sysctls + "vm/dirty_background_ratio", "10\n"},
		[]string{"MEM-07 mongodb27017 postgresql5432"}, "6 GiB"},
	{[]string{sysctls + "vm/dirty_bytes", "0\n", sysctls + "vm/dirty_ratio", "20\n"},
		[]string{"MEM-08 postgresql5432"}, "12 GiB"},
	{[]string{sysctls + "vm/zone_reclaim_mode", "1\n"}, []string{"MEM-28"}, "1"},
	{[]string{sysctls + "kernel/numa_balancing", "1\n"}, []string{"MEM-29 oracle-BX1"}, "1"},
	{[]string{sysctls + "vm/min_free_kbytes", "13421773\n"}, []string{"MEM-26"}, "10 %"},
	{[]string{sysctls + "vm/panic_on_oom", "1\n"}, []string{"MEM-37"}, "1"},
	{[]string{sysctls + "vm/vfs_cache_pressure", "0\n"}, []string{"MEM-35"}, "0"},
	{[]string{sysctls + "kernel/shmall", "2097152\n"}, []string{"MEM-41 oracle-BX1"}, "8 GiB"},
	{[]string{"proc/vmstat", "oom_kill 3\n"}, []string{"MEM-27"}, "3"},
	{[]string{"proc/812/status", "+VmSwap:\t4194304 kB\n"}, []string{"MEM-04 mysql3306"}, "4 GiB"},
	{[]string{"proc/900/oom_score_adj", "0\n"}, []string{"MEM-36 postgresql5432"}, "0"},
	{[]string{"proc/1700/numa_maps", "55e0 default file=/x\n"}, []string{"MEM-30 mongodb27017"}, "default"},
	{[]string{"sys/devices/system/node/node0/meminfo",
		"Node 0 MemTotal:       67108864 kB\nNode 0 MemFree:        296000 kB\n",
		"sys/devices/system/node/node1/meminfo",
		"Node 1 MemTotal:       67108864 kB\nNode 1 MemFree:        27000000 kB\n"}, []string{"MEM-32"}, "40 %"},
	{[]string{"sys/kernel/mm/ksm/run", "1\n"}, []string{"MEM-44"}, "1"},
	{[]string{groups + "mysql3306.service/memory.max", "2147483648\n"}, []string{"MEM-39 mysql3306"}, "2 GiB"},
	{[]string{groups + "mysql3306.service/memory.events", "oom 5\noom_kill 4\n"}, []string{"MEM-38 mysql3306"}, "4"},
	{[]string{groups + "mysql3306.service/memory.low", "0\n"}, []string{"MEM-40 mysql3306"}, "0 bytes"},
	{[]string{groups + "postgresql.service/memory.swap.max", "max\n"}, []string{"MEM-05 postgresql5432"}, "8 GiB"},
	{[]string{groups + "postgresql.service/pids.max", "150\n"}, []string{"LIM-12 postgresql5432"}, "150"},
	{[]string{groups + "mongod.service/cpu.stat", "nr_periods 1000\nnr_throttled 400\n"},
		[]string{"CPU-12 mongodb27017"}, "40 %"},
	{[]string{"etc/mysql/my.cnf", "+innodb_buffer_pool_size = 120G\n"}, []string{"MEM-30 mysql3306"}, "120 GiB"},
	{nil, []string{"MEM-45", "MEM-49"}, " %"}, // by the same fault
	{[]string{"etc/mysql/my.cnf", "innodb_flush_log_at_trx_commit = 2\n"}, []string{"OPS-22 mysql3306"}, "2"},
	{[]string{"etc/mysql/my.cnf", "sync_binlog = 0\n"}, []string{"OPS-23 mysql3306"}, "0"},
	{[]string{"etc/mysql/my.cnf", "skip-innodb-doublewrite\ninnodb_numa_interleave = OFF\n"},
		[]string{"ZFS-11 mysql3306"}, "no"},
	{[]string{"etc/mysql/my.cnf", "large_pages = ON\n"},
		[]string{"MEM-19 mysql3306", "MEM-47", "LIM-03 mysql3306"}, ""},
	{[]string{"var/lib/postgresql/15/main/postgresql.conf", "+fsync = off\n"}, []string{"OPS-20 postgresql5432"}, "no"},
	{[]string{"var/lib/postgresql/15/main/postgresql.conf", "full_page_writes = off\n"},
		[]string{"OPS-21 postgresql5432"}, "no"},
	{[]string{"proc/812/limits", "Max open files            1024                 1024                 files\n" +
		"Max locked memory         8388608              8388608              bytes\n"},
		[]string{"LIM-01 mysql3306", "LIM-10 mysql3306"}, "1024"},
	{[]string{"proc/1700/limits", "Max open files            65535                65535                files\n" +
		"Max processes             4096                 4096                 processes\n"},
		[]string{"LIM-02 mongodb27017"}, "4096"},
	{[]string{"etc/security/limits.d/mysql.conf", "mysql soft nofile 65535\n"},
		[]string{"LIM-07 mysql3306"}, "mysql.conf"},
	{[]string{sysctls + "fs/aio-nr", "1000000\n"}, []string{"LIM-04"}, "95 %"},
	{[]string{sysctls + "fs/file-max", "8192\n"}, []string{"LIM-05"}, "8192"},
	{[]string{sysctls + "net/core/somaxconn", "64\n"}, []string{"NET-01", "NET-12 mysql3306"}, "64"},
	{[]string{sysctls + "net/ipv4/tcp_max_syn_backlog", "128\n"}, []string{"NET-02"}, "128"},
	{[]string{"proc/net/netstat", "TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 0 812\n"},
		[]string{"NET-03"}, "812"},
	{[]string{sysctls + "net/ipv4/tcp_keepalive_time", "7200\n"}, []string{"NET-04 mongodb27017"}, "7200"},
	// Other ports are reserved, and one by a range.
	{[]string{sysctls + "net/ipv4/ip_local_port_range", "1024 65000\n", sysctls + "net/ipv4/ip_local_reserved_ports",
		"3300-3310,5432,8080\n"}, []string{"NET-05 mongodb27017"}, "27017"},
	{[]string{sysctls + "net/netfilter/nf_conntrack_count", "250000\n"}, []string{"NET-09"}, "95 %"},
	{[]string{"sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave\n"}, []string{"CPU-01"}, "powersave"},
	{[]string{"sys/devices/system/cpu/cpu3/thermal_throttle/package_throttle_count", "77\n"}, []string{"CPU-17"}, "77"},
	{[]string{"sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"}, []string{"CPU-04"}, "hpet"},
	{[]string{sysctls + "kernel/sched_autogroup_enabled", "1\n"}, []string{"CPU-05 postgresql5432"}, "1"},
	{[]string{"etc/tuned/active_profile", "balanced\n"}, []string{"CPU-19"}, "balanced"},
	{[]string{"proc/cmdline", "ro elevator=noop numa=off\n"}, []string{"IO-02", "CPU-18"}, "yes"},
	{[]string{sda + "queue/scheduler", "mq-deadline kyber [bfq] none\n"}, []string{"IO-01 sda"}, "bfq"},
	{[]string{sdb + "queue/rotational", "1\n"}, []string{"IO-18 sdb"}, "mysql3306"},
	{[]string{sda + "queue/write_cache", "write through\n",
		"sys/devices/pci0000:00/0000:00:17.0/ata1/host1/target1:0:0/1:0:0:0/scsi_disk/1:0:0:0/cache_type",
		"write back\n"}, []string{"IO-08 sda"}, "write back"},
	{[]string{sdb + "sdb1/start", "63\n"}, []string{"IO-16 sdb"}, "sdb1"},
	{[]string{"proc/self/mountinfo",
		"+70 21 8:48 / /old rw,relatime shared:70 - ext4 /dev/sdd rw,nobarrier,data=writeback\n"},
		[]string{"FS-02 /old", "FS-03 /old"}, "nobarrier"},
	{[]string{"etc/fstab", "/dev/sdd /old ext4 defaults 0 2\nUUID=2 /fast xfs noatime,nobarrier 0 2\n"},
		[]string{"FS-12 /old", "FS-04 /fast"}, ""},
	{[]string{"sys/fs/selinux/enforce", "0", "proc/812/attr/current", "system_u:system_r:unconfined_service_t:s0",
		"proc/900/attr/current", "system_u:system_r:postgresql_t:s0", "proc/1500/attr/current",
		"system_u:system_r:oracle_t:s0", "proc/1700/attr/current", "system_u:system_r:mongod_t:s0"},
		[]string{"SEC-01", "SEC-07 mysql3306"}, ""},
	{[]string{"proc/900/attr/apparmor/current", "/usr/lib/postgresql (complain)\n"}, []string{"SEC-09 postgresql5432"},
		"complain"},
	{[]string{sysctls + "kernel/hung_task_detect_count", "4\n"}, []string{"OPS-07"}, "4"},
	{[]string{sysctls + "kernel/panic_on_oops", "0\n"}, []string{"OPS-08 oracle-BX1"}, "0"},
	{[]string{"proc/1700/cmdline", "/usr/bin/mongod\x00--dbpath\x00/data/db\x00--port\x0027017\x00--nojournal\x00"},
		[]string{"OPS-24 mongodb27017"}, "no"},
}
