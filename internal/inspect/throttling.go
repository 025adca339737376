package inspect

import (
	"context"
	"fmt"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/metrics"
	"bulkhead/internal/policy"
	"bulkhead/internal/transaction"
)

// Throttled is a limit that held a group back while it was watched.
type Throttled struct {
	Group string     `json:"group"`
	Key   policy.Key `json:"key"`
	On    string     `json:"on,omitempty"`
	How   string     `json:"how"` // what was counted meanwhile
}

// nearLimit is the part of an io limit from which on it counts as reached. The kernel does not count throttled
// requests, only those that went through.
const nearLimit = 0.9

// watchThrottling samples groups twice, d apart, and returns the limits that held them back in between. It waits for d
// or until the context ends.
func watchThrottling(ctx context.Context, v *transaction.View, groups []string, d time.Duration) ([]Throttled, error) {
	var s metrics.Sampler
	before := make([]metrics.Sample, len(groups))
	for i, g := range groups {
		before[i] = s.Take(ctx, v.Tree, v.Counted(g))
	}
	if err := transaction.Sleep(ctx, d); err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "watch the limits: %w", err)
	}
	all := []Throttled{}
	for i, g := range groups {
		all = append(all, throttledBy(g, settingsOf(v, g), s.Take(ctx, v.Tree, v.Counted(g)).Since(before[i]))...)
	}
	return all, nil
}

func settingsOf(v *transaction.View, group string) policy.Settings {
	for _, g := range v.Classified.Groups {
		if g.Path == group {
			return g.Settings
		}
	}
	return nil
}

// throttledBy returns the limits of a group that held it back. Nothing is told of a group whose directory was made anew
// meanwhile.
func throttledBy(group string, settings policy.Settings, d metrics.Delta) (all []Throttled) {
	if d.Anew {
		return nil
	}
	for _, s := range settings {
		if how := throttling(s, d); how != "" {
			all = append(all, Throttled{Group: group, Key: s.Key, On: s.On, How: how})
		}
	}
	return all
}

// throttling says how one limit held its group back; "" when it did not.
func throttling(s policy.Setting, d metrics.Delta) string {
	io := d.OnDevice(s.Dev)
	switch s.Key {
	case policy.KeyCPULimit:
		if n := metrics.Value(d.CPU.ThrottledPeriods); n > 0 {
			waited := time.Duration(metrics.Value(d.CPU.Throttled)) * time.Microsecond
			return fmt.Sprintf("throttled in %d of %d periods; its threads waited %s together",
				n, max(n, metrics.Value(d.CPU.Periods)), waited.Round(time.Millisecond))
		}
	case policy.KeyMemoryMax:
		if n := metrics.Value(d.Memory.OOMKills); n > 0 {
			return fmt.Sprintf("the kernel killed for it, %d times", n)
		}
		if n := metrics.Value(d.Memory.LimitHits); n > 0 {
			return fmt.Sprintf("reached %d times; each time the kernel took memory back first", n)
		}
	case policy.KeyMemoryHigh:
		if n := metrics.Value(d.Memory.HighHits); n > 0 {
			return fmt.Sprintf("above it %d times; each time the allocation was slowed down", n)
		}
	case policy.KeyTasks:
		if n := metrics.Value(d.Tasks.LimitHits); n > 0 {
			return fmt.Sprintf("%d forks were refused", n)
		}
	case policy.KeyIOReadBandwidth:
		return throttledIO(s, d.Rate(&io.ReadBytes))
	case policy.KeyIOWriteBandwidth:
		return throttledIO(s, d.Rate(&io.WrittenBytes))
	case policy.KeyIOReadIOPS:
		return throttledIO(s, d.Rate(&io.Reads))
	case policy.KeyIOWriteIOPS:
		return throttledIO(s, d.Rate(&io.Writes))
	}
	return ""
}

// throttledIO compares a rate, a second, with its limit.
func throttledIO(s policy.Setting, rate float64) string {
	var limit float64
	switch v := s.Value.(type) {
	case policy.Rate:
		limit = float64(v)
	case policy.IOPS:
		limit = float64(v)
	}
	if limit <= 0 || rate < nearLimit*limit {
		return ""
	}
	return fmt.Sprintf("%.0f %% of it was used", 100*rate/limit)
}
