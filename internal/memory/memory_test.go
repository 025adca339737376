package memory

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/pagemap"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// A node that is too small and one that is full are told.
func TestWarnings(t *testing.T) {
	m := host.Memory{Nodes: []host.NodeMemory{{ID: 0, Total: 600 * kib, Free: 6 * kib},
		{ID: 1, Total: 424 * kib, Free: 400 * kib}}}
	i := &Instance{Pages: []Pages{{Size: 4 * kib, Private: 500 * kib}}, Policies: []Policy{{"default", 500 * kib}},
		Nodes: []Use{{Node: 0, Bytes: 400 * kib}, {Node: 1, Bytes: 100 * kib}}}
	got := strings.Join(i.Warnings(m), "\n")
	for _, part := range []string{"than node 1 has at all", "node 0 is full while another has a fifth free"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q is not in the warnings %q", part, got)
		}
	}
	if b := i.Imbalance(2); b != 1.6 {
		t.Errorf("imbalance %v, want 1.6", b)
	}
	i.Policies = []Policy{{"interleave:0-1", 400 * kib}, {"default", 100 * kib}}
	m.Nodes[0].Free = 300 * kib
	if got := i.Warnings(m); len(got) != 0 {
		t.Errorf("warnings of what is interleaved: %q", got)
	}
	i.Policies = []Policy{{"bind:0", 400 * kib}, {"bind=static:0,2", 100 * kib}}
	if got := i.Warnings(m); len(got) != 0 {
		t.Errorf("warnings of what is bound to other nodes: %q", got)
	}
	i.Policies = []Policy{{"default", 500 * kib}}
	m.Nodes[1].Total, m.Nodes[1].Free = 0, 0
	if got := i.Warnings(m); len(got) != 0 || len(m.WithMemory()) != 1 {
		t.Errorf("warnings of a node without memory: %q", got)
	}
}

// What processes share counts once, and what lies in files is no memory of the instance.
func TestReading(t *testing.T) {
	r := reading{page: 4 * kib, pages: map[int64]*Pages{4 * kib: {Size: 4 * kib}}, nodes: map[int]map[int64]int64{},
		policies: map[string]int64{}, objects: map[string]*object{}, swapped: map[string]int64{}}
	pool := pagemap.Mapping{Start: 1, Object: "00:0f:1", File: "/anon_hugepage (deleted)", Shared: true, Size: gib,
		PageSize: 2 * mib}
	for _, touched := range []int64{300 * mib, 500 * mib} {
		one := pool
		one.Pool = touched
		r.add([]pagemap.Mapping{
			one,
			{Start: 2, PageSize: 4 * kib, Resident: 100 * mib, Proportional: 60 * mib, Anonymous: 100 * mib,
				Transparent: 50 * mib, Swap: mib},
			{Start: 3, PageSize: 4 * kib, File: "/dev/shm/x", Shared: true, Resident: 20 * mib, Proportional: 10 * mib,
				Object: "00:19:7", Swap: 20 * mib},
			{Start: 5, PageSize: 4 * kib, File: "/dev/shm/x", Shared: true, Object: "00:19:7", Swap: touched / 100},
			{Start: 4, PageSize: 4 * kib, File: "/usr/sbin/mariadbd", Resident: 8 * mib, Proportional: 4 * mib,
				Anonymous: 2 * mib},
		}, []pagemap.Area{
			{Start: 1, Policy: "default", PageSize: 2 * mib, Nodes: map[int]int64{0: touched / 4, 1: touched / 4 * 3}},
			{Start: 2, Policy: "bind:0", PageSize: 4 * kib, Nodes: map[int]int64{0: 100 * mib}},
			{Start: 3, Policy: "default", PageSize: 4 * kib, Nodes: map[int]int64{0: 5 * mib, 1: 15 * mib}},
			{Start: 4, Policy: "default", PageSize: 4 * kib, Nodes: map[int]int64{0: 8 * mib}},
		})
	}
	i := &Instance{Summary: Summary{PageTables: mib}}
	r.finish(i)
	want := []Pages{{4 * kib, 20 * mib, 122 * mib, 60 * mib, 0}, {2 * mib, 500 * mib, 0, 0, gib}}
	if !slices.Equal(i.Pages, want) {
		t.Errorf("pages %+v, want %+v", i.Pages, want)
	}
	if i.Files != 6*mib || i.Swap != 27*mib || i.All() != 642*mib {
		t.Errorf("files %d, swap %d, all %d", i.Files, i.Swap, i.All())
	}
	if want := int64(2 * (50/2 + 20/2) * 4 * kib); i.SavedTables != want {
		t.Errorf("%d of page tables would go, want %d", i.SavedTables, want)
	}
	nodes := map[int]int64{}
	for _, u := range i.Nodes {
		nodes[u.Node] = u.Bytes
	}
	if want := map[int]int64{0: (125 + 120 + 5 + 2) * mib, 1: (375 + 15) * mib}; !maps.Equal(nodes, want) {
		t.Errorf("nodes %v, want %v", nodes, want)
	}
	if want := []Policy{{"default", 522 * mib}, {"bind:0", 120 * mib}}; !slices.Equal(i.Policies, want) {
		t.Errorf("policies %v, want %v", i.Policies, want)
	}
}

// A setting that asks for huge pages is no proof that they are used.
func TestContradicts(t *testing.T) {
	none, used := &Instance{Pages: []Pages{{Size: 4 * kib}}}, &Instance{Pages: []Pages{{Size: 2 * mib, Mapped: gib}}}
	for _, c := range []struct {
		of   *Instance
		said Said
		want string
	}{
		{none, Said{"huge_pages", "on", "the server"}, "does not use huge pages, although huge_pages is on"},
		{none, Said{"huge_pages", "try", "postgresql.conf"}, "huge_pages is try"},
		{none, Said{"large_pages", "true", "my.cnf:3"}, "although large_pages is true (my.cnf:3)"},
		{none, Said{"huge_pages", "off", "the server"}, ""},
		{none, Said{"large_pages", "false", "default"}, ""},
		{used, Said{"huge_pages_status", "off", "the server"}, "its maps show pages of a pool"},
		{used, Said{"huge_pages", "on", "the server"}, ""},
	} {
		got := c.of.Contradicts([]Said{c.said})
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.said, got, c.want)
		}
	}
}
