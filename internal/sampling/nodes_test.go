package sampling

import (
	"errors"
	"reflect"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
)

// Memory of all directories of a group is added up. A directory that goes leaves the others, a group without any has
// no figures, and what a sample has stays as it was read.
func TestNodesOfGroups(t *testing.T) {
	fake := cgroupfake.New([]host.Hierarchy{{ID: procfs.UnifiedID, Version: 2, Controllers: []string{"hugetlb"},
		Mount: "/sys/fs/cgroup", Root: "/"}}, cgroupfake.Options{HugePageSizes: []int64{2 << 20}})
	top := cgroup.Dir{Hierarchy: procfs.UnifiedID, Path: "/"}
	a, outside, b := top.Child("a"), top.Child("outside"), top.Child("b")
	if err := errors.Join(fake.Enable(top, []string{"hugetlb"}), fake.Make(a), fake.Make(outside),
		fake.Make(b)); err != nil {
		t.Fatal(err)
	}
	const pool = "hugetlb.2MB.numa_stat"
	fake.Set(a.File(pool), "total=6 N0=5 N1=1")
	fake.Set(outside.File(pool), "total=20 N0=0 N1=20")
	fake.Set(b.File(pool), "total=7 N0=7")
	k := New(nil)
	group := func(name string, dirs ...cgroup.Dir) watchedGroup {
		return watchedGroup{Group: observe.Group{Group: name}, from: metrics.Group{Dirs: [][]cgroup.Dir{dirs}}}
	}
	k.Watch(&Watched{tree: fake.Tree, groups: []watchedGroup{group("a", a, outside), group("b", b)}})
	read := func() (s observe.Sample) {
		t.Helper()
		put, err := k.nodes(t.Context(), noMeter())
		if err != nil {
			t.Fatal(err)
		}
		s.Groups = []observe.Group{{Group: "b"}, {Group: "a"}, {Group: "came later"}}
		put(&s)
		return s
	}
	nodes := func(bytes ...int64) map[int]map[string]int64 {
		all := map[int]map[string]int64{}
		for node, n := range bytes {
			all[node] = map[string]int64{"2MB": n}
		}
		return all
	}
	want := func(s observe.Sample, all ...map[int]map[string]int64) {
		t.Helper()
		for i, g := range s.Groups {
			if !reflect.DeepEqual(g.Nodes, all[i]) {
				t.Errorf("%s has %v, want %v", g.Group, g.Nodes, all[i])
			}
		}
	}
	first := read()
	want(first, nodes(7), nodes(5, 21), nil)
	fake.Vanish(b)
	fake.Vanish(outside)
	want(read(), nil, nodes(5, 1), nil)
	want(first, nodes(7), nodes(5, 21), nil)
}

// What the files of a group's directories tell of nodes adds up, by the pages that the memory is in.
func TestNodesOfMemory(t *testing.T) {
	nodes := map[int]map[string]int64{}
	addNodes(nodes, map[string]string{
		"memory.numa_stat":       "anon N0=900 N1=100\nfile N0=70 N1=50\nshmem N0=20 N1=0\nanon_thp N0=800 N1=0\n",
		"hugetlb.2MB.numa_stat":  "total=6291456 N0=4194304 N1=2097152\n",
		"hugetlb.1GB.numa_stat":  "total=0 N0=0 N1=0\n",
		"hugetlb.64KB.numa_stat": "nonsense\n",
	}, 2)
	addNodes(nodes, map[string]string{"memory.numa_stat": "anon N1=1\nfile N1=2\nshmem N1=0\nanon_thp N1=0\n"}, 2)
	want := map[int]map[string]int64{
		0: {"usual": 120, "transparent": 800, "cache": 50, "2MB": 4 << 20, "1GB": 0},
		1: {"usual": 101, "transparent": 0, "cache": 52, "2MB": 2 << 20, "1GB": 0},
	}
	if !reflect.DeepEqual(nodes, want) {
		t.Errorf("%v, want %v", nodes, want)
	}
}
