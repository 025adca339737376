package policy

import (
	"slices"
	"strings"
	"time"
)

// Key names one limit as a person writes it in `set` and as `plan` prints it.
type Key string

// The keys of limits. The "io." ones belong to a device (Setting.On), KeyMemoryHuge to a page size.
const (
	KeyCPUWeight        Key = "cpu.weight"         // Weight
	KeyCPULimit         Key = "cpu.limit"          // Cores
	KeyCPUPeriod        Key = "cpu.period"         // Duration
	KeyCPUBurst         Key = "cpu.burst"          // Duration: CPU time that may be saved up
	KeyCPUIdle          Key = "cpu.idle"           // Flag
	KeyCPUCPUs          Key = "cpu.cpus"           // IDs
	KeyCPUNUMA          Key = "cpu.numa"           // IDs: nodes whose CPUs are used
	KeyCPURT            Key = "cpu.rt"             // Duration of real-time run time in each second
	KeyMemoryMin        Key = "memory.min"         // Bytes
	KeyMemoryLow        Key = "memory.low"         // Bytes
	KeyMemoryHigh       Key = "memory.high"        // Bytes
	KeyMemoryMax        Key = "memory.max"         // Bytes
	KeyMemorySwap       Key = "memory.swap"        // Bytes of swap beside memory.max
	KeyMemorySwappiness Key = "memory.swappiness"  // Count 0–200
	KeyMemoryHuge       Key = "memory.huge"        // Bytes, On is the page size as the kernel names it ("2MB", "1GB")
	KeyMemoryNUMA       Key = "memory.numa"        // IDs
	KeyMemoryOOM        Key = "memory.oom"         // OOM
	KeyOOMScoreAdj      Key = "oom_score_adj"      // Count -1000–1000, for each member process
	KeyTasks            Key = "tasks"              // Count
	KeyIOWeight         Key = "io.weight"          // Weight
	KeyIOReadBandwidth  Key = "io.read.bandwidth"  // Rate
	KeyIOReadIOPS       Key = "io.read.iops"       // IOPS
	KeyIOWriteBandwidth Key = "io.write.bandwidth" // Rate
	KeyIOWriteIOPS      Key = "io.write.iops"      // IOPS
)

// limit is one row of the table of limits: the file, `set`, the schema and the reference read it.
type limit struct {
	key  Key
	unit unit
	zero bool // 0 is a value, not a mistake
	lift bool // "max" takes a class's limit away
	doc  string
}

// The bounds that the kernel puts on a CPU period (kernel/sched/core.c, tg_set_cfs_bandwidth) and on
// the number of tasks (PID_MAX_LIMIT on 64 bits).
const (
	lowestPeriod  = time.Millisecond
	highestPeriod = time.Second
	pidMaxLimit   = 1 << 22
)

// limits is the table of limits, in the order in which settings are kept and printed.
var limits = []limit{
	{key: KeyCPUWeight, unit: integerUnit[Weight]("a weight", 1, 10000),
		doc: "Share of the CPU against the sibling groups when there is not enough for all, 1 to 10000."},
	{key: KeyCPULimit, unit: coresUnit, lift: true,
		doc: "Most CPU the group may use: a number of cores (1.5) or a percentage of one core (150%)."},
	{key: KeyCPUPeriod, unit: durationUnit(lowestPeriod, highestPeriod),
		doc: "Interval over which cpu.limit is counted, 1ms to 1s; 100ms when not given."},
	{key: KeyCPUBurst, unit: durationUnit(0, highestPeriod*1000), zero: true,
		doc: "CPU time the group may save up in quiet periods and use above cpu.limit; at most cpu.limit times cpu.period."},
	{key: KeyCPUIdle, unit: flagUnit,
		doc: "Run only when no other group wants the CPU."},
	{key: KeyCPUCPUs, unit: idsUnit, lift: true,
		doc: "CPUs the group may run on, as a list: \"0-3,8\"."},
	{key: KeyCPUNUMA, unit: idsUnit, lift: true,
		doc: "NUMA nodes whose CPUs the group may run on; cpu.cpus goes before it."},
	{key: KeyCPURT, unit: durationUnit(0, time.Second), zero: true,
		doc: "Real-time run time the group may use in each second, as 100ms (cgroup v1 with RT_GROUP_SCHED)."},
	{key: KeyMemoryMin, unit: sizeUnit(true), zero: true,
		doc: "Memory that is never taken from the group."},
	{key: KeyMemoryLow, unit: sizeUnit(true), zero: true,
		doc: "Memory that is taken from the group only when nothing else can be."},
	{key: KeyMemoryHigh, unit: sizeUnit(true), lift: true,
		doc: "Memory above which the group is slowed down and its pages are taken back."},
	{key: KeyMemoryMax, unit: sizeUnit(true), lift: true,
		doc: "Most memory the group may use; beyond it the OOM killer acts in the group."},
	{key: KeyMemorySwap, unit: sizeUnit(true), zero: true, lift: true,
		doc: "Most swap the group may use, beside memory.max; 0 is none."},
	{key: KeyMemorySwappiness, unit: integerUnit[Count]("swappiness", 0, 200), zero: true,
		doc: "How readily anonymous memory is swapped against page cache, 0 to 200 (cgroup v1; up to 100 before kernel 5.8)."},
	{key: KeyMemoryHuge, unit: sizeUnit(false), zero: true, lift: true,
		doc: "Most memory in huge pages, for each page size: {2MiB: 1GiB}."},
	{key: KeyMemoryNUMA, unit: idsUnit, lift: true,
		doc: "NUMA nodes whose memory the group may use."},
	{key: KeyMemoryOOM, unit: oomUnit,
		doc: "What happens at memory.max: kill (one process), kill-group (all of the group), pause (wait until there is memory; cgroup v1)."},
	{key: KeyOOMScoreAdj, unit: integerUnit[Count]("oom_score_adj", -1000, 1000), zero: true,
		doc: "oom_score_adj of each member process, -1000 (never killed) to 1000 (killed first); proc(5)."},
	{key: KeyTasks, unit: integerUnit[Count]("tasks", 1, pidMaxLimit), lift: true,
		doc: "Most tasks in the group. The kernel counts threads."},
	{key: KeyIOWeight, unit: integerUnit[Weight]("a weight", 1, 10000),
		doc: "Share of a disk against the sibling groups when all of them want it, 1 to 10000; iocost or the scheduler BFQ hold it."},
	{key: KeyIOReadBandwidth, unit: rateUnit, lift: true, doc: "Most bytes read in a second: 50MB/s, or a percentage of the ceiling that host.io names."},
	{key: KeyIOReadIOPS, unit: iopsUnit, lift: true, doc: "Most read operations in a second, or a percentage of the ceiling that host.io names."},
	{key: KeyIOWriteBandwidth, unit: rateUnit, lift: true, doc: "Most bytes written in a second: 50MB/s, or a percentage of the ceiling that host.io names."},
	{key: KeyIOWriteIOPS, unit: iopsUnit, lift: true, doc: "Most write operations in a second, or a percentage of the ceiling that host.io names."},
}

// KnownKeys gives every key that a file of the kernel holds, in the order in which settings are kept and printed; behind them are
// NetworkKeys.
func KnownKeys() []Key {
	keys := make([]Key, len(limits))
	for i := range limits {
		keys[i] = limits[i].key
	}
	return keys
}

// limitOf finds the row of a key; nil when there is none.
func limitOf(key Key) *limit {
	if i := keyRank(key); i < len(limits) {
		return &limits[i]
	}
	if i := slices.IndexFunc(networkLimits, func(l limit) bool { return l.key == key }); i >= 0 {
		return &networkLimits[i]
	}
	return nil
}

// keyRank is the place of a key in the table; behind all others when it is not in it.
func keyRank(key Key) int {
	if i := slices.IndexFunc(limits, func(l limit) bool { return l.key == key }); i >= 0 {
		return i
	}
	return len(limits) + max(slices.Index(NetworkKeys(), key), 0)
}

// below gives the limits of one block of the file, such as "cpu" or "io.read".
func below(block string) []*limit {
	var found []*limit
	for i := range limits {
		if name, ok := strings.CutPrefix(string(limits[i].key), block+"."); ok && !strings.Contains(name, ".") {
			found = append(found, &limits[i])
		}
	}
	return found
}

// name is the last part of the key: how it is written inside its block.
func (l *limit) name() string {
	return string(l.key[strings.LastIndexByte(string(l.key), '.')+1:])
}

// parse reads a value of the limit.
func (l *limit) parse(text string) (Value, *fault) {
	if text == (Unlimited{}).String() {
		if l.lift {
			return Unlimited{}, nil
		}
		hint := ""
		if l.zero {
			hint = "0 takes it away"
		}
		return nil, faultf(hint, "max is no value here")
	}
	if _, _, number := split(text); number && text[0] == '-' && l.key != KeyOOMScoreAdj {
		return nil, faultf(l.noLimitHint(), "%s is negative", text)
	}
	value, wrong := l.unit.read(text)
	if wrong != nil {
		return nil, wrong
	}
	if !l.zero && isZero(value) {
		return nil, faultf(l.noLimitHint(), "a limit of 0 would stop the group")
	}
	return value, nil
}

func (l *limit) noLimitHint() string {
	switch {
	case strings.HasPrefix(string(l.key), "host."):
		return "leave the key out to set nothing aside"
	case l.lift:
		return "leave the key out for no limit, or write max to lift the one of a class"
	}
	return "leave the key out for no limit"
}

func isZero(v Value) bool {
	switch v := v.(type) {
	case Bytes:
		return v == 0
	case Cores:
		return v == 0
	case Rate:
		return v == 0
	case BitRate:
		return v == 0
	case Duration:
		return v == 0
	case MemoryPercent:
		return v == 0
	case IOPercent:
		return v == 0
	}
	return false
}

// bare is what a value is called that must stand without quotes in YAML: "a number"; "" when quotes do no harm.
func (l *limit) bare(text string) string {
	_, wrong := l.unit.read(text)
	switch {
	case wrong != nil || !l.unit.number || raw(text) != "":
		return ""
	case l.unit.schema["type"] == "boolean":
		return "true or false"
	}
	return "a number"
}

// raw keeps what was written when it says more than the value: a percentage.
func raw(text string) string {
	if strings.HasSuffix(text, "%") {
		return strings.ReplaceAll(text, " ", "")
	}
	return ""
}
