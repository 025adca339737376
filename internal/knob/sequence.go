package knob

import (
	"bulkhead/internal/knob/format"
	"cmp"
	"slices"
	"strconv"
)

// Change is one value of one directory that is to become another.
type Change struct {
	Row      *Row
	On       string // device or page size, "" for other rows
	From, To string // as Encode writes them; From "" is the row's default
}

// bundle marks rows whose kernel checks look at each other, so that their writes belong together.
type bundle int

const (
	bundleNone      bundle = iota
	bundleBandwidth        // quota, period and burst of the CPU
	bundleWeight           // cpu.idle and the weight that it overrules
)

// Sequence puts the changes of one directory into an order that the kernel accepts at every step,
// with the writes in between that this takes, and leaves out what changes nothing. See Split for a
// tree of directories.
//
// The rules it keeps: v1's memory.limit_in_bytes never exceeds memory.memsw.limit_in_bytes; a CPU
// burst never exceeds its quota; on v1 the ratio of quota to period stays between that before and
// that after, or is lifted for a moment where no such way exists (50 ms of 100 ms to 5 ms of 10 ms),
// so that it fits below its parent and above its children; a weight is written after cpu.idle is
// taken away, and not at all where it is set.
//
// A change whose From and To are equal is context: it is written only if another write disturbs it.
func Sequence(changes []Change) []Change {
	raise, lower := Split(changes)
	return append(raise, lower...)
}

// Split is Sequence for a tree: raise holds the writes to be made from the top of the tree down,
// lower those to be made afterwards from the bottom up. Rows that belong together stay on one side. A
// v1 cpuset that loses some members and gains others appears on both: first with all of them.
func Split(changes []Change) (raise, lower []Change) {
	var bandwidths, weights, rest []Change
	for _, c := range changes {
		if c.From == "" {
			c.From = c.Row.Default
		}
		switch c.Row.bundle {
		case bundleBandwidth:
			bandwidths = append(bandwidths, c)
		case bundleWeight:
			weights = append(weights, c)
		default:
			rest = append(rest, c)
		}
	}
	for _, c := range rest {
		up, down := c.split()
		raise, lower = append(raise, up...), append(lower, down...)
	}
	for _, ordered := range []func() ([]Change, bool){
		func() ([]Change, bool) { return orderWeights(weights) },
		func() ([]Change, bool) { return orderBandwidth(bandwidths) },
	} {
		if steps, raises := ordered(); raises {
			raise = append(raise, steps...)
		} else {
			lower = append(lower, steps...)
		}
	}
	// Bundled rows have neighbouring ranks, or the sort would tear their steps apart.
	slices.SortStableFunc(raise, func(a, b Change) int { return cmp.Compare(a.rank(a.Row.Up), b.rank(b.Row.Up)) })
	slices.SortStableFunc(lower, func(a, b Change) int { return cmp.Compare(a.rank(a.Row.Down), b.rank(b.Row.Down)) })
	return raise, lower
}

// rank is a row's place in the order; all rows of a bundle share one, so that a stable sort keeps
// their steps in the order that was worked out for them.
func (c Change) rank(own int) int {
	switch c.Row.bundle {
	case bundleWeight:
		return 10
	case bundleBandwidth:
		return 30
	default:
		return own
	}
}

// split gives the writes of a row that no other row looks at.
func (c Change) split() (raise, lower []Change) {
	switch list, isList := c.Row.form.(format.IDList); {
	case c.Row.Same(c.To, c.From):
		return nil, nil
	case isList && c.Row.Version == 1:
		if both, ok := list.Union(c.From, c.To); ok {
			return []Change{c.to(both)}, []Change{c.from(both)}
		}
	}
	if c.Row.Loosens(c.From, c.To) {
		return []Change{c}, nil
	}
	return nil, []Change{c}
}

func (c Change) to(value string) Change   { c.To = value; return c }
func (c Change) from(value string) Change { c.From = value; return c }

// none says whether a change changes nothing.
func (c Change) none() bool { return c.Row.Same(c.To, c.From) }

// pick takes the change of a file out of a bundle.
func pick(changes []Change, files ...string) (Change, bool) {
	for _, c := range changes {
		if slices.Contains(files, c.Row.File) {
			return c, true
		}
	}
	return Change{}, false
}

// orderWeights orders cpu.idle and the weight. Setting cpu.idle makes the weight unwritable, and
// clearing it puts the weight to its default, whatever it was (kernel 5.15 and later). So the weight
// goes to its default before the one and leaves it after the other.
func orderWeights(changes []Change) (steps []Change, raises bool) {
	idle, hasIdle := pick(changes, "cpu.idle")
	weight, hasWeight := pick(changes, "cpu.shares", "cpu.weight")
	switch {
	case hasIdle && !idle.none():
		raises = idle.To != "1"
		if hasWeight && raises {
			weight = weight.from(weight.Row.Default)
		} else if hasWeight {
			weight = weight.to(weight.Row.Default)
		}
		if steps = []Change{idle}; hasWeight && !weight.none() {
			steps = append(steps, weight)
		}
		if !raises {
			slices.Reverse(steps)
		}
		return steps, raises
	case hasIdle && idle.To == "1":
		return nil, false
	case hasWeight && !weight.none():
		return []Change{weight}, weight.Row.Loosens(weight.From, weight.To)
	default:
		return nil, false
	}
}

// orderBandwidth orders the burst around the limit that it must fit in: it is lowered first and raised
// last. Where writing the limit changes it (cpu.max), it is taken away first and given back last.
func orderBandwidth(changes []Change) (steps []Change, raises bool) {
	burst, hasBurst := pick(changes, "cpu.cfs_burst_us", "cpu.max.burst")
	limit, raises := orderLimit(changes)
	if !hasBurst {
		return limit, raises
	}
	before, after := burst.to(burst.From), burst
	switch {
	case len(limit) == 0:
		raises = burst.Row.Loosens(burst.From, burst.To)
	case slices.Contains(limit[0].Row.Resets, burst.Row.File):
		before, after = burst.to(burst.Row.Default), burst.from(burst.Row.Default)
	case !burst.Row.Loosens(burst.From, burst.To):
		before, after = burst, burst.from(burst.To)
	}
	for _, c := range slices.Concat([]Change{before}, limit, []Change{after}) {
		if !c.none() {
			steps = append(steps, c)
		}
	}
	return steps, raises
}

// orderLimit orders cpu.max, or v1's quota and period.
func orderLimit(changes []Change) (steps []Change, raises bool) {
	if c, ok := pick(changes, "cpu.max"); ok {
		if c.none() {
			return nil, false
		}
		return []Change{c}, c.Row.Loosens(c.From, c.To)
	}
	quota, hasQuota := pick(changes, "cpu.cfs_quota_us")
	period, hasPeriod := pick(changes, "cpu.cfs_period_us")
	switch {
	case hasQuota && hasPeriod && !quota.none() && !period.none():
		return orderBoth(quota, period)
	case hasQuota && !quota.none():
		return []Change{quota}, quota.Row.Loosens(quota.From, quota.To)
	case hasPeriod && !period.none():
		return []Change{period}, period.Row.Loosens(period.From, period.To)
	default:
		return nil, false
	}
}

// orderBoth changes quota and period, which v1 keeps in two files. Each write changes the ratio, and
// the kernel refuses one above the parent's or below a child's. So a way is sought on which every
// ratio lies between the first and the last; where there is none the quota is lifted in between,
// which the kernel always takes and which lasts for two writes.
func orderBoth(quota, period Change) (steps []Change, raises bool) {
	from, okFrom := format.BandwidthFrom(quota.From, period.From)
	to, okTo := format.BandwidthFrom(quota.To, period.To)
	if !okFrom || !okTo {
		return []Change{quota, period}, quota.Row.Loosens(quota.From, quota.To)
	}
	between := format.Bandwidth{Quota: -1}.Quota
	switch {
	case from.Unlimited():
		between = from.Quota
	case to.Unlimited():
		between = to.Quota
	default:
		if q, ok := format.Bridge(from, to); ok {
			between = q
		}
	}
	middle := strconv.FormatInt(between, 10)
	for _, step := range []Change{quota.to(middle), period, quota.from(middle)} {
		if !step.none() {
			steps = append(steps, step)
		}
	}
	return steps, to.Compare(from) >= 0
}
