package cgroup

import (
	"maps"
	"testing"
)

func TestNodeBytes(t *testing.T) {
	const one = "total=7 N0=5 N1=2\nfile=1 N0=1 N1=0\nhierarchical_total=300 N0=200 N1=100\nhierarchical_file=1 N0=1 " +
		"N1=0\n"
	const two = "anon N0=4096 N1=8192\nfile N0=100 N1=0\nkernel_stack N0=1 N1=1\nshmem N0=50 N1=0\nfile_mapped N0=7 " +
		"N1=7\n"
	for name, c := range map[string]struct {
		text    string
		version int
		want    map[int]int64
	}{
		"v1":      {one, 1, map[int]int64{0: 200 * 4096, 1: 100 * 4096}},
		"v2":      {two, 2, map[int]int64{0: 4196, 1: 8192}},
		"nothing": {"", 2, map[int]int64{}},
		"broken":  {"anon N0=x Nx=3 N1\n", 2, map[int]int64{}},
	} {
		if got := NodeBytes(c.text, c.version, 4096); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
