package convert

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/policy"
)

// param is one file of a control group with what is, or was, to be written to it.
type param struct {
	file, text string
	at         policy.Pos
}

// what is the line that a param comes from, for comments and reports.
func (p param) what() string { return p.file + " = " + p.text }

// params turns the files of one group into limits.
type params struct {
	*draft
	g   *group
	all []param
}

// controllers are those that there are, with what their files begin with where that is not their name.
var controllers = []string{
	"cpu", "cpuacct", "cpuset", "memory", "blkio", "io", "pids", "hugetlb", "freezer", "devices", "net_cls", "net_prio", "perf_event",
	"ns", "rdma", "misc", "dmem", "debug", "cgroup",
}

// carried are the files that a policy has a key for, by the function that reads them.
var carried = map[string]func(*params, param){
	"cpu.shares": (*params).cpuShares, "cpu.weight": (*params).cpuWeight, "cpu.idle": (*params).cpuIdle, "cpu.max": (*params).cpuMax,
	"cpu.cfs_quota_us": (*params).cpuQuota, "cpu.cfs_period_us": (*params).cpuPeriod,
	"cpu.cfs_burst_us": (*params).cpuBurst, "cpu.max.burst": (*params).cpuBurst,
	"cpu.rt_runtime_us": (*params).cpuRT, "cpu.rt_period_us": (*params).cpuRTPeriod,
	"cpuset.cpus": ids(policy.KeyCPUCPUs), "cpuset.mems": ids(policy.KeyMemoryNUMA),
	"memory.limit_in_bytes": bytesOf(policy.KeyMemoryMax), "memory.max": bytesOf(policy.KeyMemoryMax),
	"memory.memsw.limit_in_bytes": (*params).memoryAndSwap, "memory.swap.max": bytesOf(policy.KeyMemorySwap),
	"memory.soft_limit_in_bytes": (*params).softLimit,
	"memory.min":                 bytesOf(policy.KeyMemoryMin), "memory.low": bytesOf(policy.KeyMemoryLow), "memory.high": bytesOf(policy.KeyMemoryHigh),
	"memory.swappiness": (*params).swappiness, "memory.oom_control": (*params).oomControl, "memory.oom.group": (*params).oomGroup,
	"pids.max":                        (*params).tasks,
	"blkio.throttle.read_bps_device":  throttle(policy.KeyIOReadBandwidth, "B/s"),
	"blkio.throttle.write_bps_device": throttle(policy.KeyIOWriteBandwidth, "B/s"), "blkio.throttle.read_iops_device": throttle(policy.KeyIOReadIOPS, ""),
	"blkio.throttle.write_iops_device": throttle(policy.KeyIOWriteIOPS, ""), "io.max": (*params).ioMax,
	"blkio.weight": diskWeight(500, 1000), "blkio.weight_device": diskWeight(500, 1000), "io.weight": diskWeight(100, maxWeight),
	"blkio.bfq.weight": diskWeight(100, 1000), "blkio.bfq.weight_device": diskWeight(100, 1000), "io.bfq.weight": diskWeight(100, 1000),
}

// Why files of a kind are left out.
const (
	counts  = "it only counts, and limits nothing"
	ownName = "a policy has no key for it"
)

// leftOut are files that are known and have no place in a policy: why, and what to do instead.
var leftOut = map[string][2]string{
	"cpu.stat": {counts}, "cpu.pressure": {counts}, "cpu.uclamp.min": {ownName}, "cpu.uclamp.max": {ownName},
	"cpu.weight.nice":                 {"it is cpu.weight on another scale", "write cpu.weight"},
	"cpuset.cpu_exclusive":            {"bulkhead gives CPUs, and takes them from nobody", "give the other groups other CPUs"},
	"cpuset.cpus.partition":           {"bulkhead gives CPUs, and takes them from nobody", "give the other groups other CPUs"},
	"cpuset.cpus.exclusive":           {"bulkhead gives CPUs, and takes them from nobody", "give the other groups other CPUs"},
	"cpuset.mem_exclusive":            {"bulkhead gives nodes, and takes them from nobody", "give the other groups other nodes"},
	"cpuset.mem_hardwall":             {ownName},
	"cpuset.memory_migrate":           {"cgroup v2 moves pages by itself, v1 leaves them where they are", "restart the database to have its memory on other nodes"},
	"cpuset.memory_pressure":          {counts},
	"cpuset.memory_pressure_enabled":  {counts},
	"cpuset.memory_spread_page":       {"cgroup v2 has no such file", "start the database with numactl --interleave"},
	"cpuset.memory_spread_slab":       {"cgroup v2 has no such file"},
	"cpuset.sched_load_balance":       {ownName},
	"cpuset.sched_relax_domain_level": {ownName},
	"memory.use_hierarchy":            {"bulkhead looks which way the host has it", "limits of a group cover the groups inside it"},
	"memory.move_charge_at_immigrate": {"kernels no longer move charges with a process", "start the database in its group"},
	"memory.kmem.limit_in_bytes":      {"kernels no longer have a limit of their own for kernel memory", "memory.max covers it on cgroup v2"},
	"memory.kmem.tcp.limit_in_bytes":  {ownName, "memory.max covers it on cgroup v2"},
	"memory.zswap.max":                {ownName},
	"memory.zswap.writeback":          {ownName},
	"memory.swap.high":                {ownName, "memory.swap is the most"},
	"memory.force_empty":              {"it acts once, when it is written"},
	"memory.reclaim":                  {"it acts once, when it is written"},
	"blkio.reset_stats":               {"it acts once, when it is written"},
	"cpuacct.usage":                   {counts},
	"blkio.leaf_weight":               {"kernels no longer have it"},
	"blkio.leaf_weight_device":        {"kernels no longer have it"},
	"io.latency":                      {ownName},
	"io.cost.qos":                     {"it belongs to the host, not to a group"},
	"io.cost.model":                   {"it belongs to the host, not to a group"},
	"io.prio.class":                   {ownName},
	"blkio.prio.class":                {ownName},
	"freezer.state":                   {"a state is no limit", "`bulkhead freeze GROUP --for 10m` stops a group, always with an end"},
	"cgroup.freeze":                   {"a state is no limit", "`bulkhead freeze GROUP --for 10m` stops a group, always with an end"},
	"cgroup.max.depth":                {ownName},
	"cgroup.max.descendants":          {ownName},
	"cgroup.type":                     {ownName},
	"cgroup.subtree_control":          {"bulkhead turns controllers on where a limit needs them"},
	"cgroup.clone_children":           {"bulkhead gives each group its own values"},
	"tasks":                           {"a process number belongs to one boot", "say with match: which processes are meant"},
	"cgroup.procs":                    {"a process number belongs to one boot", "say with match: which processes are meant"},
	"notify_on_release":               {"bulkhead's agent sees when a group is empty"},
	"release_agent":                   {"bulkhead's agent sees when a group is empty"},
}

// wholeControllers are those of which no file has a place in a policy.
var wholeControllers = map[string][2]string{
	"devices":    {"bulkhead does not govern access to devices", "with systemd: DevicePolicy=closed and DeviceAllow= of the service"},
	"ns":         {"the ns controller went with kernel 3.0, and namespaces are no limits", "with systemd: PrivateTmp=, PrivateNetwork= and the like of the service"},
	"net_cls":    {"a class of traffic control is not a limit by itself", "ask for `network: [{on: default, egress: 100Mbit/s}]`"},
	"net_prio":   {"a priority of traffic is not a limit by itself", "ask for `network: [{on: default, egress: 100Mbit/s}]`"},
	"perf_event": {counts},
	"cpuacct":    {counts},
	"rdma":       {ownName}, "misc": {ownName}, "dmem": {ownName}, "debug": {ownName},
}

// removed by any kernel's name: read-only files by what they end in.
var countingSuffixes = []string{
	".stat", ".usage_in_bytes", ".max_usage_in_bytes", ".failcnt", ".current", ".peak", ".events", ".events.local", ".numa_stat", ".usage", ".usage_percpu",
	".usage_sys", ".usage_user", ".usage_all", ".pressure", ".rsvd.current", ".effective", ".effective_cpus", ".effective_mems", ".swap.events", ".slabinfo", ".kmem.slabinfo",
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

// known says whether a controller has a file of that name on some kernel.
func known(file string) bool {
	controller, _, _ := strings.Cut(file, ".")
	_, whole := wholeControllers[controller]
	_, left := leftOut[file]
	size, rest, huge := hugeFile(file)
	switch {
	case carried[file] != nil, left, whole, file == "tasks", file == "cgroup.procs":
		return true
	case huge:
		return size != "" && (slices.Contains([]string{"limit_in_bytes", "max", "rsvd.limit_in_bytes", "rsvd.max"}, rest) || counting(file))
	}
	return slices.Contains(controllers, controller) && counting(file) || strings.HasPrefix(file, "blkio.") && ioCounter(file)
}

func counting(file string) bool {
	return slices.ContainsFunc(countingSuffixes, func(s string) bool { return strings.HasSuffix(file, s) })
}

// ioCounter knows the counters of v1's blkio, which are many.
func ioCounter(file string) bool {
	name := strings.TrimPrefix(strings.TrimPrefix(file, "blkio."), "throttle.")
	return strings.HasPrefix(name, "io_") || name == "sectors" || name == "sectors_recursive" || name == "time" || name == "time_recursive"
}

// carry turns every file of the group into limits, or says why not.
func (p *params) carry() {
	for _, f := range p.all {
		if read := carried[f.file]; read != nil {
			read(p, f)
			continue
		}
		if size, rest, ok := hugeFile(f.file); ok && !counting(f.file) {
			p.huge(f, size, rest)
			continue
		}
		p.leaveFile(f)
	}
}

func (p *params) leaveFile(f param) {
	controller, _, _ := strings.Cut(f.file, ".")
	why, left := leftOut[f.file]
	if whole, ok := wholeControllers[controller]; ok && !left {
		why = whole
	} else if !left {
		why = [2]string{counts}
	}
	p.leave(f.at, why[1], f.what(), "%s", why[0])
}

// of finds another file of the group.
func (p *params) of(file string) (param, bool) {
	for _, f := range p.all {
		if f.file == file {
			return f, true
		}
	}
	return param{}, false
}

// number reads a whole number as the kernel does.
func (p *params) number(f param, lowest, highest int64) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(f.text), 10, 64)
	if err != nil {
		p.fail(f.at, fmt.Sprintf("write a whole number from %d to %d", lowest, highest), "%s: %q is not a number", f.file, clean(f.text))
		return 0, false
	}
	if n < lowest || n > highest {
		p.fail(f.at, "", "%s: %d is outside %d to %d", f.file, n, lowest, highest)
		return 0, false
	}
	return n, true
}

// bytes reads an amount as memparse of the kernel does: 4096, 512M, 2G; none is no limit.
func (p *params) bytes(f param) (n int64, none, ok bool) {
	text := strings.TrimSpace(f.text)
	if text == "max" || text == "-1" {
		return 0, true, true
	}
	digits, shift := text, 0
	if i := len(text) - 1; i > 0 {
		if unit := strings.IndexByte("KMGTPE", text[i]&^0x20); unit >= 0 && text[i] > '9' {
			digits, shift = text[:i], 10*(unit+1)
		}
	}
	u, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case err != nil || digits[0] == '+':
		p.fail(f.at, "the kernel takes bytes, K, M, G and T, powers of 1024: 512M", "%s: %q is not an amount of memory", f.file, clean(f.text))
		return 0, false, false
	case u >= noLimit>>shift:
		return 0, true, true
	}
	return int64(u) << shift, false, true
}

// noLimit is what v1 shows for no limit, or nearly.
const noLimit = math.MaxInt64 - 1<<40

func (p *params) cpuShares(f param) {
	if n, ok := p.number(f, 0, math.MaxInt64); ok {
		if _, both := p.of("cpu.weight"); both {
			return // cpuWeight compares them
		}
		p.g.shares = &share{min(max(n, minShares), maxShares), f.at, f.what()}
	}
}

func (p *params) cpuWeight(f param) {
	n, ok := p.number(f, 1, maxWeight)
	if !ok || !p.set(p.g, policy.KeyCPUWeight, "", strconv.FormatInt(n, 10), f.at, f.what()) {
		return
	}
	if v1, both := p.of("cpu.shares"); both {
		p.change(v1.at, v1.what(), "gives way to %s, the newer one", f.what())
	}
}

func (p *params) cpuIdle(f param) {
	if n, ok := p.number(f, 0, 1); ok && n == 1 {
		p.set(p.g, policy.KeyCPUIdle, "", "true", f.at, f.what())
	}
}

// The kernel's bounds on CPU bandwidth, in µs (kernel/sched/core.c, tg_set_cfs_bandwidth).
const (
	defaultPeriod        = 100_000
	minPeriod, maxPeriod = 1000, 1_000_000
)

// bandwidth sets cpu.limit, and cpu.period where it is not the kernel's own.
func (p *params) bandwidth(f param, quota, period int64, what string) {
	if quota > math.MaxInt64/policy.One {
		p.fail(f.at, "", "%s: %d is too large", f.file, quota)
		return
	}
	// Rounded up, so that the knob's rounding down gives the quota again.
	limit := (quota*policy.One + period - 1) / period
	if p.set(p.g, policy.KeyCPULimit, "", policy.Cores(limit).String(), f.at, what) && period != defaultPeriod {
		p.set(p.g, policy.KeyCPUPeriod, "", policy.Duration(period*int64(time.Microsecond)).String(), f.at, what)
	}
}

func (p *params) cpuQuota(f param) {
	quota, ok := p.number(f, -1, math.MaxInt64)
	period, what := int64(defaultPeriod), f.what()
	if other, there := p.of("cpu.cfs_period_us"); there {
		var fine bool
		if period, fine = p.number(other, minPeriod, maxPeriod); !fine {
			return
		}
		what += " of " + other.text
	}
	switch {
	case !ok || quota < 0:
	case quota < minPeriod:
		p.fail(f.at, "the kernel's smallest quota is 1000, 1 ms", "cpu.cfs_quota_us: %d is too small", quota)
	default:
		p.bandwidth(f, quota, period, what)
	}
}

func (p *params) cpuPeriod(f param) {
	if _, there := p.of("cpu.cfs_quota_us"); there {
		return // cpuQuota reads it
	}
	if period, ok := p.number(f, minPeriod, maxPeriod); ok && period != defaultPeriod {
		p.leave(f.at, "", f.what(), "a period without a quota limits nothing")
	}
}

func (p *params) cpuMax(f param) {
	words := strings.Fields(f.text)
	period := int64(defaultPeriod)
	if len(words) == 2 {
		var ok bool
		if period, ok = p.number(param{f.file, words[1], f.at}, minPeriod, maxPeriod); !ok {
			return
		}
	}
	if len(words) < 1 || len(words) > 2 {
		p.fail(f.at, `write a quota and a period in µs: "400000 100000"`, "cpu.max: %q is not a limit", clean(f.text))
		return
	}
	if words[0] == "max" {
		return
	}
	if quota, ok := p.number(param{f.file, words[0], f.at}, minPeriod, math.MaxInt64); ok {
		p.bandwidth(f, quota, period, f.what())
	}
}

func (p *params) cpuBurst(f param) {
	if n, ok := p.number(f, 0, math.MaxInt64/1000); ok && n > 0 {
		p.set(p.g, policy.KeyCPUBurst, "", micros(n), f.at, f.what())
	}
}

func micros(n int64) string { return policy.Duration(n * int64(time.Microsecond)).String() }

func (p *params) cpuRT(f param) {
	n, ok := p.number(f, -1, math.MaxInt64/1_000_000)
	period := int64(maxPeriod)
	if other, there := p.of("cpu.rt_period_us"); ok && there {
		period, ok = p.number(other, 1, math.MaxInt32)
	}
	switch {
	case !ok || n == 0:
	case n < 0:
		p.leave(f.at, "", f.what(), "without an end it would be all of the CPU for real-time tasks")
	case n > period:
		p.fail(f.at, "", "cpu.rt_runtime_us: %d is more than its period of %d", n, period)
	default:
		p.set(p.g, policy.KeyCPURT, "", micros(n*maxPeriod/period), f.at, f.what())
		if period != maxPeriod {
			p.change(f.at, f.what(), "is %s in each second: a policy has no other period", micros(n*maxPeriod/period))
		}
	}
}

func (p *params) cpuRTPeriod(f param) {
	if _, there := p.of("cpu.rt_runtime_us"); !there {
		p.leave(f.at, "", f.what(), "a period without run time limits nothing")
	}
}

// ids reads a list of CPUs or nodes.
func ids(key policy.Key) func(*params, param) {
	return func(p *params, f param) {
		set, err := host.ParseIDSet(strings.TrimSpace(f.text))
		if err != nil {
			p.fail(f.at, `write a list such as "0-3,8"`, "%s: %q is not a list of numbers", f.file, clean(f.text))
			return
		}
		if len(set) > 0 { // else what the group above has
			p.set(p.g, key, "", set.String(), f.at, f.what())
		}
	}
}

// bytesOf reads an amount of memory.
func bytesOf(key policy.Key) func(*params, param) {
	return func(p *params, f param) {
		n, none, ok := p.bytes(f)
		switch protects := key == policy.KeyMemoryMin || key == policy.KeyMemoryLow; {
		case !ok || none && !protects || n == 0 && !none && protects:
		case none:
			p.leave(f.at, "write an amount", f.what(), "protection of all the memory there is")
		default:
			p.set(p.g, key, "", policy.Bytes(n).String(), f.at, f.what())
		}
	}
}

// memoryAndSwap turns v1's limit of memory and swap together into one of swap beside memory.
func (p *params) memoryAndSwap(f param) {
	both, none, ok := p.bytes(f)
	if !ok || none {
		return
	}
	limit, there := p.of("memory.limit_in_bytes")
	if !there {
		p.leave(f.at, "add memory.limit_in_bytes", f.what(), "a limit of memory and swap together needs one of memory, or the kernel refuses it")
		return
	}
	memory, unlimited, ok := p.bytes(limit)
	switch {
	case !ok:
	case unlimited || both < memory:
		p.failWith(f.at, limit.at, "it is the sum of memory and swap, so not less than memory.limit_in_bytes", "%s is below %s: the kernel refuses it", f.what(), limit.what())
	default:
		p.set(p.g, policy.KeyMemorySwap, "", policy.Bytes(both-memory).String(), f.at, f.what())
	}
}

func (p *params) softLimit(f param) {
	n, none, ok := p.bytes(f)
	if !ok || none {
		return
	}
	if _, both := p.of("memory.low"); both {
		p.change(f.at, f.what(), "gives way to memory.low, the newer one")
		return
	}
	if n > 0 && p.set(p.g, policy.KeyMemoryLow, "", policy.Bytes(n).String(), f.at, f.what()) {
		p.change(f.at, f.what(), "is memory.low: below it the group's memory is taken last. It is held on cgroup v2 only")
	}
}

func (p *params) swappiness(f param) {
	if n, ok := p.number(f, 0, 200); ok {
		p.set(p.g, policy.KeyMemorySwappiness, "", strconv.FormatInt(n, 10), f.at, f.what())
	}
}

func (p *params) oomControl(f param) {
	for line := range strings.Lines(f.text) { // as the kernel shows it
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill_disable "); ok {
			f.text = value
		}
	}
	if n, ok := p.number(f, 0, 1); ok && n == 1 { // 0 is what every group has
		p.set(p.g, policy.KeyMemoryOOM, "", "pause", f.at, f.what())
	}
}

func (p *params) oomGroup(f param) {
	if n, ok := p.number(f, 0, 1); ok && n == 1 {
		p.set(p.g, policy.KeyMemoryOOM, "", "kill-group", f.at, f.what())
	}
}

func (p *params) tasks(f param) {
	if strings.TrimSpace(f.text) == "max" {
		return
	}
	if n, ok := p.number(f, 0, math.MaxInt64); ok {
		p.set(p.g, policy.KeyTasks, "", strconv.FormatInt(min(n, 1<<22), 10), f.at, f.what())
	}
}

func (p *params) huge(f param, size, rest string) {
	n, none, ok := p.bytes(f)
	switch {
	case !ok || none:
	case strings.HasPrefix(rest, "rsvd."):
		p.leave(f.at, "memory.huge limits what is in use", f.what(), "a policy has no key for reservations of huge pages")
	default:
		if back := n / policy.HugePageSize(size) * policy.HugePageSize(size); back != n {
			p.change(f.at, f.what(), "is %s: the kernel counts whole pages", policy.Bytes(back))
			n = back
		}
		p.set(p.g, policy.KeyMemoryHuge, strings.TrimSuffix(size, "B")+"iB", policy.Bytes(n).String(), f.at, f.what())
	}
}

// throttle reads lines "8:16 10485760" of v1's blkio.
func throttle(key policy.Key, unit string) func(*params, param) {
	return func(p *params, f param) {
		for line := range strings.Lines(f.text) {
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			if len(words) != 2 || !isDevice(words[0]) {
				p.fail(f.at, `write the device's number and the limit: "8:16 10485760"`, "%s: %q is not a limit of a device", f.file, clean(line))
				continue
			}
			n, ok := p.number(param{f.file, words[1], f.at}, 0, math.MaxInt64)
			if ok && n > 0 { // 0 takes the limit away
				p.set(p.g, key, words[0], strconv.FormatInt(n, 10)+unit, f.at, f.file+" = "+strings.TrimSpace(line))
			}
		}
	}
}

func isDevice(text string) bool {
	major, minor, ok := strings.Cut(text, ":")
	_, err1 := strconv.ParseUint(major, 10, 12)
	_, err2 := strconv.ParseUint(minor, 10, 20)
	return ok && err1 == nil && err2 == nil
}

// ioMaxKeys are the words of v2's io.max.
var ioMaxKeys = map[string]struct {
	key  policy.Key
	unit string
}{
	"rbps": {policy.KeyIOReadBandwidth, "B/s"}, "wbps": {policy.KeyIOWriteBandwidth, "B/s"}, "riops": {policy.KeyIOReadIOPS, ""}, "wiops": {policy.KeyIOWriteIOPS, ""},
}

func (p *params) ioMax(f param) {
	for line := range strings.Lines(f.text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		for _, word := range words[1:] {
			name, number, _ := strings.Cut(word, "=")
			to, fine := ioMaxKeys[name]
			if !fine || !isDevice(words[0]) {
				p.fail(f.at, `write the device's number and the limits: "8:16 rbps=10485760 wiops=500"`, "io.max: %q is not a limit of a device", clean(line))
				break
			}
			if number == "max" {
				continue
			}
			if n, ok := p.number(param{f.file, number, f.at}, 1, math.MaxInt64); ok {
				p.set(p.g, to.key, words[0], strconv.FormatInt(n, 10)+to.unit, f.at, f.file+" = "+strings.TrimSpace(line))
			}
		}
	}
}

// diskWeight reads the weight of a group on all devices or on one: lines "250", "default 250" and "8:16 250". middle is what
// every group has there, and 100 in a policy (systemd's rule); most is the largest.
func diskWeight(middle, most int64) func(*params, param) {
	return func(p *params, f param) {
		for line := range strings.Lines(f.text) {
			line = strings.TrimSpace(line)
			on, number, two := strings.Cut(line, " ")
			switch {
			case line == "":
				continue
			case !two || on == "default":
				on, number = "", line[strings.LastIndexByte(line, ' ')+1:]
			case !isDevice(on):
				p.fail(f.at, `write a weight, or a device's number and a weight: "8:16 200"`, "%s: %q is not a weight", f.file, clean(line))
				continue
			}
			n, ok := p.number(param{f.file, number, f.at}, 0, most)
			if !ok || n == 0 { // 0 takes that of one device away
				continue
			}
			what := f.file + " = " + line
			if weight := min(max((n*100+middle/2)/middle, 1), maxWeight); p.set(p.g, policy.KeyIOWeight, on, strconv.FormatInt(weight, 10), f.at, what) && weight*middle != n*100 {
				p.change(f.at, what, "is a weight of %d", weight)
			}
		}
	}
}
