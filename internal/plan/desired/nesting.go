package desired

import (
	"fmt"
	"slices"
	"strconv"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// fromBelow asks for a limit that no group wrote.
const fromBelow = "the groups below"

// capQuotas drops a v1 CPU quota that is above the one of a group above it: the kernel refuses it
// (EINVAL, tg_cfs_schedulable_down), and the tighter one holds the child anyway.
func (d *State) capQuotas(hierarchy string) {
	above := make(map[string]Quota) // by path of the directory
	for _, dir := range d.Layout.Dirs() {
		if dir.Hierarchy != hierarchy {
			continue
		}
		outer, limited := above[dir.Parent().Path]
		q, ok := QuotaOf(d.Values[dir])
		switch {
		case ok && limited && q.Above(outer):
			d.Values[dir] = slices.DeleteFunc(d.Values[dir], func(v Value) bool { return IsBandwidth(v.Row) })
			d.Notes = append(d.Notes, plan.Note{Group: d.Layout.Owner[dir], Key: policy.KeyCPULimit,
				Text: fmt.Sprintf("cpu.limit of %s cores is above the %s cores of a group above it, which hold it "+
					"already",
					q.cores(), outer.cores())})
			above[dir.Path] = outer
		case ok:
			above[dir.Path] = q
		case limited:
			above[dir.Path] = outer
		}
	}
}

// shareRealtime makes cpu.rt fit the kernel's rule for v1: the real-time run time of the children
// must not exceed the parent's (EINVAL, tg_rt_schedulable). A group above that asks for none gets the
// sum of those below; one that asks splits it, and its own processes have what is left.
func (d *State) shareRealtime(hierarchy string) {
	asks := make(map[string]Value) // by group
	for _, dir := range d.Layout.Dirs() {
		for _, v := range d.Values[dir] {
			if dir.Hierarchy == hierarchy && v.File == FileRTRuntime {
				asks[d.Layout.Owner[dir]] = v
			}
		}
	}
	if len(asks) == 0 {
		return
	}
	sums := make(map[string]int64, len(asks))
	for _, n := range slices.Backward(d.Forest.Nodes) {
		if v, ok := asks[n.Path]; ok {
			sums[n.Path] = Number(v.Text)
		}
		if n.Parent != nil {
			if _, ok := asks[n.Parent.Path]; !ok {
				sums[n.Parent.Path] += sums[n.Path]
			}
		}
	}
	root := d.Forest.Nodes[0]
	if d.Layout.Has(layout.RootGroup) {
		d.giveRealtime(root, hierarchy, sums[layout.RootGroup], asks, sums)
		return
	}
	for _, n := range root.Children {
		d.giveRealtime(n, hierarchy, sums[n.Path], asks, sums)
	}
}

// giveRealtime writes run time microseconds to n and splits them below it.
func (d *State) giveRealtime(n *layout.Node, hierarchy string, run int64, asks map[string]Value,
	sums map[string]int64) {
	dir, ok := d.Layout.Own(n.Path)[hierarchy]
	if !ok || run == 0 {
		return
	}
	v, asked := asks[n.Path]
	if !asked {
		v = anyOf(asks)
		v.Setting = policy.Setting{Key: policy.KeyCPURT, Value: policy.Duration(run * 1000), From: fromBelow}
	}
	d.setValue(dir, v, run)
	wants := make([]int64, 0, len(n.Children)+1)
	for _, c := range n.Children {
		wants = append(wants, sums[c.Path])
	}
	leaf, hasLeaf := d.Layout.Member(n.Path)[hierarchy]
	hasLeaf = hasLeaf && leaf != dir && asked
	if hasLeaf {
		wants = append(wants, unlimited)
	}
	parts := fill(run, wants)
	for i, c := range n.Children {
		d.giveRealtime(c, hierarchy, parts[i], asks, sums)
	}
	if hasLeaf && parts[len(n.Children)] > 0 {
		d.setValue(leaf, v, parts[len(n.Children)])
	}
}

// anyOf gives the value of the first group by name, for its row.
func anyOf(asks map[string]Value) Value {
	first := ""
	for group := range asks {
		if first == "" || group < first {
			first = group
		}
	}
	return asks[first]
}

// setValue writes or replaces a numeric value.
func (d *State) setValue(dir cgroup.Dir, v Value, n int64) {
	v.Text = strconv.FormatInt(n, 10)
	for i, old := range d.Values[dir] {
		if old.File == v.File && old.Key == v.Key {
			d.Values[dir][i] = v
			return
		}
	}
	d.Values[dir] = append(d.Values[dir], v)
}

// weighLeaves gives the own processes of a group with children, in their leaf, the weight that the group has outside,
// where that is more than the kernel's usual one. A leaf of the usual weight would count for little beside helpers: a
// backup of weight 10 got 9 % of what an instance of weight 1000 had, and not 1 %. Where systemd makes the directories
// the leaf is below a unit that hands no controllers down.
func (d *State) weighLeaves(hierarchy string) {
	for _, n := range d.Forest.Nodes {
		own, leaf := d.Layout.Own(n.Path)[hierarchy], d.Layout.Member(n.Path)[hierarchy]
		idle := slices.ContainsFunc(d.Values[own], func(v Value) bool { return v.File == "cpu.idle" && v.Text == "1" })
		if leaf == own || leaf.Path == "" || d.Layout.Owner[leaf] != n.Path || d.Layout.Owned[hierarchy] || idle {
			continue
		}
		for _, v := range d.Values[own] {
			usual := map[string]int{"cpu.shares": 1024, "cpu.weight": 100}[v.File]
			if n, err := strconv.Atoi(v.Text); usual > 0 && err == nil && n > usual {
				v.Setting.Raw = "as the group, for its own processes"
				d.Values[leaf] = append(d.Values[leaf], v)
			}
		}
	}
}

// protect makes memory.min and memory.low count. The kernel gives a directory no more protection than the one above it
// has for all its children together, so that one without any takes it from everything below (cgroup-v2.rst, "Reclaim
// protection"; measured on 6.1: of 120 MiB of page cache below a full root group, with memory.low two levels down and
// none between, 24.5 MiB stayed, as much as without). So a group that asks for none gets the sum of those below, and
// what a group with children keeps for its own processes is written to their leaf too. The mount option
// memory_recursiveprot (5.7) does the latter by itself; doing both is harmless.
func (d *State) protect(h host.Hierarchy) {
	for _, row := range d.Rows[h.ID] {
		if !row.Covers || row.File == FileRTRuntime { // that one is refused and not scaled: shareRealtime
			continue
		}
		asks := make(map[string]Value) // by group
		for _, dir := range d.Layout.Dirs() {
			i := slices.IndexFunc(d.Values[dir], func(v Value) bool { return v.Row == row })
			if dir.Hierarchy == h.ID && i >= 0 {
				asks[d.Layout.Owner[dir]] = d.Values[dir][i]
			}
		}
		if len(asks) > 0 {
			d.protectGroups(h.ID, asks)
		}
	}
}

// protectGroups writes one kind of protection, in bytes, from what groups ask for.
func (d *State) protectGroups(hierarchy string, asks map[string]Value) {
	below := make(map[string]int64) // group → sum of what its children need
	for _, n := range slices.Backward(d.Forest.Nodes) {
		ask, asked := asks[n.Path]
		need := below[n.Path]
		if asked {
			need = Number(ask.Text)
		} else if need > 0 && d.Layout.Has(n.Path) {
			v := anyOf(asks)
			v.Setting = policy.Setting{Key: v.Setting.Key, Value: policy.Bytes(need), From: fromBelow}
			d.setValue(d.Layout.Own(n.Path)[hierarchy], v, need)
		}
		if n.Parent != nil {
			below[n.Parent.Path] += need
		}
		own := need - below[n.Path]
		leaf, ok := d.Layout.Member(n.Path)[hierarchy]
		if d.Layout.Owned[hierarchy] {
			continue // systemd mounts with memory_recursiveprot, and a keeper hands no controllers down
		}
		if asked && ok && leaf != d.Layout.Own(n.Path)[hierarchy] && own > 0 {
			ask.Setting.Raw = fmt.Sprintf("%s for its own processes", policy.Bytes(own).Human())
			d.setValue(leaf, ask, own)
		}
	}
}
