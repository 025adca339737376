package cgroup

import (
	"maps"
	"reflect"
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
		"v1": {one, 1, map[int]int64{0: 200 * 4096, 1: 100 * 4096}},
		"v2": {two, 2, map[int]int64{0: 4196, 1: 8192}},
		"swap cache is anonymous": {"anon N0=90 N1=5\nfile N0=70 N1=6\nswapcached N0=30 N1=8\n", 2,
			map[int]int64{0: 160, 1: 11}},
		"nothing": {"", 2, map[int]int64{}},
		"broken":  {"anon N0=x Nx=3 N1\n", 2, map[int]int64{}},
	} {
		if got := NodeBytes(c.text, c.version, 4096); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Memory on nodes is told apart by the pages that it is in.
func TestNodePages(t *testing.T) {
	const one = "total=7 N0=5 N1=2\nhierarchical_total=350 N0=250 N1=100\nhierarchical_file=40 N0=30 N1=10\n" +
		"hierarchical_anon=260 N0=180 N1=80\nhierarchical_unevictable=50 N0=40 N1=10\n"
	const two = "anon N0=9000 N1=100\nfile N0=700 N1=50\nkernel_stack N0=1 N1=1\nshmem N0=600 N1=0\n" +
		"anon_thp N0=8000 N1=0\nfile_thp N0=5 N1=0\nshmem_thp N0=500 N1=0\nactive_anon N0=9 N1=9\n"
	for name, c := range map[string]struct {
		text    string
		version int
		want    map[int]OnNode
	}{
		"v1":        {one, 1, map[int]OnNode{0: {220 * 4096, nil, 30 * 4096}, 1: {90 * 4096, nil, 10 * 4096}}},
		"v2":        {two, 2, map[int]OnNode{0: {1100, new(int64(8500)), 100}, 1: {100, new(int64(0)), 50}}},
		"v2 no THP": {"anon N0=90\nfile N0=7\nshmem N0=2\n", 2, map[int]OnNode{0: {92, nil, 5}}},
		"not at one instant": {"anon N0=10\nanon_thp N0=12\nfile N0=1\nshmem N0=0\n", 2,
			map[int]OnNode{0: {0, new(int64(12)), 1}}},
		"swap cache": {"anon N0=90 N1=5\nfile N0=70 N1=6\nshmem N0=20 N1=0\nswapcached N0=30 N1=8\n", 2,
			map[int]OnNode{0: {110, nil, 50}, 1: {5, nil, 6}}},
		"nothing": {"", 2, map[int]OnNode{}},
	} {
		if got := NodePages(c.text, c.version, 4096); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	const v1 = "total=0 N0=0 N1=0\nhierarchical_total=6291456 N0=4194304 N1=2097152\n"
	for name, text := range map[string]string{"v1": v1, "v2": "total=6291456 N0=4194304 N1=2097152\n"} {
		if got := PoolNodes(text); !maps.Equal(got, map[int]int64{0: 4 << 20, 1: 2 << 20}) {
			t.Errorf("pool on %s: %v", name, got)
		}
	}
}
