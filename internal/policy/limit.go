package policy

import (
	"slices"
	"strings"
	"time"
)

// Key names one limit as a person writes it in `set` and as `plan` prints it.
type Key string

// The keys of limits. The "io." ones belong to a device (Setting.On), KeyMemoryHuge to a page size, the
// "network." ones to an interface. Beside each stands the type of its values; the rest
// is in its row of limits.
const (
	KeyCPUWeight         Key = "cpu.weight"          // Weight
	KeyCPULimit          Key = "cpu.limit"           // Cores
	KeyCPUPeriod         Key = "cpu.period"          // Duration
	KeyCPUBurst          Key = "cpu.burst"           // Duration: CPU time that may be saved up
	KeyCPUIdle           Key = "cpu.idle"            // Flag
	KeyCPUCPUs           Key = "cpu.cpus"            // IDs
	KeyCPUNUMA           Key = "cpu.numa"            // IDs: nodes whose CPUs are used
	KeyCPURT             Key = "cpu.rt"              // Duration of real-time run time in each second
	KeyMemoryMin         Key = "memory.min"          // Bytes
	KeyMemoryLow         Key = "memory.low"          // Bytes
	KeyMemoryHigh        Key = "memory.high"         // Bytes
	KeyMemoryMax         Key = "memory.max"          // Bytes
	KeyMemorySwap        Key = "memory.swap"         // Bytes of swap beside memory.max
	KeyMemorySwappiness  Key = "memory.swappiness"   // Count 0–200
	KeyMemoryHuge        Key = "memory.huge"         // Bytes, On is the page size as the kernel names it ("2MB", "1GB")
	KeyMemoryNUMA        Key = "memory.numa"         // IDs
	KeyMemoryOOM         Key = "memory.oom"          // OOM
	KeyOOMScoreAdj       Key = "oom_score_adj"       // Count -1000–1000, for each member process
	KeyTasks             Key = "tasks"               // Count
	KeyIOWeight          Key = "io.weight"           // Weight
	KeyIOReadBandwidth   Key = "io.read.bandwidth"   // Rate
	KeyIOReadIOPS        Key = "io.read.iops"        // IOPS
	KeyIOWriteBandwidth  Key = "io.write.bandwidth"  // Rate
	KeyIOWriteIOPS       Key = "io.write.iops"       // IOPS
	KeyNetworkEgressMin  Key = "network.egress.min"  // BitRate
	KeyNetworkEgressMax  Key = "network.egress.max"  // BitRate
	KeyNetworkIngressMin Key = "network.ingress.min" // BitRate
	KeyNetworkIngressMax Key = "network.ingress.max" // BitRate
)

// KeyMatch stands for the rules of a group where a note is about one of them. It is no limit.
const KeyMatch Key = "match"

// KeyOwner stands for the owners of a group among its limits, in steps and in what a directory should hold. It is no
// key of the table: `set` does not take it.
const KeyOwner Key = "owner"

// Limit is one row of the table of limits: the file, `set`, the schema and the reference read it.
type Limit struct {
	Key  Key
	Unit unit
	Zero bool // 0 is a value, not a mistake
	lift bool // "max" takes a class's limit away
	Doc  string
}

// The bounds that the kernel puts on a CPU period (kernel/sched/core.c, tg_set_cfs_bandwidth) and on
// the number of tasks (PID_MAX_LIMIT on 64 bits).
const (
	lowestPeriod  = time.Millisecond
	highestPeriod = time.Second
	pidMaxLimit   = 1 << 22
)

// limits is the table of limits, in the order in which settings are kept and printed.
var limits = []Limit{
	{Key: KeyCPUWeight, Unit: IntegerUnit[Weight]("a weight", 1, 10000),
		Doc: "Share of the CPU against the sibling groups when there is not enough for all, 1 to 10000."},
	{Key: KeyCPULimit, Unit: CoresUnit, lift: true,
		Doc: "Most CPU the group may use: a number of cores (1.5) or a percentage of one core (150%)."},
	{Key: KeyCPUPeriod, Unit: durationUnit(lowestPeriod, highestPeriod),
		Doc: "Interval over which cpu.limit is counted, 1ms to 1s; 100ms when not given."},
	{Key: KeyCPUBurst, Unit: durationUnit(0, highestPeriod*1000), Zero: true,
		Doc: "CPU time the group may save up in quiet periods and use above cpu.limit; at most cpu.limit " +
			"times cpu.period."},
	{Key: KeyCPUIdle, Unit: flagUnit,
		Doc: "Run only when no other group wants the CPU."},
	{Key: KeyCPUCPUs, Unit: idsUnit, lift: true,
		Doc: "CPUs the group may run on, as a list: \"0-3,8\"."},
	{Key: KeyCPUNUMA, Unit: idsUnit, lift: true,
		Doc: "NUMA nodes whose CPUs the group may run on; cpu.cpus goes before it."},
	{Key: KeyCPURT, Unit: durationUnit(0, time.Second), Zero: true,
		Doc: "Real-time run time the group may use in each second, as 100ms (cgroup v1 with RT_GROUP_SCHED)."},
	{Key: KeyMemoryMin, Unit: SizeUnit(true), Zero: true,
		Doc: "Memory that is never taken from the group."},
	{Key: KeyMemoryLow, Unit: SizeUnit(true), Zero: true,
		Doc: "Memory that is taken from the group only when nothing else can be."},
	{Key: KeyMemoryHigh, Unit: SizeUnit(true), lift: true,
		Doc: "Memory above which the group is slowed down and its pages are taken back."},
	{Key: KeyMemoryMax, Unit: SizeUnit(true), lift: true,
		Doc: "Most memory the group may use; beyond it the OOM killer acts in the group."},
	{Key: KeyMemorySwap, Unit: SizeUnit(true), Zero: true, lift: true,
		Doc: "Most swap the group may use, beside memory.max; 0 is none."},
	{Key: KeyMemorySwappiness, Unit: IntegerUnit[Count]("swappiness", 0, 200), Zero: true,
		Doc: "How readily anonymous memory is swapped against page cache, 0 to 200 (cgroup v1; up to 100 before " +
			"kernel 5.8)."},
	{Key: KeyMemoryHuge, Unit: SizeUnit(false), Zero: true, lift: true,
		Doc: "Most memory in huge pages, for each page size: {2MiB: 1GiB}."},
	{Key: KeyMemoryNUMA, Unit: idsUnit, lift: true,
		Doc: "NUMA nodes whose memory the group may use."},
	{Key: KeyMemoryOOM, Unit: oomUnit,
		Doc: "What happens at memory.max: kill (one process), kill-group (all of the group), pause (wait until there " +
			"is memory; cgroup v1)."},
	{Key: KeyOOMScoreAdj, Unit: IntegerUnit[Count]("oom_score_adj", -1000, 1000), Zero: true,
		Doc: "oom_score_adj of each member process, -1000 (never killed) to 1000 (killed first); proc(5)."},
	{Key: KeyTasks, Unit: IntegerUnit[Count]("tasks", 1, pidMaxLimit), lift: true,
		Doc: "Most tasks in the group. The kernel counts threads."},
	{Key: KeyIOWeight, Unit: IntegerUnit[Weight]("a weight", 1, 10000),
		Doc: "Share of a disk against the sibling groups when all of them want it, 1 to 10000; iocost or the " +
			"scheduler BFQ hold it."},
	{Key: KeyIOReadBandwidth, Unit: RateUnit, lift: true,
		Doc: "Most bytes read in a second: 50MB/s, or a percentage of the ceiling that host.io names."},
	{Key: KeyIOReadIOPS, Unit: iopsUnit, lift: true,
		Doc: "Most read operations in a second, or a percentage of the ceiling that host.io names."},
	{Key: KeyIOWriteBandwidth, Unit: RateUnit, lift: true,
		Doc: "Most bytes written in a second: 50MB/s, or a percentage of the ceiling that host.io names."},
	{Key: KeyIOWriteIOPS, Unit: iopsUnit, lift: true,
		Doc: "Most write operations in a second, or a percentage of the ceiling that host.io names."},
	// The limits on interfaces; no file of the kernel holds them.
	{Key: KeyNetworkEgressMin, Unit: BitRateUnit,
		Doc: "Bandwidth that is kept for what leaves the group, whenever it wants it. It is a share of the link, " +
			"whose rate must be known."},
	{Key: KeyNetworkEgressMax, Unit: BitRateUnit, lift: true, Doc: "Most bandwidth of what leaves the group."},
	{Key: KeyNetworkIngressMin, Unit: BitRateUnit,
		Doc: "Bandwidth that is kept for what arrives for the group. It needs the ports that the group listens on."},
	{Key: KeyNetworkIngressMax, Unit: BitRateUnit, lift: true, Doc: "Most bandwidth of what arrives for the group."},
}

// Keys gives every key in the order in which settings are kept and printed: those that a file of the kernel holds,
// then those of limits on interfaces.
func Keys() []Key {
	keys := make([]Key, len(limits))
	for i := range limits {
		keys[i] = limits[i].Key
	}
	return keys
}

// FileKeys gives the keys of limits that a file of the kernel holds.
func FileKeys() []Key { return slices.DeleteFunc(Keys(), Key.OfNetwork) }

// OfNetwork says whether a key is that of a limit on an interface.
func (k Key) OfNetwork() bool { return strings.HasPrefix(string(k), "network.") }

// LimitOf finds the row of a key; nil when there is none.
func LimitOf(key Key) *Limit {
	if i := keyRank(key); i < len(limits) {
		return &limits[i]
	}
	return nil
}

// keyRank is the place of a key in the table; behind all others when it is not in it.
func keyRank(key Key) int {
	if i := slices.IndexFunc(limits, func(l Limit) bool { return l.Key == key }); i >= 0 {
		return i
	}
	return len(limits)
}

// Below gives the limits of one block of the file, such as "cpu" or "io.read".
func Below(block string) []*Limit {
	var found []*Limit
	for i := range limits {
		if name, ok := strings.CutPrefix(string(limits[i].Key), block+"."); ok && !strings.Contains(name, ".") {
			found = append(found, &limits[i])
		}
	}
	return found
}

// Name is the last part of the key: how it is written inside its block.
func (l *Limit) Name() string {
	return string(l.Key[strings.LastIndexByte(string(l.Key), '.')+1:])
}

// Parse reads a value of the limit.
func (l *Limit) Parse(text string) (Value, *Fault) {
	if text == (Unlimited{}).String() {
		if l.lift {
			return Unlimited{}, nil
		}
		hint := ""
		if l.Zero {
			hint = "0 takes it away"
		}
		return nil, Faultf(hint, "max is no value here")
	}
	if _, _, number := split(text); number && text[0] == '-' && l.Key != KeyOOMScoreAdj {
		return nil, Faultf(l.noLimitHint(), "%s is negative", text)
	}
	value, wrong := l.Unit.read(text)
	if wrong != nil {
		return nil, wrong
	}
	if !l.Zero && isZero(value) {
		return nil, Faultf(l.noLimitHint(), "a limit of 0 would stop the group")
	}
	return value, nil
}

func (l *Limit) noLimitHint() string {
	switch {
	case strings.HasPrefix(string(l.Key), "host."):
		return "leave the key out to set nothing aside"
	case l.lift:
		return "leave the key out for no limit, or write max to lift the one of a class"
	}
	return "leave the key out for no limit"
}

// Unquoted is what a value is called that must stand without quotes in YAML: "a number"; "" when quotes do no harm.
func (l *Limit) Unquoted(text string) string {
	_, wrong := l.Unit.read(text)
	switch {
	case wrong != nil || !l.Unit.number || Raw(text) != "":
		return ""
	case l.Unit.schema["type"] == "boolean":
		return "true or false"
	}
	return "a number"
}

// Schema describes the values of a limit.
func (l *Limit) Schema() JSONSchema {
	forms := []any{l.Unit.schema}
	if several, ok := l.Unit.schema["anyOf"].([]any); ok {
		forms = slices.Clone(several)
	}
	if l.Zero && l.Unit.schema["type"] == "string" {
		forms = append(forms, JSONSchema{"const": 0})
	}
	if l.lift {
		forms = append(forms, JSONSchema{"const": Unlimited{}.String()})
	}
	if len(forms) == 1 {
		return l.Unit.schema
	}
	return JSONSchema{"anyOf": forms}
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

// Raw keeps what was written when it says more than the value: a percentage.
func Raw(text string) string {
	if strings.HasSuffix(text, "%") {
		return strings.ReplaceAll(text, " ", "")
	}
	return ""
}
