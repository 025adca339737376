package convert

import (
	"slices"
	"strconv"

	"time"

	"bulkhead/internal/policy"
)

// The kernel's v1 scale: what a new group has, and the bounds (MIN_SHARES and MAX_SHARES of kernel/sched).
const (
	defaultShares = 1024
	MinShares     = 2
	MaxShares     = 1 << 18
	MaxWeight     = 10000 // of the policy's scale
)

// SettleWeights gives every group its weight. Weights compare siblings only, so those of one parent are converted
// together and keep their ratio: by weight = shares × 100/1024, each for itself, 1000:10 becomes 98:1.
func (d *Draft) SettleWeights(g *Group) {
	var of []*Group
	for _, c := range g.Children {
		d.SettleWeights(c)
		if c.Shares != nil {
			of = append(of, c)
		}
	}
	if len(of) == 0 {
		return
	}
	shares := make([]int64, len(of))
	for i, c := range of {
		shares[i] = c.Shares.N
	}
	weights, scaled, exact := weightsOf(shares)
	if scaled {
		// Siblings without shares have 1024, and must be put on the new scale, too.
		for _, c := range g.Children {
			if c.Shares == nil && !HasSetting(c, policy.KeyCPUWeight) && !HasSetting(c, policy.KeyCPUIdle) {
				of = append(of, c)
				shares = append(shares, defaultShares)
			}
		}
		weights, _, exact = weightsOf(shares)
	}
	for i, c := range of {
		what, at := "1024 shares, as every group has", c.pos
		if c.Shares != nil {
			what, at = c.Shares.What, c.Shares.At
		}
		if !d.Set(c, policy.KeyCPUWeight, "", strconv.FormatInt(weights[i], 10), at, what) {
			continue
		}
		switch back := min(max((weights[i]*1024+50)/100, MinShares), MaxShares); {
		case !exact:
			d.Change(at, what, "is a weight of %d: the ratio to the groups beside it fits a scale of 1 to "+
				"10000 only nearly", weights[i])
		case back != shares[i]:
			d.Change(at, what, "is a weight of %d, %d shares on cgroup v1: weights are whole numbers, and the ratio "+
				"to the groups beside it is kept", weights[i], back)
		}
	}
}

// HasSetting says whether a group has a limit of a key.
func HasSetting(g *Group, key policy.Key) bool {
	return slices.ContainsFunc(g.Settings, func(s setting) bool { return s.key == key })
}

// weightsOf gives weights of 1 to 10000 in the ratio of shares. They lie near shares × 100/1024 where such can have the
// very ratio; scaled says that they do not, exact that the ratio is kept.
func weightsOf(shares []int64) (weights []int64, scaled, exact bool) {
	natural := func(n int64) int64 { return min(max((n*100+512)/1024, 1), MaxWeight) }
	weights = make([]int64, len(shares))
	divisor, most := int64(0), int64(0)
	for i, n := range shares {
		weights[i] = natural(n)
		divisor, most = gcd(divisor, n), max(most, n)
	}
	if sameRatio(shares, weights) {
		return weights, false, true
	}
	// In lowest terms, times what brings them nearest to the kernel's own scale.
	factor := max((divisor*100+512)/1024, 1)
	if most/divisor*factor > MaxWeight {
		factor = MaxWeight / (most / divisor)
	}
	if factor == 0 {
		for i, n := range shares { // 1:20000 and the like
			weights[i] = max(1, n*MaxWeight/most)
		}
		return weights, true, false
	}
	for i, n := range shares {
		weights[i] = n / divisor * factor
	}
	off := weights[0]*1024 - shares[0]*100
	return weights, max(off, -off)*10 > shares[0]*100, true
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// sameRatio says whether two lists of at most 2^18 and 10000 are in one ratio.
func sameRatio(a, b []int64) bool {
	for i := range a {
		if a[i]*b[0] != a[0]*b[i] {
			return false
		}
	}
	return true
}

// The kernel's bounds on CPU bandwidth, in µs (kernel/sched/core.c, tg_set_cfs_bandwidth).
const (
	DefaultPeriod = 100_000
	MinPeriod     = 1000
	MaxPeriod     = 1_000_000
)

// Micros is a length of n µs as a policy has it.
func Micros(n int64) string { return policy.Duration(n * int64(time.Microsecond)).String() }
