package collect

import (
	"time"

	"bulkhead/internal/observe"
)

// waitsFrom is the part of a time from which on a group waits so much in it that it is worth a closer look.
const waitsFrom = 0.1

// Waits says whether a database waited for something for a tenth of the time between two samples, or was held back by
// its CPU limit for as long.
func Waits(before, now *observe.Sample) bool {
	if before == nil {
		return false
	}
	was := map[string]*observe.Group{}
	for i := range before.Groups {
		was[before.Groups[i].Group] = &before.Groups[i]
	}
	pressed, ran := between(before, now, observe.Pressure), between(before, now, observe.CPU)
	for i := range now.Groups {
		g := &now.Groups[i]
		if b := was[g.Group]; b != nil && g.Role == "database" && (long(stalled(b, g), pressed) ||
			long(throttled(b, g), ran)) {
			return true
		}
	}
	return false
}

// between is the time between the readings of a collector that two samples have; 0: they have the same one, or one has
// none.
func between(before, now *observe.Sample, p observe.Part) time.Duration {
	var at [2]time.Time
	for i, s := range []*observe.Sample{before, now} {
		for _, c := range s.Collectors {
			if c.Name == p && c.Told {
				at[i] = s.At.Add(-c.Age)
			}
		}
	}
	if at[0].IsZero() || at[1].IsZero() {
		return 0
	}
	return at[1].Sub(at[0])
}

func long(waited, span time.Duration) bool {
	return span > 0 && float64(waited) >= waitsFrom*float64(span)
}

// stalled is the longest time that a group waited for a resource.
func stalled(before, now *observe.Group) (longest time.Duration) {
	for resource, p := range now.Usage.Pressure {
		if b := before.Usage.Pressure[resource]; b.Some != nil && p.Some != nil {
			longest = max(longest, microseconds(b.Some.Total, p.Some.Total))
		}
	}
	return longest
}

// throttled is the time for which its CPU limit held a group back.
func throttled(before, now *observe.Group) time.Duration {
	if b, n := before.Usage.CPU.Throttled, now.Usage.CPU.Throttled; b != nil && n != nil {
		return microseconds(*b, *n)
	}
	return 0
}

func microseconds(before, now int64) time.Duration {
	return time.Duration(now-before) * time.Microsecond
}
