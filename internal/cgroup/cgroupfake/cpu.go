package cgroupfake

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/cgroup/cgroupfake/kstrto"
)

// Limits of kernel/sched/core.c, in microseconds and shares.
const (
	minPeriod, maxPeriod = 1000, 1_000_000
	minQuota             = 1000
	maxQuota             = 1<<44 - 1
	minShares            = 2
	maxShares            = 1 << 18
	idleShares           = 3
	defaultShares        = 1024
)

// cpuFiles are those of the cpu controller. The numbers behind v1's and v2's files are the same, kept
// under the v1 names: quota -1 is no limit.
func cpuFiles() []*file {
	return []*file{
		{name: "cpu.shares", version: 1, controller: "cpu", initial: "1024", write: writeShares},
		{name: "cpu.idle", version: 1, controller: "cpu", since: since515, initial: "0", write: writeIdle},
		{name: "cpu.cfs_quota_us", version: 1, controller: "cpu", initial: "-1",
			write: func(k *kernel, g *group, text string) error {
				quota, err := kstrto.Signed(text)
				if err != nil {
					return err
				}
				b := bandwidthOf(g)
				b.quota = max(quota, -1)
				return k.setBandwidth(g, b)
			}},
		{name: "cpu.cfs_period_us", version: 1, controller: "cpu", initial: "100000",
			write: func(k *kernel, g *group, text string) error {
				period, err := kstrto.Unsigned(text)
				if err != nil {
					return err
				}
				b := bandwidthOf(g)
				b.period = int64(min(period, maxPeriod+1))
				return k.setBandwidth(g, b)
			}},
		{name: "cpu.cfs_burst_us", version: 1, controller: "cpu", since: since514, initial: "0", write: writeBurst},
		{name: "cpu.rt_runtime_us", version: 1, controller: "cpu", initial: "0", write: (*kernel).writeRuntime},
		{name: "cpu.rt_period_us", version: 1, controller: "cpu", initial: "1000000", write: (*kernel).writePeriod},
		counter("cpu.stat", 1, "cpu", "nr_periods 0\nnr_throttled 0\nthrottled_time 0"),

		{name: "cpu.weight", version: 2, controller: "cpu", place: notRoot,
			read: func(k *kernel, g *group) string {
				weight := (sharesOf(g)*100 + 512) / 1024
				if !k.options.older(since612) { // before, an idle group's shares of 3 read as 0 (seen on 6.1)
					weight = max(weight, 1)
				}
				return fmt.Sprint(weight)
			},
			write: func(_ *kernel, g *group, text string) error {
				weight, err := kstrto.Unsigned(text)
				switch {
				case err != nil:
					return err
				case weight < 1 || weight > 10000:
					return syscall.ERANGE
				case idle(g):
					return syscall.EINVAL
				}
				g.values["cpu.shares"] = fmt.Sprint((weight*1024 + 50) / 100)
				return nil
			}},
		{name: "cpu.idle", version: 2, controller: "cpu", place: notRoot, since: since515, initial: "0",
			write: writeIdle},
		{name: "cpu.max", version: 2, controller: "cpu", place: notRoot,
			read: func(_ *kernel, g *group) string {
				b := bandwidthOf(g)
				if b.quota < 0 {
					return fmt.Sprintf("max %d", b.period)
				}
				return fmt.Sprintf("%d %d", b.quota, b.period)
			},
			write: writeCPUMax},
		{name: "cpu.max.burst", version: 2, controller: "cpu", place: notRoot, since: since514,
			read:  func(_ *kernel, g *group) string { return fmt.Sprint(bandwidthOf(g).burst) },
			write: writeBurst},
	}
}

func sharesOf(g *group) int64 { return g.number("cpu.shares", defaultShares) }

func idle(g *group) bool { return g.values["cpu.idle"] == "1" }

func writeShares(_ *kernel, g *group, text string) error {
	shares, err := kstrto.Unsigned(text)
	switch {
	case err != nil:
		return err
	case g.root() || idle(g):
		return syscall.EINVAL
	}
	g.values["cpu.shares"] = fmt.Sprint(min(max(shares, minShares), maxShares))
	return nil
}

// writeIdle changes the shares too: 3 while idle, and the default afterwards whatever it was before.
func writeIdle(_ *kernel, g *group, text string) error {
	on, err := kstrto.Signed(text)
	switch {
	case err != nil:
		return err
	case g.root() || on != 0 && on != 1:
		return syscall.EINVAL
	case fmt.Sprint(on) == g.value("cpu.idle", "0"):
		return nil
	}
	g.values["cpu.idle"], g.values["cpu.shares"] = "0", fmt.Sprint(defaultShares)
	if on == 1 {
		g.values["cpu.idle"], g.values["cpu.shares"] = "1", fmt.Sprint(idleShares)
	}
	return nil
}

// bandwidth is a group's CPU limit in microseconds.
type bandwidth struct{ quota, period, burst int64 }

func bandwidthOf(g *group) bandwidth {
	return bandwidth{
		quota:  g.number("cpu.cfs_quota_us", -1),
		period: g.number("cpu.cfs_period_us", 100_000),
		burst:  g.number("cpu.cfs_burst_us", 0),
	}
}

// setBandwidth is tg_set_cfs_bandwidth.
func (k *kernel) setBandwidth(g *group, b bandwidth) error {
	switch {
	case g.root():
		return syscall.EINVAL
	case b.quota >= 0 && (b.quota < minQuota || b.quota > maxQuota):
		return syscall.EINVAL
	case b.period < minPeriod || b.period > maxPeriod:
		return syscall.EINVAL
	case b.quota >= 0 && b.burst > b.quota:
		return syscall.EINVAL
	}
	old := bandwidthOf(g)
	g.keep(b)
	if g.Version == 1 && !fits(k.roots[g.ID], unlimited) {
		g.keep(old)
		return syscall.EINVAL
	}
	return nil
}

func (g *group) keep(b bandwidth) {
	g.values["cpu.cfs_quota_us"] = fmt.Sprint(b.quota)
	g.values["cpu.cfs_period_us"] = fmt.Sprint(b.period)
	g.values["cpu.cfs_burst_us"] = fmt.Sprint(b.burst)
}

const unlimited = -1

// fits is v1's rule: no group's quota/period may exceed that of its nearest limited ancestor, given as a
// ratio in 1/2^20. v2 has no such rule.
func fits(g *group, above int64) bool {
	ratio := above
	if b := bandwidthOf(g); b.quota >= 0 {
		ratio = b.quota << 20 / b.period
		if above != unlimited && ratio > above {
			return false
		}
	}
	for _, child := range g.children {
		if !fits(child, ratio) {
			return false
		}
	}
	return true
}

func writeBurst(k *kernel, g *group, text string) error {
	burst, err := kstrto.Unsigned(text)
	if err != nil {
		return err
	}
	if burst > maxQuota {
		return syscall.EINVAL
	}
	b := bandwidthOf(g)
	b.burst = int64(burst)
	return k.setBandwidth(g, b)
}

// writeCPUMax takes "max", "50000" or "50000 100000".
func writeCPUMax(k *kernel, g *group, text string) error {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return syscall.EINVAL
	}
	b := bandwidthOf(g)
	if b.quota = -1; fields[0] != "max" {
		quota, err := kstrto.Unsigned(fields[0])
		if err != nil || quota > maxQuota {
			return syscall.EINVAL
		}
		b.quota = int64(quota)
	}
	if len(fields) > 1 {
		period, rest, _ := kstrto.Digits(fields[1])
		if rest != "" {
			return syscall.EINVAL
		}
		b.period = int64(min(period, maxPeriod+1))
	}
	return k.setBandwidth(g, b)
}

func cpuStatV2(_ *kernel, g *group) string {
	text := "usage_usec 0\nuser_usec 0\nsystem_usec 0"
	if !g.root() && slices.Contains(g.available(), "cpu") {
		text += "\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0"
	}
	return text
}

// realtime is a v1 group's real-time budget as a ratio in 1/2^20.
func realtime(g *group) int64 {
	runtime := g.number("cpu.rt_runtime_us", 0)
	return runtime << 20 / g.number("cpu.rt_period_us", 1_000_000)
}

func (k *kernel) writeRuntime(g *group, text string) error {
	runtime, err := kstrto.Signed(text)
	if err != nil {
		return err
	}
	return k.setRealtime(g, "cpu.rt_runtime_us", runtime, runtime, g.number("cpu.rt_period_us", 1_000_000))
}

func (k *kernel) writePeriod(g *group, text string) error {
	period, err := kstrto.Unsigned(text)
	if err == nil && (period == 0 || period > 1<<40) {
		err = syscall.EINVAL
	}
	if err != nil {
		return err
	}
	return k.setRealtime(g, "cpu.rt_period_us", int64(period), g.number("cpu.rt_runtime_us", 0), int64(period))
}

// setRealtime holds the children's budgets against the parent's, at every level (CONFIG_RT_GROUP_SCHED).
func (k *kernel) setRealtime(g *group, name string, value, runtime, period int64) error {
	switch {
	case runtime < 0 || runtime > period:
		return syscall.EINVAL
	case runtime == 0 && k.realtimeIn(g):
		return syscall.EBUSY
	}
	old, had := g.values[name]
	g.values[name] = fmt.Sprint(value)
	ok := true
	k.roots[g.ID].each(func(up *group) {
		var children int64
		for _, child := range up.children {
			children += realtime(child)
		}
		ok = ok && children <= realtime(up)
	})
	if !ok {
		if delete(g.values, name); had {
			g.values[name] = old
		}
		return syscall.EINVAL
	}
	return nil
}

func (k *kernel) forbidsRealtime(t *thread) bool {
	for _, g := range t.groups {
		if g.Version == 1 && g.Has("cpu") && k.file(g, "cpu.rt_runtime_us") != nil && realtime(g) == 0 {
			return true
		}
	}
	return false
}
