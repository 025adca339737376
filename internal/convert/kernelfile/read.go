package kernelfile

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/convert"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
)

// Param is one file of a control group with what is, or was, to be written to it.
type Param struct {
	File, Text string
	At         policy.Pos
}

// What is the line that a param comes from, for comments and reports.
func (p Param) What() string { return p.File + " = " + p.Text }

// Params turns the files of one group into limits.
type Params struct {
	*convert.Draft
	G   *convert.Group
	All []Param
	// SayDefaults notes what is left out because every group has it: for files that somebody wrote.
	SayDefaults bool

	files map[string]Param // of All, the first of each name
	by    map[limited]Param
	mark  int // of what was said and set so far
}

// limited is what a file limits.
type limited struct {
	key policy.Key
	on  string
}

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

// said grows with everything that comes of a file.
func (p *Params) said() int {
	return p.mark + p.Report.Said()
}

// set gives the group a limit, unless a newer file of the same group has given it one already; an older one gives way.
func (p *Params) set(key policy.Key, on, text string, f Param, what string) bool {
	p.mark++
	at := limited{key, on}
	if other, both := p.by[at]; both && other.File != f.File {
		if rank(other.File) >= rank(f.File) {
			p.Change(f.At, what, "gives way to %s: both limit the same", other.What())
			return false
		}
		p.Change(other.At, other.What(), "gives way to %s: both limit the same", what)
	}
	p.by[at] = f
	return p.Set(p.G, key, on, text, f.At, what)
}

// rank orders files that limit the same: those of cgroup v2 go before v1's, and those of the scheduler that weighs
// (BFQ) before what another would take.
func rank(file string) (n int) {
	if !strings.Contains(file, "_in_bytes") && !strings.HasPrefix(file, "blkio.") && !strings.HasPrefix(file, "cpu.cfs") {
		n++
	}
	if strings.Contains(file, ".bfq.") {
		n += 2
	}
	return n
}

// of finds another file of the group.
func (p *Params) of(file string) (Param, bool) {
	f, there := p.files[file]
	return f, there
}

// number reads a whole number as the kernel does: 010 and 0x8 are 8.
func (p *Params) number(f Param, lowest, highest int64) (int64, bool) {
	text := strings.TrimSpace(f.Text)
	return p.numberOf(f, base(text), lowest, highest)
}

// decimal reads a number of a device's limit, for which the kernel knows no other base (sscanf in blk-throttle.c).
func (p *Params) decimal(f Param, lowest, highest int64) (int64, bool) {
	return p.numberOf(f, 10, lowest, highest)
}

func (p *Params) numberOf(f Param, base int, lowest, highest int64) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(f.Text), base, 64)
	if err != nil {
		p.Fail(f.At, fmt.Sprintf("write a whole number from %d to %d", lowest, highest), "%s: %q is not a number",
			f.File, convert.Clean(f.Text))
		return 0, false
	}
	if n < lowest || n > highest {
		p.Fail(f.At, "", "%s: %d is outside %d to %d", f.File, n, lowest, highest)
		return 0, false
	}
	return n, true
}

// base is the base of a number, as kstrtoull of the kernel takes it.
func base(text string) int {
	text = strings.TrimLeft(text, "+-")
	switch {
	case strings.HasPrefix(text, "0x"), strings.HasPrefix(text, "0X"):
		return 0
	case len(text) > 1 && text[0] == '0':
		return 8
	}
	return 10
}

// bytes reads an amount as memparse of the kernel does: 4096, 512M, 2G; none is no limit.
func (p *Params) bytes(f Param) (n int64, none, ok bool) {
	text := strings.TrimSpace(f.Text)
	if text == "max" || text == "-1" {
		return 0, true, true
	}
	digits, shift := text, 0
	if i := len(text) - 1; i > 0 && (base(text) != 0 || text[i]&^0x20 != 'E') {
		if unit := strings.IndexByte("KMGTPE", text[i]&^0x20); unit >= 0 && text[i] > '9' {
			digits, shift = text[:i], 10*(unit+1)
		}
	}
	u, err := strconv.ParseUint(digits, base(digits), 64)
	switch {
	case err != nil || digits[0] == '+':
		p.Fail(f.At, "the kernel takes bytes, K, M, G and T, powers of 1024: 512M", "%s: %q is not an amount of memory",
			f.File, convert.Clean(f.Text))
		return 0, false, false
	case u >= noLimit>>shift:
		return 0, true, true
	}
	return int64(u) << shift, false, true
}

// noLimit is what v1 shows for no limit, or nearly.
const noLimit = math.MaxInt64 - 1<<40

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

// throttle reads lines "8:16 10485760" of v1's blkio.
func throttle(key policy.Key, unit string) func(*Params, Param) {
	return func(p *Params, f Param) {
		for line := range strings.Lines(f.Text) {
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			if len(words) != 2 || !convert.IsDevice(words[0]) {
				p.Fail(f.At, `write the device's number and the limit: "8:16 10485760"`,
					"%s: %q is not a limit of a device", f.File, convert.Clean(line))
				continue
			}
			n, ok := p.decimal(Param{f.File, words[1], f.At}, 0, math.MaxInt64)
			if ok && n > 0 { // 0 takes the limit away
				p.set(key, words[0], strconv.FormatInt(n, 10)+unit, f, f.File+" = "+strings.TrimSpace(line))
			}
		}
	}
}

// ioMaxKeys are the words of v2's io.max.
var ioMaxKeys = map[string]struct {
	key  policy.Key
	unit string
}{
	"rbps": {policy.KeyIOReadBandwidth, "B/s"}, "wbps": {policy.KeyIOWriteBandwidth, "B/s"},
	"riops": {policy.KeyIOReadIOPS, ""}, "wiops": {policy.KeyIOWriteIOPS, ""},
}

func (p *Params) ioMax(f Param) {
	for line := range strings.Lines(f.Text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		for _, word := range words[1:] {
			name, number, _ := strings.Cut(word, "=")
			to, fine := ioMaxKeys[name]
			if !fine || !convert.IsDevice(words[0]) {
				p.Fail(f.At, `write the device's number and the limits: "8:16 rbps=10485760 wiops=500"`,
					"io.max: %q is not a limit of a device", convert.Clean(line))
				break
			}
			if number == "max" {
				continue
			}
			if n, ok := p.decimal(Param{f.File, number, f.At}, 1, math.MaxInt64); ok {
				p.set(to.key, words[0], strconv.FormatInt(n, 10)+to.unit, f,
					f.File+" = "+strings.TrimSpace(line))
			}
		}
	}
}

// diskWeight reads the weight of a group on all devices or on one: lines "250", "default 250" and "8:16 250". middle is
// what every group has there, and 100 in a policy (systemd's rule); lowest and most are the kernel's bounds.
func diskWeight(middle, lowest, most int64) func(*Params, Param) {
	return func(p *Params, f Param) {
		for line := range strings.Lines(f.Text) {
			line = strings.TrimSpace(line)
			on, number, two := strings.Cut(line, " ")
			switch {
			case line == "":
				continue
			case !two || on == "default":
				on, number = "", line[strings.LastIndexByte(line, ' ')+1:]
			case !convert.IsDevice(on):
				p.Fail(f.At, `write a weight, or a device's number and a weight: "8:16 200"`, "%s: %q is not a weight",
					f.File, convert.Clean(line))
				continue
			}
			n, ok := p.number(Param{f.File, number, f.At}, 0, most)
			if !ok || n == 0 { // 0 takes that of one device away
				continue
			}
			what := f.File + " = " + line
			fit := max(n, lowest)
			weight := min(max((fit*100+middle/2)/middle, 1), convert.MaxWeight)
			switch set := p.set(policy.KeyIOWeight, on, strconv.FormatInt(weight, 10), f, what); {
			case !set:
			case fit != n:
				p.Change(f.At, what, "is a weight of %d, as of %d, the lowest that kernels take there", weight, fit)
			case weight*middle != n*100:
				p.Change(f.At, what, "is a weight of %d", weight)
			}
			if on != "" {
				p.Change(f.At, what, "names a disk, so that plan has the disk weigh (BFQ or iocost) where it does not yet; "+
					"the file that this was imported from changed no disk")
			}
		}
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
