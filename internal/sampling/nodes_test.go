package sampling

import (
	"reflect"
	"testing"
)

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
