package observe

import (
	"slices"
	"time"
)

// Part is the name of a collector, and so a kind of figures, as collect[] and `bulkhead collectors` know it.
type Part string

// The collectors of groups, of the host, and of the agent itself. Those of the host have the names that node_exporter
// gives them.
const (
	CPU          Part = "cpu"
	Pressure     Part = "pressure"
	IO           Part = "io"
	Memory       Part = "memory"
	MemoryStat   Part = "memory_stat"
	MemoryNodes  Part = "memory_numa"
	Tasks        Part = "tasks"
	Threads      Part = "threads"
	EachCPU      Part = "cpus"
	Blamed       Part = "blame"
	Network      Part = "network"
	Databases    Part = "databases"
	Limits       Part = "limits"
	OfAgent      Part = "agent"
	Stat         Part = "stat"
	LoadAverage  Part = "loadavg"
	MemInfo      Part = "meminfo"
	VMStat       Part = "vmstat"
	DiskStats    Part = "diskstats"
	NetDev       Part = "netdev"
	NetStat      Part = "netstat"
	Files        Part = "filefd"
	FileSystems  Part = "filesystem"
	MemInfoNodes Part = "meminfo_numa"
	Clock        Part = "time"
	Kernel       Part = "uname"
	ZFS          Part = "zfs"
)

// Tier is how often a collector reads. PMM has the same names for its three resolutions.
type Tier string

// The tiers.
const (
	High   Tier = "hr" // every 5 s, and every second while the host is hot
	Medium Tier = "mr" // every 10 s
	Low    Tier = "lr" // every 60 s
)

// Tiers are all tiers, the quickest first.
var Tiers = []Tier{High, Medium, Low}

// Every is the time between two readings.
func (t Tier) Every(hot bool) time.Duration {
	switch {
	case t == High && hot:
		return time.Second
	case t == High:
		return 5 * time.Second
	case t == Medium:
		return 10 * time.Second
	}
	return time.Minute
}

// Collector reads one kind of figures.
type Collector struct {
	Name Part
	Tier Tier
	// Limit is how long a reading may take, by the clock. Until one that takes longer has ended, none begins.
	Limit time.Duration
	// Budget is what a reading may use of a CPU. One that uses more three times in a row is taken half as often.
	Budget time.Duration
	Help   string
	// Asked is of one that is off until somebody switches it on by its name.
	Asked bool
}

// Collectors is the table of all collectors, in the order in which they are shown. A budget is a fifth of a percent of
// the time between two readings.
var Collectors = []Collector{
	quick(CPU, "CPU time of groups, and what their CPU limit held back"),
	quick(Pressure, "time that groups and the host waited for CPU, memory and disks"),
	quick(IO, "bytes and requests of groups on each block device"),
	usual(Memory, "memory that is charged to groups, its peak, and how often limits were reached"),
	seldom(MemoryStat, "memory of groups by kind; dear to read on large hosts"),
	seldom(MemoryNodes, "memory of groups on each NUMA node, by page size; as dear as memory_stat"),
	usual(Tasks, "threads of groups, what they do, and load averages"),
	usual(Threads, "how long threads of groups waited for a CPU, and their context switches"),
	usual(EachCPU, "CPU time of groups and of the host on each CPU, and the CPUs that groups may run on"),
	asked(usual(Blamed, "whom groups waited for (CPUs, disks); counted by BPF programs, off until asked for")),
	usual(Network, "traffic of groups, and what their limits dropped"),
	usual(Databases, "work of databases, and how long statements took; asked by the dsn of guard and slo"),
	usual(Limits, "limits of groups as asked and as held, and what databases are promised"),
	usual(OfAgent, "the agent itself, what it costs, and its collectors"),
	quick(Stat, "CPU time of the host, context switches, forks, interrupts"),
	usual(LoadAverage, "load average of the host"),
	usual(MemInfo, "memory of the host by kind"),
	usual(VMStat, "page faults, swapping, reclaim and OOM kills of the host"),
	usual(DiskStats, "block devices: bytes, requests, and the time that these took"),
	usual(NetDev, "network interfaces: bytes, packets, errors, drops"),
	usual(NetStat, "TCP: connections, retransmissions, full queues of listeners"),
	seldom(Files, "open files of the host and their limit"),
	seldom(FileSystems, "size of file systems on block devices, and what is free"),
	seldom(MemInfoNodes, "memory of each NUMA node by kind"),
	seldom(Clock, "the clock of the host"),
	seldom(Kernel, "kernel release and architecture"),
	seldom(ZFS, "pools and file systems of OpenZFS, its cache, and how its writes go; asks zpool(8) and zfs(8)"),
}

func quick(name Part, help string) Collector {
	return Collector{Name: name, Tier: High, Limit: time.Second, Budget: 10 * time.Millisecond, Help: help}
}

func usual(name Part, help string) Collector {
	return Collector{Name: name, Tier: Medium, Limit: 2 * time.Second, Budget: 20 * time.Millisecond, Help: help}
}

func asked(c Collector) Collector {
	c.Asked = true
	return c
}

func seldom(name Part, help string) Collector {
	return Collector{Name: name, Tier: Low, Limit: 5 * time.Second, Budget: 120 * time.Millisecond, Help: help}
}

// Parts are the names of all collectors, in the order of the table.
var Parts = func() (all []Part) {
	for _, c := range Collectors {
		all = append(all, c.Name)
	}
	return all
}()

// Asked says whether a collector is off until somebody switches it on by its name.
func (p Part) Asked() bool {
	return slices.ContainsFunc(Collectors, func(c Collector) bool { return c.Name == p && c.Asked })
}

// PartsOf gives the collectors that a name stands for: one, or all of a tier; nil for no name.
func PartsOf(name string) (all []Part) {
	for _, c := range Collectors {
		if string(c.Name) == name || string(c.Tier) == name {
			all = append(all, c.Name)
		}
	}
	return all
}

// FieldsOf names the fields of metrics.Fields that a collector reads, as its rows show them.
func FieldsOf(p Part) (names []string) {
	for i := range Table {
		if r := &Table[i]; r.Part == p {
			for _, f := range r.Fields {
				names = append(names, f.Field.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Apart is the most by which the times of one reading differ that two samples tell: each is that of the sample less the
// age, by two clocks, and rounded.
const Apart = 20 * time.Millisecond

// Reading is what a collector did the last time, and how it is switched.
type Reading struct {
	Name Part   `json:"collector"`
	On   bool   `json:"on"`
	Told bool   `json:"told"` // its figures are in the sample
	Tier Tier   `json:"tier"`
	Help string `json:"help,omitempty"`
	// Until is when a switch of limited duration ends; nil: it is on, or off, for good.
	Until *time.Time    `json:"until,omitempty"`
	Every time.Duration `json:"every_ns"` // between two readings
	// Slower is how many times as long that is as it should be, because readings cost too much; 0 and 1: no longer.
	Slower int `json:"slower,omitempty"`
	// Age is the time from its last reading to the sample, by a clock that nobody sets; 0 without one.
	Age  time.Duration `json:"age_ns,omitempty"`
	Took time.Duration `json:"took_ns,omitempty"` // by the clock
	Used time.Duration `json:"used_ns,omitempty"` // of a CPU, as far as the kernel tells
	// Skipped counts the readings that were not begun because the one before had not ended, and Waiting is for how long
	// the one under way has taken when that is longer than its limit.
	Skipped int64         `json:"skipped,omitempty"`
	Waiting time.Duration `json:"waiting_ns,omitempty"`
	Error   string        `json:"error,omitempty"` // why the last one failed
	// Remark is what it lacks though it does not fail, in words.
	Remark string `json:"remark,omitempty"`
}
