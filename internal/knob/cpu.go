package knob

import (
	"fmt"
	"time"

	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
)

// The kernel's bounds of a CPU bandwidth in microseconds (kernel/sched/core.c, both versions):
// periods lie between 1 ms and 1 s, a quota is at least 1 ms, a burst at most the quota.
const (
	minPeriod = 1_000
	maxPeriod = 1_000_000
	minQuota  = 1_000
)

// The kernel's default weights: of cpu.shares on v1 and of cpu.weight on v2.
const (
	defaultShares = "1024"
	defaultWeight = "100"
)

// idleSince is the kernel that brought cpu.idle, on both versions.
const idleSince = "5.15"

func cpuRows() []*Row {
	weightKeys := []policy.Key{policy.KeyCPUWeight, policy.KeyCPUIdle}
	limitKeys := []policy.Key{policy.KeyCPULimit, policy.KeyCPUPeriod}
	burstKeys := []policy.Key{policy.KeyCPUBurst, policy.KeyCPULimit, policy.KeyCPUPeriod}
	quotaProperties := []string{"CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec"}
	burst := Row{
		Controller: "cpu", Since: "5.14", Late: true, Keys: burstKeys, Unit: "µs", Descends: true, Default: "0",
		Up: 33, Down: 30, bundle: bundleBandwidth, form: format.Number{Unit: format.Microseconds},
		needed: allOf(policy.KeyCPUBurst, policy.KeyCPULimit), Encode: encodeBurst,
	}
	idle := Row{
		Controller: "cpu", File: "cpu.idle", Since: idleSince, Late: true, Keys: []policy.Key{policy.KeyCPUIdle},
		Unit:     "0 or 1",
		Descends: true, Default: "0", Up: 10, Down: 11, Risk: RiskSlow, Instead: "cpu.weight 1",
		bundle: bundleWeight, form: format.Number{Invert: true, Unit: format.Either("as weighed", "only when idle")},
		needed: anyOf(policy.KeyCPUIdle), Encode: encodeIdle,
	}
	return []*Row{
		on(1, "", idle, func(r *Row) { r.Resets = []string{"cpu.shares"} }),
		on(2, "", idle, func(r *Row) { r.Resets, r.properties = []string{"cpu.weight"}, []string{"CPUWeight"} }),
		{
			Controller: "cpu", Version: 1, File: "cpu.shares", Keys: weightKeys, Unit: "weight × 1024 / 100",
			Descends: true, Default: defaultShares,
			Up: 20, Down: 10, bundle: bundleWeight, form: format.Number{Unit: format.SharesWeight},
			serves: weightKeys[:1], needed: anyOf(weightKeys...), Encode: encodeWeight(1),
			properties: []string{"CPUWeight", "CPUShares"},
		},
		{
			Controller: "cpu", Version: 2, File: "cpu.weight", Since: "4.15", Keys: weightKeys, Unit: "weight",
			Descends: true, Default: defaultWeight,
			Up: 20, Down: 10, bundle: bundleWeight, form: format.WeightV2{Number: format.Number{Unit: format.Weight}},
			serves: weightKeys[:1], needed: anyOf(weightKeys...), Encode: encodeWeight(2),
			properties: []string{"CPUWeight"},
		},
		{
			Controller: "cpu", Version: 1, File: "cpu.cfs_period_us", Keys: limitKeys, Unit: "µs", Descends: true,
			Default: "100000",
			Up:      31, Down: 32, bundle: bundleBandwidth,
			form:   format.Number{Unit: format.Microseconds, Invert: true},
			serves: limitKeys, needed: anyOf(policy.KeyCPULimit), Encode: encodePeriod, properties: quotaProperties,
		},
		{
			Controller: "cpu", Version: 1, File: "cpu.cfs_quota_us", Keys: limitKeys, Unit: "µs in each period",
			Descends: true, Default: "-1",
			Up: 32, Down: 31, Risk: RiskSlow, bundle: bundleBandwidth, form: format.Number{None: "-1", Unit: quotaText},
			serves: limitKeys, needed: anyOf(policy.KeyCPULimit), Encode: encodeQuota, properties: quotaProperties,
		},
		{
			Controller: "cpu", Version: 2, File: "cpu.max", Since: "4.15", Keys: limitKeys,
			Unit: "µs in each period, period in µs", Descends: true, Default: "max 100000",
			Up: 31, Down: 31, Risk: RiskSlow, bundle: bundleBandwidth, form: format.CPUMax{},
			// Kernels before 6.10 and some stable ones take the burst for nanoseconds when cpu.max is
			// written, and so divide it by 1000 (fixed by "sched/core: Fix incorrect initialization of
			// the 'burst' parameter in cpu_max_write()").
			Resets: []string{"cpu.max.burst"},
			serves: limitKeys, needed: anyOf(policy.KeyCPULimit), Encode: encodeCPUMax, properties: quotaProperties,
		},
		on(1, "cpu.cfs_burst_us", burst, nil),
		on(2, "cpu.max.burst", burst, nil),
		{
			Controller: "cpu", Version: 1, File: "cpu.rt_runtime_us", Keys: []policy.Key{policy.KeyCPURT},
			Unit: "µs in each second", Descends: true, Default: "0",
			Option: "CONFIG_RT_GROUP_SCHED", Up: 34, Down: 34, Risk: RiskSlow,
			form:   format.Number{None: "-1", Unit: realTimeText},
			Covers: true, needed: anyOf(policy.KeyCPURT), Encode: encodeRT,
		},
	}
}

// on copies a row for one version of the hierarchy, under a file name of its own unless that is "".
func on(version int, file string, r Row, change func(*Row)) *Row {
	r.Version = version
	if file != "" {
		r.File = file
	}
	if change != nil {
		change(&r)
	}
	return &r
}

// encodeWeight gives cpu.weight, or v1's cpu.shares for it: weight × 1024 / 100, rounded as v2 does
// inside. A group that runs only when idle has the kernel's own weight for that, and the file then
// refuses every write (EINVAL): its value is what the kernel will show, and Sequence never writes it.
// Where cpu.idle is missing, weight 1 stands in for it.
func encodeWeight(version int) func(Input) (string, bool, error) {
	return func(in Input) (string, bool, error) {
		w, limited, set := get[policy.Weight](in.Settings, policy.KeyCPUWeight, "")
		if idle, _, _ := get[policy.Flag](in.Settings, policy.KeyCPUIdle, ""); bool(idle) {
			if version == 1 && in.kernel().Since(idleSince) {
				return format.IdleShares, true, nil
			}
			w, limited, set = 1, true, true
		}
		if set && !limited {
			w = 100
		}
		if version == 2 {
			return format.Decimal(int64(w)), set, nil
		}
		const minShares, maxShares = 2, 1 << 18 // MIN_SHARES and MAX_SHARES of kernel/sched
		return format.Decimal(min(max((int64(w)*1024+50)/100, minShares), maxShares)), set, nil
	}
}

func encodeIdle(in Input) (string, bool, error) {
	idle, _, set := get[policy.Flag](in.Settings, policy.KeyCPUIdle, "")
	if idle {
		return "1", true, nil
	}
	return "0", set, nil
}

// bandwidthOf computes quota and period of a group. Without a period of its own a limit so small that
// its quota falls below the kernel's 1 ms gets the shortest period that lifts it there.
func bandwidthOf(s policy.Settings) (b format.Bandwidth, set bool, err error) {
	limit, limited, set := get[policy.Cores](s, policy.KeyCPULimit, "")
	asked, hasPeriod, _ := get[policy.Duration](s, policy.KeyCPUPeriod, "")
	b = format.Bandwidth{Quota: -1, Period: format.DefaultPeriod}
	if hasPeriod {
		b.Period = time.Duration(asked).Microseconds()
	}
	if !set {
		return b, false, nil
	}
	if b.Period < minPeriod || b.Period > maxPeriod {
		return b, true, fmt.Errorf("encode cpu.period %q: the kernel takes 1ms to 1s", asked)
	}
	if !limited {
		return b, true, nil
	}
	b.Quota = int64(limit) * b.Period / policy.One
	if b.Quota < minQuota && !hasPeriod && limit > 0 {
		b.Period = (minQuota*policy.One + int64(limit) - 1) / int64(limit)
		b.Quota = minQuota
	}
	if b.Quota < minQuota || b.Period > maxPeriod {
		return b, true,
			fmt.Errorf("encode cpu.limit %q: less than the kernel's smallest quota of 1 ms in a period of %s",
				limit, format.Microseconds(min(b.Period, maxPeriod)))
	}
	return b, true, nil
}

func encodePeriod(in Input) (string, bool, error) {
	b, set, err := bandwidthOf(in.Settings)
	return format.Decimal(b.Period), set, err
}

func encodeQuota(in Input) (string, bool, error) {
	b, set, err := bandwidthOf(in.Settings)
	return format.Decimal(b.Quota), set, err
}

func encodeCPUMax(in Input) (string, bool, error) {
	b, set, err := bandwidthOf(in.Settings)
	return b.String(), set, err
}

// encodeBurst gives the burst in microseconds. Without a limit there is nothing to save up.
func encodeBurst(in Input) (string, bool, error) {
	asked, limited, set := get[policy.Duration](in.Settings, policy.KeyCPUBurst, "")
	b, _, err := bandwidthOf(in.Settings)
	if !set || b.Unlimited() || err != nil {
		return "", false, err
	}
	if !limited {
		return "0", true, nil
	}
	burst := time.Duration(asked).Microseconds()
	if burst > b.Quota {
		return "", true,
			fmt.Errorf("encode cpu.burst %q: the kernel takes no more than cpu.limit gives in one period, %s", asked,
				format.Microseconds(b.Quota))
	}
	return format.Decimal(burst), true, nil
}

// encodeRT gives the real-time run time in the kernel's default period of one second.
func encodeRT(in Input) (string, bool, error) {
	asked, limited, set := get[policy.Duration](in.Settings, policy.KeyCPURT, "")
	if !limited {
		return "0", set, nil // "max" gives back what a fresh group has, which is none
	}
	runtime := time.Duration(asked).Microseconds()
	if runtime > maxPeriod {
		return "", true, fmt.Errorf("encode cpu.rt %q: more than the second that it is measured over", asked)
	}
	return format.Decimal(runtime), true, nil
}

func quotaText(n int64) string    { return format.Microseconds(n) + " in each period" }
func realTimeText(n int64) string { return format.Microseconds(n) + " in each second" }
