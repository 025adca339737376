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
	span := now.At.Sub(before.At)
	was := map[string]*observe.Group{}
	for i := range before.Groups {
		was[before.Groups[i].Group] = &before.Groups[i]
	}
	for i := range now.Groups {
		g := &now.Groups[i]
		if b := was[g.Group]; b != nil && g.Role == "database" && span > 0 &&
			float64(waited(b, g)) >= waitsFrom*float64(span) {
			return true
		}
	}
	return false
}

// waited is the longest time that a group waited for anything.
func waited(before, now *observe.Group) (longest time.Duration) {
	note := func(before, now int64) {
		longest = max(longest, time.Duration(now-before)*time.Microsecond)
	}
	for resource, p := range now.Usage.Pressure {
		if b := before.Usage.Pressure[resource]; b.Some != nil && p.Some != nil {
			note(b.Some.Total, p.Some.Total)
		}
	}
	if b, n := before.Usage.CPU.Throttled, now.Usage.CPU.Throttled; b != nil && n != nil {
		note(*b, *n)
	}
	return longest
}
