//go:build root

package memory

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
)

// Shared memory that the processes of several instances map counts for one of them, whoever touched it, and what each
// has of its own is not lost.
func TestCountOnceRoot(t *testing.T) {
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	common, alone := memfd(t, 32*mib, 0), memfd(t, 32*mib, 0)
	huge := memfd(t, 16*mib, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	pages := 0
	if pool(t, int64(8*len(facts.Nodes))) { // the kernel gives each node as many
		pages = 8
	} else {
		t.Log("this kernel gives no huge pages now: not tried")
	}
	node := facts.Nodes[0].ID
	var all []Summary
	for i, m := range []engine.Member{
		start(t, fmt.Sprintf("%d 0 %d %d %d %d", mib, 24*mib, pages/2, hugePage, node), common, huge),
		start(t, fmt.Sprintf("%d %d %d %d %d %d", mib, 8*mib, 32*mib, pages, hugePage, node), common, huge),
		start(t, fmt.Sprintf("%d 0 %d 0 %d %d", mib, 12*mib, hugePage, node), alone),
	} {
		s, err := Summarize(h, facts, "never", engine.Instance{Engine: engine.PostgreSQL, Port: i + 1, Main: m.ID,
			Members: []engine.Member{m}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	CountOnce(h, all)
	for i, want := range []int64{32 * mib, 0, 12 * mib} {
		if off := math.Abs(float64(all[i].Shared - want)); off > mib/4 {
			t.Errorf("instance %d: %d bytes shared, want %d", i, all[i].Shared, want)
		}
	}
	if got, want := all[0].Pool+all[1].Pool+all[2].Pool, int64(pages)*2*mib; got != want || all[1].Pool != 0 {
		t.Errorf("%d and %d bytes in pages of the pool, want %d in all", all[0].Pool, all[1].Pool, want)
	}
	if !slices.Equal(all[1].Counted, []string{all[0].Name}) || all[0].Counted != nil || all[2].Counted != nil {
		t.Errorf("counted by %q, %q, %q", all[0].Counted, all[1].Counted, all[2].Counted)
	}
	for _, s := range all {
		if s.group != all[0].group || s.Name == all[0].Name {
			continue
		}
		if all[0].Group != nil && (s.Group != nil || s.GroupOf != all[0].Name) {
			t.Errorf("%s: the group %s counts again: %v, of %q", s.Name, s.group, s.Group, s.GroupOf)
		}
	}
}
