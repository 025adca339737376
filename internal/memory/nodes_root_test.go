//go:build root

package memory

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
)

// What processes touch on each node of a machine, another amount on each, of their own and of a pool, is found there
// within 1 %: the usual pages and those of 2 MiB are both counted by their size.
func TestTouchedOnEachNodeRoot(t *testing.T) {
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	if len(facts.Nodes) < 2 {
		t.Skip("this machine has one node: `make lab MODE=memory` has four")
	}
	const pages = 6
	if !pool(t, int64(pages*len(facts.Nodes))) {
		t.Fatal("the kernel gives no huge pages")
	}
	inst := engine.Instance{Engine: engine.PostgreSQL, Port: 1}
	want := map[int]int64{}
	shared := memfd(t, 32*mib, 0) // which nobody touches
	for n, node := range facts.Nodes {
		own := int64(256+32*n) * mib
		huge := memfd(t, pages*hugePage, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
		inst.Members = append(inst.Members,
			start(t, fmt.Sprintf("%d 0 0 %d %d %d", own, n+1, hugePage, node.ID), shared, huge))
		// The runtime of a copy of the test binary has some memory beside what it touches, on the same node.
		want[node.ID] = anonymous(t, inst.Members[n].ID.PID) + int64(n+1)*hugePage
		if least := own + int64(n+1)*hugePage; want[node.ID] < least {
			t.Errorf("smaps_rollup and the pool have %d bytes, and %d were touched", want[node.ID], least)
		}
	}
	inst.Main = inst.Members[0].ID
	i, err := Read(t.Context(), h, facts, "never", inst)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range i.Nodes {
		if off := math.Abs(float64(n.Bytes - want[n.Node])); off > float64(want[n.Node])/100 {
			t.Errorf("node %d has %d bytes, want %d within 1 %%", n.Node, n.Bytes, want[n.Node])
		}
	}
	if len(i.Nodes) != len(facts.Nodes) {
		t.Errorf("%d nodes, want %d: %+v", len(i.Nodes), len(facts.Nodes), i.Nodes)
	}
	numastat(t, i)
}

// Pages of 1 GiB are told from others: those of a program, and those of a PostgreSQL whose huge_page_size asks for
// them, which is sized in them.
func TestGiganticRoot(t *testing.T) {
	file := poolOf(gib)
	if _, err := os.Stat(file); err != nil {
		t.Skip("this CPU has no pages of 1 GiB")
	}
	free, err := os.ReadFile(filepath.Join(filepath.Dir(file), "free_hugepages"))
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := strconv.Atoi(strings.TrimSpace(string(free))); n < 2 && !grow(t, file, 2) {
		t.Skip("the kernel has no 2 GiB in pieces of 1 GiB now: `make lab MODE=memory` sets them aside at boot")
	}
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("program", func(t *testing.T) {
		node := facts.Nodes[len(facts.Nodes)-1].ID
		m := start(t, fmt.Sprintf("%d 0 0 1 %d %d", 4*mib, gib, node), memfd(t, 32*mib, 0),
			memfd(t, gib, unix.MFD_HUGETLB|unix.MFD_HUGE_1GB))
		inst := engine.Instance{Engine: engine.PostgreSQL, Port: 1, Main: m.ID, Members: []engine.Member{m}}
		i, err := Read(t.Context(), h, facts, "never", inst)
		if err != nil {
			t.Fatal(err)
		}
		if last := i.Pages[len(i.Pages)-1]; last.Size != gib || last.Mapped != gib || last.Shared+last.Private != gib {
			t.Errorf("pages: %+v", i.Pages)
		}
		at := slices.IndexFunc(i.Nodes, func(u Use) bool { return u.Node == node })
		if at < 0 || i.Nodes[at].Bytes < gib {
			t.Errorf("node %d is to have the page: %+v", node, i.Nodes)
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		s := newSizer(t, "postgresql")
		err := s.start(t, "-c", "shared_buffers=700MB", "-c", "huge_pages=on", "-c", "huge_page_size=1GB")
		if err != nil {
			t.Fatal(err)
		}
		if n := s.need(t); n.Page != gib || n.Pages != 1 || n.Holds != 1 || !n.Told {
			t.Errorf("it takes %+v", n)
		}
		i, err := Read(t.Context(), h, facts, "never", instanceOf(t, h, s.in))
		if err != nil {
			t.Fatal(err)
		}
		if last := i.Pages[len(i.Pages)-1]; last.Size != gib || last.Mapped != gib {
			t.Errorf("pages: %+v", i.Pages)
		}
	})
}
