package cgroup

import (
	"slices"
	"testing"
)

func TestParsePIDs(t *testing.T) {
	for text, want := range map[string][]int{
		"":              nil,
		"1\n":           {1},
		"30\n2\n30\n1":  {1, 2, 30},
		"0\n7\n":        {7}, // a process outside our pid namespace
		"4194304\n\n7":  nil,
		"12 13\n":       nil,
		"-1\n":          nil,
		"process 12\n2": nil,
	} {
		got, err := parsePIDs(text)
		if want == nil && text != "" {
			if err == nil {
				t.Errorf("parsePIDs(%q) = %v, want an error", text, got)
			}
			continue
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("parsePIDs(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestMayHaveWith(t *testing.T) {
	have := []string{"blkio", "memory"} // as v1 names them
	for name, want := range map[string]bool{
		"memory.max": true, "io.max": true, "cgroup.procs": true, "cpu.pressure": true, "tasks": true,
		"cpu.max": false, "pids.max": false, "hugetlb.2MB.max": false,
	} {
		if got := MayHaveWith(have, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestLine(t *testing.T) {
	const text = "8:16 rbps=1048576 wbps=max\n8:1 rbps=1\n7:0 10\noom_kill 3\nalone"
	for key, want := range map[string]string{
		"8:16": "rbps=1048576 wbps=max", "8:1": "rbps=1", "7:0": "10", "oom_kill": "3", "8": "", "oom": "", "alone": "",
		"absent": "",
	} {
		if got := Line(text, key); got != want {
			t.Errorf("Line(%q) = %q, want %q", key, got, want)
		}
	}
	if got, want := Devices(text), []string{"7:0", "8:1", "8:16"}; !slices.Equal(got, want) {
		t.Errorf("Devices = %q, want %q", got, want)
	}
	if got := Devices("254:0 5\n7:10 1\n7:9 1\nTotal 6\n7: 1\n:1 1\n7:x 1"); !slices.Equal(got,
		[]string{"7:9", "7:10", "254:0"}) {
		t.Errorf("Devices = %q", got)
	}
}

func FuzzParsePIDs(f *testing.F) {
	f.Add("1\n2\n")
	f.Add("0\n0\n4194304")
	f.Fuzz(func(t *testing.T, text string) {
		pids, err := parsePIDs(text)
		if err == nil && (!slices.IsSorted(pids) || len(pids) > 0 && pids[0] <= 0) {
			t.Errorf("parsePIDs(%q) = %v", text, pids)
		}
	})
}
