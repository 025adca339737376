package control

import (
	"context"
	"fmt"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/policy"
)

// Bite is a limit that holds a group back now.
type Bite struct {
	Group string     `json:"group"`
	Key   policy.Key `json:"key"`
	On    string     `json:"on,omitempty"`
	How   string     `json:"how"` // what was counted while it was watched
}

// nearly is the part of an IO limit from which on it counts as reached: the kernel tells of no throttling, only of what went through.
const nearly = 0.9

// biting watches groups for a while and says which of their limits held them back meanwhile.
func biting(ctx context.Context, v *View, groups []string, d time.Duration) ([]Bite, error) {
	before, start := make([]cgroup.Usage, len(groups)), time.Now()
	for i, g := range groups {
		before[i] = usageOf(v, g)
	}
	if err := sleep(ctx, d); err != nil {
		return nil, fail(CodeFailed, "", "watch the limits: %w", err)
	}
	bites := []Bite{}
	for i, g := range groups {
		bites = append(bites, bitesOf(g, settingsOf(v, g), before[i], usageOf(v, g), time.Since(start))...)
	}
	return bites, nil
}

func settingsOf(v *View, group string) policy.Settings {
	for _, g := range v.Classified.Groups {
		if g.Path == group {
			return g.Settings
		}
	}
	return nil
}

// bitesOf compares what a group's directories counted before and after.
func bitesOf(group string, settings policy.Settings, before, after cgroup.Usage, d time.Duration) (bites []Bite) {
	for _, s := range settings {
		if how := bite(s, before, after, d); how != "" {
			bites = append(bites, Bite{Group: group, Key: s.Key, On: s.On, How: how})
		}
	}
	return bites
}

func bite(s policy.Setting, before, after cgroup.Usage, d time.Duration) string {
	switch s.Key {
	case policy.KeyCPULimit:
		if n := rise(before.CPU.ThrottledPeriods, after.CPU.ThrottledPeriods); n > 0 {
			waited := time.Duration(rise(before.CPU.Throttled, after.CPU.Throttled)) * time.Microsecond
			return fmt.Sprintf("throttled in %d of %d periods; its threads waited %s together", n, max(n, rise(before.CPU.Periods, after.CPU.Periods)), waited.Round(time.Millisecond))
		}
	case policy.KeyMemoryMax:
		if n := rise(before.Memory.OOMKills, after.Memory.OOMKills); n > 0 {
			return fmt.Sprintf("the kernel killed for it, %d times", n)
		}
		if n := rise(before.Memory.LimitHits, after.Memory.LimitHits); n > 0 {
			return fmt.Sprintf("reached %d times; each time the kernel took memory back first", n)
		}
	case policy.KeyMemoryHigh:
		if n := rise(before.Memory.HighHits, after.Memory.HighHits); n > 0 {
			return fmt.Sprintf("above it %d times; each time the allocation was slowed down", n)
		}
	case policy.KeyTasks:
		if n := rise(before.Tasks.LimitHits, after.Tasks.LimitHits); n > 0 {
			return fmt.Sprintf("%d forks were refused", n)
		}
	case policy.KeyIOReadBandwidth, policy.KeyIOWriteBandwidth, policy.KeyIOReadIOPS, policy.KeyIOWriteIOPS:
		return biteOfIO(s, before, after, d)
	}
	return ""
}

// biteOfIO compares the rate with the limit.
func biteOfIO(s policy.Setting, before, after cgroup.Usage, d time.Duration) string {
	on := func(u cgroup.Usage) (io cgroup.IOUsage) {
		for _, one := range u.IO {
			if one.Device == s.Dev {
				io = one
			}
		}
		return io
	}
	b, a := on(before), on(after)
	var done, limit float64
	switch s.Key {
	case policy.KeyIOReadBandwidth:
		done = float64(a.ReadBytes - b.ReadBytes)
	case policy.KeyIOWriteBandwidth:
		done = float64(a.WrittenBytes - b.WrittenBytes)
	case policy.KeyIOReadIOPS:
		done = float64(a.Reads - b.Reads)
	case policy.KeyIOWriteIOPS:
		done = float64(a.Writes - b.Writes)
	}
	switch v := s.Value.(type) {
	case policy.Rate:
		limit = float64(v)
	case policy.IOPS:
		limit = float64(v)
	}
	rate := done / d.Seconds()
	if limit <= 0 || rate < nearly*limit {
		return ""
	}
	return fmt.Sprintf("%.0f %% of it was used", 100*rate/limit)
}

// rise is by how much a counter rose; 0 where it is not counted.
func rise(before, after *int64) int64 {
	if before == nil || after == nil {
		return 0
	}
	return max(0, *after-*before)
}
