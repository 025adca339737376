package bench

import (
	"testing"
	"time"

	"bulkhead/internal/cgroup"
)

func TestBetween(t *testing.T) {
	before := map[string]cgroup.Usage{
		"g": {CPU: cgroup.CPUUsage{Total: new(int64(1_000_000))}, IO: []cgroup.IOUsage{{Device: "8:0", WrittenBytes: 100}}},
		"h": {},
	}
	after := map[string]cgroup.Usage{
		"g": {
			CPU:    cgroup.CPUUsage{Total: new(int64(4_000_000))},
			IO:     []cgroup.IOUsage{{Device: "8:0", WrittenBytes: 300}, {Device: "8:16", WrittenBytes: 200}},
			Memory: cgroup.MemoryUsage{Peak: new(int64(77)), OOMKills: new(int64(2))},
		},
		"h": {},
	}
	got := between(before, after, 2*time.Second)
	if want := (usage{CPU: 1.5, Written: 200, Peak: 77, OOMKills: 2}); got["g"] != want {
		t.Errorf("used %+v, want %+v", got["g"], want)
	}
	if want := (usage{CPU: -1, Written: -1, Peak: -1, OOMKills: -1}); got["h"] != want {
		t.Errorf("a group without counters used %+v, want %+v", got["h"], want)
	}
}

func TestOverRounds(t *testing.T) {
	samples := []sample{
		{usage: map[string]usage{"g": {CPU: 1, Written: 10, Peak: 5, OOMKills: 1}}},
		{usage: map[string]usage{"g": {CPU: 3, Written: 30, Peak: 9, OOMKills: -1}}},
		{usage: map[string]usage{"g": {CPU: 2, Written: 20, Peak: 7, OOMKills: 2}}},
	}
	if got, want := overRounds(samples, "g"), (usage{CPU: 2, Written: 20, Peak: 9, OOMKills: 3}); got != want {
		t.Errorf("over rounds %+v, want %+v", got, want)
	}
}

func TestMeasuredOf(t *testing.T) {
	none := usage{CPU: -1, Written: -1, Peak: -1, OOMKills: -1}
	tests := []struct {
		group string
		u     usage
		want  string
	}{
		{groupDatabase, usage{CPU: 1.9}, "1.90 cores"},
		{groupCPU, none, "this kernel does not count it"},
		{groupMemory, usage{Peak: 256 << 20, OOMKills: 1}, "peak 256 MiB, killed in its group once"},
		{groupMemory, usage{Peak: 100 << 20}, "peak 100 MiB"},
		{groupDisk, usage{Written: 20 << 20}, "20 MiB/s"},
	}
	for _, tt := range tests {
		if got := measuredOf(tt.group, tt.u); got != tt.want {
			t.Errorf("%s with %+v is %q, want %q", tt.group, tt.u, got, tt.want)
		}
	}
}
