package memory

import (
	"strings"
	"testing"

	"bulkhead/internal/advise/gather/hugepages"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/memory"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// What is printed of an instance says by what it is meant, and draws each node.
func TestPrintDetail(t *testing.T) {
	i := &memory.Instance{
		Summary: memory.Summary{Name: "postgresql5432", PID: 4711, Processes: 2, Swap: mib, PageTables: 64 * mib,
			THP: "off"},
		Pages: []memory.Pages{{Size: 4 << 10, Shared: 12 * mib, Private: 500 * mib},
			{Size: 2 * mib, Shared: 2 * gib, Mapped: 4 * gib}},
		Files: 30 * mib, SavedTables: 60 * mib,
		Nodes: []memory.Use{
			{Node: 0, Bytes: 2 * gib, BySize: map[int64]int64{4 << 10: 512 * mib, 2 * mib: 1536 * mib}},
			{Node: 1, Bytes: 512 * mib, BySize: map[int64]int64{2 * mib: 512 * mib}},
		},
		Policies: []memory.Policy{{Policy: "default", Bytes: 2560 * mib}},
		Members: []memory.Process{{PID: 4711, Part: "main", Nodes: map[int]int64{0: 2 * gib, 1: 512 * mib},
			Dirty: gib}},
	}
	machine := host.Memory{Total: 16 * gib, Available: 8 * gib, THP: "madvise",
		Pools: []host.HugePages{{Size: 2 * mib, Pages: 2048, Free: 1024, Reserved: 1024}},
		Nodes: []host.NodeMemory{{ID: 0, CPUs: "0-1", Total: 8 * gib, Free: gib, Distances: []int{10, 21}},
			{ID: 1, CPUs: "2-3", Total: 8 * gib, Free: 4 * gib, Distances: []int{21, 10}}}}
	var out strings.Builder
	printDetail(&out, &detail{Machine: machine, Instance: i, Imbalance: i.Imbalance(2), Warnings: []string{"look out"},
		Said: []memory.Said{{Setting: "huge_pages", Value: "on", From: "the server"}}})
	want := []string{
		"postgresql5432, process 4711: 2.5 GiB in 2 processes\n",
		"page tables      64 MiB; about 4 MiB if it were in pages of 2 MiB\n",
		"huge pages       really used: 2 GiB touched of 4 GiB mapped, in pages of 2 MiB\n",
		"transparent      0 B in use; off: the process switched them off for itself\n",
		"huge_pages       on (the server)\n",
		"policy           default: 2.5 GiB\n",
		"0     2 GiB    80 %   " + strings.Repeat("#", 10) + strings.Repeat("=", 30) + "\n",
		"1     512 MiB  20 %   " + strings.Repeat("=", 10) + "\n",
		"# pages of 4 KiB, = pages of 2 MiB\n",
		"the fullest node has 1.60 times an even share\n",
		"warning: look out\n",
	}
	for _, part := range want {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
	out.Reset()
	printOverview(&out, &overview{Machine: machine, Instances: []memory.Summary{{Name: "mysql3306", Private: gib,
		THP: "madvise", Processes: 1, Group: map[int]int64{1: gib}}, {Name: "mysql3307", GroupOf: "mysql3306",
		Counted: []string{"mysql3306"}}}})
	for _, part := range []string{
		"mysql3306  -       1 GiB    -", "2 MiB             2048   1024  1024      -        4 GiB",
		"1     2-3   8 GiB  4 GiB  50 %  21 10", "mysql3306, mysql3307  -       1 GiB\n",
		"mysql3307 maps shared memory that counts for mysql3306\n",
		"`bulkhead memory mysql3306` reads its maps",
	} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
}

// The pool is printed with what it is made up of.
func TestPrintSizing(t *testing.T) {
	var out strings.Builder
	printSizing(&out, sizing{Instances: []want{
		{Need: hugepages.Need{Instance: "mysql3306", Page: 2 * mib, Pages: 66, Told: true,
			Setting: "large_pages = yes (a.cnf:1)",
			Inputs: []hugepages.Input{{Name: "innodb_buffer_pool_size", Bytes: 132 * mib, Pages: 66,
				From: "a.cnf:2"}}}},
		{Need: hugepages.Need{Instance: "postgresql5432", Page: 2 * mib, Setting: "huge_pages = off (b:1)",
			Unknown: "no maps", Nodes: []int{1}}},
		wantOf(engine.Instance{Engine: engine.MongoDB, Version: "8.0.4"},
			hugepages.Need{Instance: "mongodb27017"}),
	}, Pool: hugepages.Pool{Page: 2 * mib, Instances: 66, Others: 4, Pages: 70, Has: 20, Missing: 50,
		Nodes: []hugepages.Share{{Node: 0, Pages: 70, Has: 20}}, Unknown: []string{"oracleX"}}})
	for _, part := range []string{
		"mysql3306         66     yes     large_pages = yes (a.cnf:1)\n",
		"innodb_buffer_pool_size 132 MiB: 66 (a.cnf:2)\n", "postgresql5432    ?      no      huge_pages = off (b:1)\n",
		"not known: no maps\n", "of the nodes 1 alone\n", "mongodb27017      -      -       none of a pool\n",
		"transparent huge pages: it wants always (MEM-12)\n",
		"is to have 70: 66 of the instances that count, 1 % more (0), 4 of other programs. It has 20.\n",
		"  node 0: 70; it has 20\n", "  and those of oracleX, which are not known\n",
		"50 pages are missing: `bulkhead tune plan`",
	} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
}
