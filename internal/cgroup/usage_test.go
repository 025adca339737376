package cgroup

import (
	"slices"
	"testing"
)

func TestUsageAdd(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	u := Usage{Memory: MemoryUsage{Current: n(5), Peak: n(9)}, CPU: CPUUsage{Total: n(1)}, IO: []IOUsage{{Device: "8:16", Reads: 1}}}
	first := u.IO
	u.Add(Usage{Memory: MemoryUsage{Current: n(7), Swap: n(2), Peak: n(8)}, Tasks: TaskUsage{Current: n(3)}, IO: []IOUsage{{Device: "8:0", Writes: 4}, {Device: "8:16", Reads: 2}}})
	if *u.Memory.Current != 12 || *u.Memory.Swap != 2 || u.Memory.Peak != nil || *u.CPU.Total != 1 || *u.Tasks.Current != 3 {
		t.Errorf("%+v", u)
	}
	if want := []IOUsage{{Device: "8:0", Writes: 4}, {Device: "8:16", Reads: 3}}; !slices.Equal(u.IO, want) || first[0].Reads != 1 {
		t.Errorf("io %+v, want %+v", u.IO, want)
	}
}
