package inspect

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/metrics"
	"bulkhead/internal/policy"
)

func TestThrottling(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	settings := policy.Settings{
		{Key: policy.KeyCPULimit, Value: policy.Cores(1)},
		{Key: policy.KeyMemoryMax, Value: policy.Bytes(1 << 30)},
		{Key: policy.KeyMemoryHigh, Value: policy.Bytes(1 << 29)},
		{Key: policy.KeyTasks, Value: policy.Count(10)},
		{Key: policy.KeyIOReadBandwidth, On: "/data", Dev: "8:16", Value: policy.Rate(1000)},
		{Key: policy.KeyIOWriteIOPS, On: "/data", Dev: "8:16", Value: policy.IOPS(100)},
		{Key: policy.KeyCPUWeight, Value: policy.Weight(10)},
	}
	quiet := metrics.Usage{
		CPU:    metrics.CPU{Periods: n(100), ThrottledPeriods: n(50), Throttled: n(1000)},
		Memory: metrics.Memory{LimitHits: n(7), HighHits: n(9), OOMKills: n(1)},
		Tasks:  metrics.Tasks{LimitHits: n(3)},
		IO:     []metrics.IO{{Device: "8:0", ReadBytes: 5}, {Device: "8:16", ReadBytes: 100, Writes: 10}},
	}
	for name, c := range map[string]struct {
		after metrics.Usage
		want  []string
	}{
		"nothing":            {quiet, nil},
		"nothing is counted": {metrics.Usage{}, nil},
		"cpu": {metrics.Usage{CPU: metrics.CPU{Periods: n(120), ThrottledPeriods: n(62), Throttled: n(601_000)}},
			[]string{"cpu.limit throttled in 12 of 20 periods; its threads waited 600ms together"}},
		"memory": {metrics.Usage{Memory: metrics.Memory{LimitHits: n(8), HighHits: n(11), OOMKills: n(1)}},
			[]string{"memory.max reached 1 times", "memory.high above it 2 times"}},
		"killed": {metrics.Usage{Memory: metrics.Memory{LimitHits: n(8), OOMKills: n(2)}},
			[]string{"memory.max the kernel killed for it, 1 times"}},
		"tasks": {metrics.Usage{Tasks: metrics.Tasks{LimitHits: n(5)}}, []string{"tasks 2 forks were refused"}},
		"io at its limit": {metrics.Usage{IO: []metrics.IO{{Device: "8:16", ReadBytes: 2060, Writes: 150}}},
			[]string{"io.read.bandwidth on /data 98 % of it was used"}},
		"io of another device": {metrics.Usage{IO: []metrics.IO{{Device: "8:0", ReadBytes: 99999, Writes: 9999}}},
			nil},
		"a counter that began anew": {metrics.Usage{CPU: metrics.CPU{ThrottledPeriods: n(1)}}, nil},
	} {
		var got []string
		start := time.Now()
		last := metrics.Sample{At: start.Add(2 * time.Second), Usage: c.after}
		for _, b := range throttledBy("g", settings, last.Since(metrics.Sample{At: start, Usage: quiet})) {
			on := ""
			if b.On != "" {
				on = " on " + b.On
			}
			got = append(got, string(b.Key)+on+" "+b.How)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
			continue
		}
		for i, want := range c.want {
			if !strings.HasPrefix(got[i], want) {
				t.Errorf("%s: %q, want %q", name, got[i], want)
			}
		}
	}
}
