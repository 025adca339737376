package inspect

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"syscall"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/pagemap"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/transaction"
)

// Charge is how much of what a process has in memory one memory control group is charged with.
type Charge struct {
	Dir   string `json:"dir"`             // "" for pages that no group is charged with
	Group string `json:"group,omitempty"` // of ours
	Own   bool   `json:"own"`             // the process sits in it
	Bytes int64  `json:"bytes"`
}

// charges says where the memory of a process is charged, the most first. The kernel charges a page to the group that
// its first user sat in then, and leaves it there when that one moves.
func charges(ctx context.Context, machine *host.Host, v *transaction.View, p *procfs.Process) ([]Charge, error) {
	h, ok := v.Facts.HierarchyOf("memory")
	if !ok {
		return nil, api.Errorf(api.CodeFailed, "`bulkhead discover` shows which controllers this kernel has",
			"this kernel has no memory controller, so no group is charged with memory")
	}
	bytes, err := pagemap.Charges(ctx, machine.Proc, p.ID)
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "explain without --exact gives an upper bound",
			"find where the memory of process %d is charged: %w", p.PID, err)
	}
	dirs, err := v.Tree.Walk(cgroup.Dir{Hierarchy: h.ID, Path: "/"})
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "look at the groups of %s: %w", h.ID, err)
	}
	own := chargedTo(v.Tree, cgroup.Dir{Hierarchy: h.ID, Path: p.Cgroups[h.ID]})
	var all []Charge
	for _, d := range dirs {
		info, err := os.Stat(v.Tree.Abs(d))
		if err != nil {
			continue // it is gone meanwhile
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || bytes[st.Ino] == 0 {
			continue
		}
		group, _ := v.Layout.Group(d)
		all = append(all, Charge{Dir: d.Path, Group: group, Own: d == own, Bytes: bytes[st.Ino]})
		delete(bytes, st.Ino)
	}
	var left int64
	for _, n := range bytes {
		left += n
	}
	if left > 0 {
		all = append(all, Charge{Bytes: left})
	}
	slices.SortStableFunc(all, func(a, b Charge) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return all, nil
}

// chargedTo is the directory that is charged for who sits in another: on cgroup v2 the nearest one that has the
// controller.
func chargedTo(t *cgroup.Tree, d cgroup.Dir) cgroup.Dir {
	for ; d.Path != "/"; d = d.Parent() {
		if _, err := t.Read(d.File("memory.stat")); err == nil || !errors.Is(err, cgroup.ErrNoKnob) {
			break
		}
	}
	return d
}
