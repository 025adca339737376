package kernelfile

import (
	"math"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/convert"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
)

// Carry turns every file of the group into limits, or says why not.
func (p *Params) Carry() {
	p.files, p.by = map[string]Param{}, map[limited]Param{}
	for _, f := range p.All {
		if _, twice := p.files[f.File]; !twice {
			p.files[f.File] = f
		}
	}
	for _, f := range p.All {
		if read := carried[f.File]; read != nil {
			before := p.said()
			if read(p, f); p.SayDefaults && p.said() == before {
				p.Note("%s is what every group has, and is left out", f.What())
			}
			continue
		}
		if size, rest, ok := hugeFile(f.File); ok && !counting(f.File) {
			p.huge(f, size, rest)
			continue
		}
		p.LeaveFile(f)
	}
}

// LeaveFile reports a file that has no place in a policy, and why.
func (p *Params) LeaveFile(f Param) {
	controller, _, _ := strings.Cut(f.File, ".")
	why, left := leftOut[f.File]
	if whole, ok := WholeControllers[controller]; ok && !left {
		why = whole
	} else if !left {
		why = [2]string{counts}
	}
	p.Leave(f.At, why[1], f.What(), "%s", why[0])
}

func (p *Params) cpuShares(f Param) {
	if n, ok := p.number(f, 0, math.MaxInt64); ok {
		if newer, both := p.of("cpu.weight"); both {
			p.Change(f.At, f.What(), "gives way to %s, the newer one", newer.What())
			return
		}
		p.mark++
		p.G.Shares = &convert.Share{N: min(max(n, convert.MinShares), convert.MaxShares), At: f.At, What: f.What()}
	}
}

func (p *Params) cpuWeight(f Param) {
	if n, ok := p.number(f, 1, convert.MaxWeight); ok {
		p.set(policy.KeyCPUWeight, "", strconv.FormatInt(n, 10), f, f.What())
	}
}

func (p *Params) cpuIdle(f Param) {
	if n, ok := p.number(f, 0, 1); ok && n == 1 {
		p.set(policy.KeyCPUIdle, "", "true", f, f.What())
	}
}

// bandwidth sets cpu.limit, and cpu.period where it is not the kernel's own.
func (p *Params) bandwidth(f Param, quota, period int64, what string) {
	if quota > math.MaxInt64/policy.One {
		p.Fail(f.At, "", "%s: %d is too large", f.File, quota)
		return
	}
	// Rounded up, so that the knob's rounding down gives the quota again.
	limit := (quota*policy.One + period - 1) / period
	if p.set(policy.KeyCPULimit, "", policy.Cores(limit).String(), f, what) && period != convert.DefaultPeriod {
		p.Set(p.G, policy.KeyCPUPeriod, "", policy.Duration(period*int64(time.Microsecond)).String(), f.At, what)
	}
}

func (p *Params) cpuQuota(f Param) {
	quota, ok := p.number(f, -1, math.MaxInt64)
	period, what := int64(convert.DefaultPeriod), f.What()
	if other, there := p.of("cpu.cfs_period_us"); there {
		var fine bool
		if period, fine = p.number(other, convert.MinPeriod, convert.MaxPeriod); !fine {
			return
		}
		what += " of " + other.Text
	}
	newer, both := p.of("cpu.max")
	switch {
	case !ok || quota < 0:
	case both:
		p.Change(f.At, what, "gives way to %s: both limit the same", newer.What())
	case quota < convert.MinPeriod:
		p.Fail(f.At, "the kernel's smallest quota is 1000, 1 ms", "cpu.cfs_quota_us: %d is too small", quota)
	default:
		p.bandwidth(f, quota, period, what)
	}
}

func (p *Params) cpuPeriod(f Param) {
	if quota, there := p.of("cpu.cfs_quota_us"); there && !strings.HasPrefix(strings.TrimSpace(quota.Text), "-") {
		p.mark++ // cpuQuota reads it
		return
	}
	if period, ok := p.number(f, convert.MinPeriod, convert.MaxPeriod); ok && period != convert.DefaultPeriod {
		p.Leave(f.At, "", f.What(), "a period without a quota limits nothing")
	}
}

func (p *Params) cpuMax(f Param) {
	words := strings.Fields(f.Text)
	period := int64(convert.DefaultPeriod)
	if len(words) == 2 {
		var ok bool
		if period, ok = p.number(Param{f.File, words[1], f.At}, convert.MinPeriod, convert.MaxPeriod); !ok {
			return
		}
	}
	if len(words) < 1 || len(words) > 2 {
		p.Fail(f.At, `write a quota and a period in µs: "400000 100000"`, "cpu.max: %q is not a limit",
			convert.Clean(f.Text))
		return
	}
	if words[0] == "max" {
		return
	}
	if quota, ok := p.number(Param{f.File, words[0], f.At}, convert.MinPeriod, math.MaxInt64); ok {
		p.bandwidth(f, quota, period, f.What())
	}
}

func (p *Params) cpuBurst(f Param) {
	n, ok := p.number(f, 0, math.MaxInt64/1000)
	switch quota := p.hasQuota(); {
	case !ok || n == 0:
	case !quota:
		p.Leave(f.At, "", f.What(), "a burst without a quota lets nobody use more")
	default:
		p.set(policy.KeyCPUBurst, "", convert.Micros(n), f, f.What())
	}
}

// hasQuota says whether a file limits the CPU time.
func (p *Params) hasQuota() bool {
	v1, there1 := p.of("cpu.cfs_quota_us")
	v2, there2 := p.of("cpu.max")
	return there1 && !strings.HasPrefix(strings.TrimSpace(v1.Text), "-") ||
		there2 && !strings.HasPrefix(strings.TrimSpace(v2.Text), "max")
}

func (p *Params) cpuRT(f Param) {
	n, ok := p.number(f, -1, math.MaxInt64/1_000_000)
	period, what := int64(convert.MaxPeriod), f.What()
	if other, there := p.of("cpu.rt_period_us"); ok && there {
		period, ok = p.number(other, 1, math.MaxInt32)
		what += " of " + other.Text
	}
	switch {
	case !ok || n == 0:
	case n < 0:
		p.Leave(f.At, "", f.What(), "without an end it would be all of the CPU for real-time tasks")
	case n > period:
		p.Fail(f.At, "", "cpu.rt_runtime_us: %d is more than its period of %d", n, period)
	default:
		p.set(policy.KeyCPURT, "", convert.Micros(n*convert.MaxPeriod/period), f, what)
		if period != convert.MaxPeriod {
			p.Change(f.At, what, "is %s in each second: a policy has no other period",
				convert.Micros(n*convert.MaxPeriod/period))
		}
	}
}

func (p *Params) cpuRTPeriod(f Param) {
	if _, there := p.of("cpu.rt_runtime_us"); there {
		p.mark++ // cpuRT reads it
	} else {
		p.Leave(f.At, "", f.What(), "a period without run time limits nothing")
	}
}

// ids reads a list of CPUs or nodes.
func ids(key policy.Key) func(*Params, Param) {
	return func(p *Params, f Param) {
		set, err := idset.Parse(strings.TrimSpace(f.Text))
		if err != nil {
			p.Fail(f.At, `write a list such as "0-3,8"`, "%s: %q is not a list of numbers", f.File,
				convert.Clean(f.Text))
			return
		}
		if len(set) > 0 { // else what the group above has
			p.set(key, "", set.String(), f, f.What())
		}
	}
}

// bytesOf reads an amount of memory.
func bytesOf(key policy.Key) func(*Params, Param) {
	return func(p *Params, f Param) {
		n, none, ok := p.bytes(f)
		switch protects := key == policy.KeyMemoryMin || key == policy.KeyMemoryLow; {
		case !ok || none && !protects || n == 0 && !none && protects:
		case none:
			p.Leave(f.At, "write an amount", f.What(), "protection of all the memory there is")
		default:
			p.set(key, "", policy.Bytes(n).String(), f, f.What())
		}
	}
}

// memoryAndSwap turns v1's limit of memory and swap together into one of swap beside memory.
func (p *Params) memoryAndSwap(f Param) {
	both, none, ok := p.bytes(f)
	if !ok || none {
		return
	}
	limit, there := p.of("memory.limit_in_bytes")
	if !there {
		p.Leave(f.At, "add memory.limit_in_bytes", f.What(),
			"a limit of memory and swap together needs one of memory, or the kernel refuses it")
		return
	}
	memory, unlimited, ok := p.bytes(limit)
	switch {
	case !ok:
	case unlimited || both < memory:
		p.FailWith(f.At, limit.At, "it is the sum of memory and swap, so not less than memory.limit_in_bytes",
			"%s is below %s: the kernel refuses it", f.What(), limit.What())
	default:
		p.set(policy.KeyMemorySwap, "", policy.Bytes(both-memory).String(), f, f.What())
	}
}

func (p *Params) softLimit(f Param) {
	n, none, ok := p.bytes(f)
	if !ok || none {
		return
	}
	if n > 0 && p.set(policy.KeyMemoryLow, "", policy.Bytes(n).String(), f, f.What()) {
		p.Change(f.At, f.What(), "is memory.low: below it the group's memory is taken last. It is held on "+
			"cgroup v2 only")
	}
}

func (p *Params) swappiness(f Param) {
	if n, ok := p.number(f, 0, 200); ok {
		p.set(policy.KeyMemorySwappiness, "", strconv.FormatInt(n, 10), f, f.What())
	}
}

func (p *Params) oomControl(f Param) {
	for line := range strings.Lines(f.Text) { // as the kernel shows it
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill_disable "); ok {
			f.Text = value
		}
	}
	if n, ok := p.number(f, 0, 1); ok && n == 1 { // 0 is what every group has
		p.set(policy.KeyMemoryOOM, "", "pause", f, f.What())
	}
}

func (p *Params) oomGroup(f Param) {
	if n, ok := p.number(f, 0, 1); ok && n == 1 {
		p.set(policy.KeyMemoryOOM, "", "kill-group", f, f.What())
	}
}

func (p *Params) tasks(f Param) {
	if strings.TrimSpace(f.Text) == "max" {
		return
	}
	if n, ok := p.number(f, 0, math.MaxInt64); ok {
		p.set(policy.KeyTasks, "", strconv.FormatInt(min(n, 1<<22), 10), f, f.What())
	}
}

func (p *Params) huge(f Param, size, rest string) {
	n, none, ok := p.bytes(f)
	switch {
	case !ok || none:
	case strings.HasPrefix(rest, "rsvd."):
		p.Leave(f.At, "memory.huge limits what is in use", f.What(),
			"a policy has no key for reservations of huge pages")
	default:
		if back := n / policy.HugePageSize(size) * policy.HugePageSize(size); back != n {
			p.Change(f.At, f.What(), "is %s: the kernel counts whole pages", policy.Bytes(back))
			n = back
		}
		p.set(policy.KeyMemoryHuge, strings.TrimSuffix(size, "B")+"iB", policy.Bytes(n).String(), f, f.What())
	}
}

// WholeControllers are those of which no file has a place in a policy.
var WholeControllers = map[string][2]string{
	"devices": {"bulkhead does not govern access to devices",
		"with systemd: DevicePolicy=closed and DeviceAllow= of the service"},
	"ns": {"the ns controller went with kernel 3.0, and namespaces are no limits",
		"with systemd: PrivateTmp=, PrivateNetwork= and the like of the service"},
	"net_cls": {"a class of traffic control is not a limit by itself",
		"ask for `network: [{on: default, egress: 100Mbit/s}]`"},
	"net_prio": {"a priority of traffic is not a limit by itself",
		"ask for `network: [{on: default, egress: 100Mbit/s}]`"},
	"perf_event": {counts},
	"cpuacct":    {counts},
	"rdma":       {convert.NoKey}, "misc": {convert.NoKey}, "dmem": {convert.NoKey}, "debug": {convert.NoKey},
}

// carried are the files that a policy has a key for, by the function that reads them.
var carried = map[string]func(*Params, Param){
	"cpu.shares": (*Params).cpuShares, "cpu.weight": (*Params).cpuWeight, "cpu.idle": (*Params).cpuIdle,
	"cpu.max":          (*Params).cpuMax,
	"cpu.cfs_quota_us": (*Params).cpuQuota, "cpu.cfs_period_us": (*Params).cpuPeriod,
	"cpu.cfs_burst_us": (*Params).cpuBurst, "cpu.max.burst": (*Params).cpuBurst,
	"cpu.rt_runtime_us": (*Params).cpuRT, "cpu.rt_period_us": (*Params).cpuRTPeriod,
	"cpuset.cpus": ids(policy.KeyCPUCPUs), "cpuset.mems": ids(policy.KeyMemoryNUMA),
	"memory.limit_in_bytes": bytesOf(policy.KeyMemoryMax), "memory.max": bytesOf(policy.KeyMemoryMax),
	"memory.memsw.limit_in_bytes": (*Params).memoryAndSwap, "memory.swap.max": bytesOf(policy.KeyMemorySwap),
	"memory.soft_limit_in_bytes": (*Params).softLimit,
	"memory.min":                 bytesOf(policy.KeyMemoryMin), "memory.low": bytesOf(policy.KeyMemoryLow),
	"memory.high":       bytesOf(policy.KeyMemoryHigh),
	"memory.swappiness": (*Params).swappiness, "memory.oom_control": (*Params).oomControl,
	"memory.oom.group":                 (*Params).oomGroup,
	"pids.max":                         (*Params).tasks,
	"blkio.throttle.read_bps_device":   throttle(policy.KeyIOReadBandwidth, "B/s"),
	"blkio.throttle.write_bps_device":  throttle(policy.KeyIOWriteBandwidth, "B/s"),
	"blkio.throttle.read_iops_device":  throttle(policy.KeyIOReadIOPS, ""),
	"blkio.throttle.write_iops_device": throttle(policy.KeyIOWriteIOPS, ""), "io.max": (*Params).ioMax,
	"blkio.weight": diskWeight(500, 10, 1000), "blkio.weight_device": diskWeight(500, 10, 1000),
	"io.weight":        diskWeight(100, 1, convert.MaxWeight),
	"blkio.bfq.weight": diskWeight(100, 1, 1000), "blkio.bfq.weight_device": diskWeight(100, 1, 1000),
	"io.bfq.weight": diskWeight(100, 1, 1000),
}
