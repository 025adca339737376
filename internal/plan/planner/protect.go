package planner

import (
	"fmt"
	"slices"

	"bulkhead/internal/host"
	"bulkhead/internal/policy"
)

// protect makes memory.min and memory.low count. The kernel gives a directory no more protection than the one above it
// has for all its children together, so that one without any takes it from everything below (cgroup-v2.rst, "Reclaim
// protection"; measured on 6.1: of 120 MiB of page cache below a full root group, with memory.low two levels down and
// none between, 24.5 MiB stayed, as much as without). So a group that asks for none gets the sum of those below, and
// what a group with children keeps for its own processes is written to their leaf too. The mount option
// memory_recursiveprot (5.7) does the latter by itself; doing both is harmless.
func (d *desired) protect(h host.Hierarchy) {
	for _, row := range d.rows[h.ID] {
		if !row.Covers || row.File == fileRTRuntime { // that one is refused and not scaled: shareRealtime
			continue
		}
		asks := make(map[string]value) // by group
		for _, dir := range d.layout.Dirs() {
			i := slices.IndexFunc(d.values[dir], func(v value) bool { return v.row == row })
			if dir.Hierarchy == h.ID && i >= 0 {
				asks[d.layout.Owner[dir]] = d.values[dir][i]
			}
		}
		if len(asks) > 0 {
			d.protectGroups(h.ID, asks)
		}
	}
}

// protectGroups writes one kind of protection, in bytes, from what groups ask for.
func (d *desired) protectGroups(hierarchy string, asks map[string]value) {
	below := make(map[string]int64) // group → sum of what its children need
	for _, n := range slices.Backward(d.forest.Nodes) {
		ask, asked := asks[n.Path]
		need := below[n.Path]
		if asked {
			need = number(ask.text)
		} else if need > 0 && d.layout.Has(n.Path) {
			v := anyOf(asks)
			v.setting = policy.Setting{Key: v.setting.Key, Value: policy.Bytes(need), From: fromBelow}
			d.setValue(d.layout.Own(n.Path)[hierarchy], v, need)
		}
		if n.Parent != nil {
			below[n.Parent.Path] += need
		}
		own := need - below[n.Path]
		leaf, ok := d.layout.Member(n.Path)[hierarchy]
		if d.layout.Owned[hierarchy] {
			continue // systemd mounts with memory_recursiveprot, and a keeper hands no controllers down
		}
		if asked && ok && leaf != d.layout.Own(n.Path)[hierarchy] && own > 0 {
			ask.setting.Raw = fmt.Sprintf("%s for its own processes", policy.Bytes(own).Human())
			d.setValue(leaf, ask, own)
		}
	}
}
