package host

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"bulkhead/internal/linux/idset"
)

const kib, mib = 1 << 10, 1 << 20

// tree writes files below a new directory.
func tree(t *testing.T, files map[string]string) *Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return New(root)
}

func TestMemory(t *testing.T) {
	h := tree(t, map[string]string{
		"/proc/meminfo": "MemTotal: 1024 kB\nMemFree: 1 kB\nMemAvailable: 512 kB\nPageTables: 7 kB\n" +
			"SwapTotal: 9 kB\nSwapFree: 4 kB\n",
		"/sys/kernel/mm/transparent_hugepage/enabled":                            "always [madvise] never\n",
		"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size":                     "2097152\n",
		"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":                 "100\n",
		"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages":               "97\n",
		"/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages":               "63\n",
		"/sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages":            "1\n",
		"/sys/devices/system/node/node0/meminfo":                                 "Node 0 MemFree: 6 kB\n",
		"/sys/devices/system/node/node0/distance":                                "10 21\n",
		"/sys/devices/system/node/node1/meminfo":                                 "Node 1 MemFree: 400 kB\n",
		"/sys/devices/system/node/node1/distance":                                "21 10\n",
		"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages": "40\n",
	})
	facts := &Facts{PageSize: 4 * kib, HugePageSizes: []int64{2 * mib}, Nodes: []Node{
		{ID: 0, CPUs: idset.New(0, 1), MemTotal: 600 * kib}, {ID: 1, CPUs: idset.New(2), MemTotal: 424 * kib}}}
	m, err := h.Memory(facts)
	want := Memory{Total: mib, Available: 512 * kib, SwapTotal: 9 * kib, SwapFree: 4 * kib, PageTables: 7 * kib,
		Page: 4 * kib, THP: "madvise", THPSize: 2 * mib, Pools: []HugePages{{2 * mib, 100, 97, 63, 1}},
		Nodes: []NodeMemory{{0, "0-1", 600 * kib, 6 * kib, []int{10, 21}, []HugePages{{Size: 2 * mib}}},
			{1, "2", 424 * kib, 400 * kib, []int{21, 10}, []HugePages{{Size: 2 * mib, Pages: 40}}}}}
	if err != nil || !reflect.DeepEqual(m, want) {
		t.Errorf("%+v, %v\nwant %+v", m, err, want)
	}
}
