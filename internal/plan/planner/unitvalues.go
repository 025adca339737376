package planner

import (
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// governUnits gives the units that a group claims the group's limits, and rounds what goes by property to what systemd
// keeps of it.
func (d *desired) governUnits(h host.Hierarchy) {
	for _, dir := range d.layout.Dirs() {
		if g, ok := d.layout.Governed[dir]; ok && dir.Hierarchy == h.ID {
			d.values[dir] = d.valuesOf(g, h.ID)
		}
	}
	for dir := range d.layout.Anchors {
		if dir.Hierarchy == h.ID {
			d.values[dir] = d.holding(dir)
		}
	}
	for _, dir := range d.layout.Dirs() {
		u, ok := d.layout.KnobUnit(dir)
		if dir.Hierarchy != h.ID || !ok {
			continue
		}
		period := ""
		for _, v := range d.values[dir] {
			if v.file == filePeriod {
				period = v.text
			}
		}
		for i, v := range d.values[dir] {
			text := v.row.Settle(u, v.text, period)
			if text == v.text {
				continue
			}
			d.values[dir][i].text = text
			if v.setting.Key == policy.KeyCPULimit && d.layout.Own(d.layout.Owner[dir])[h.ID] == dir {
				d.notes = append(d.notes, plan.Note{Group: d.layout.Owner[dir], Key: policy.KeyCPULimit,
					Text: v.setting.String() + " is held to a whole per cent of a core, as systemd keeps no more: " +
						v.row.HumanIn(text, map[string]string{filePeriod: period})})
			}
		}
	}
}

// anchorWeight is any weight but the default, which would ask for no controller. Nobody is in such a slice.
const anchorWeight = "99"

// holding is what makes systemd hand controllers down beside an anchor: those of memory, pids and io it does for the
// counting, those of the CPU for a weight, and for a set of CPUs or nodes.
func (d *desired) holding(dir cgroup.Dir) []value {
	var values []value
	setting := policy.Setting{Key: policy.KeyCPUWeight, Value: policy.Weight(99),
		From: "a unit beside it that is to start elsewhere"}
	for _, row := range d.rows[dir.Hierarchy] {
		if row.File == "cpu.weight" {
			values = append(values, value{row: row, file: row.File, text: anchorWeight, setting: setting})
		}
	}
	for beside := range d.layout.Governed {
		for _, v := range d.values[beside] {
			if beside.Parent() == dir.Parent() && isWide(v.row) &&
				!slices.ContainsFunc(values, func(o value) bool { return o.row == v.row }) {
				values = append(values, v)
			}
		}
	}
	return values
}

// valuesOf is what the directory of a governed unit is to hold: its group's limits, also in its group's slice. That
// slice is made at boot when the unit starts, and has its limits only when the agent has seen whose it is; the unit's
// own are there before its first instruction. A slice of an administrator's is there at boot with what bulkhead set of
// it, and holds the unit.
func (d *desired) valuesOf(g layout.Governed, hierarchy string) []value {
	var values []value
	if own := d.layout.Own(g.Group)[hierarchy]; !g.Inside || !d.layout.Theirs(own) {
		values = slices.Clone(d.values[own])
	}
	if member, ok := d.layout.Member(g.Group)[hierarchy]; ok {
		for _, v := range d.values[member] {
			if layout.IsBudget(v.row) {
				values = append(values, v)
			}
		}
	}
	return values
}

// movesDown says whether systemd, told of a limit on a device, may put it on the one disk below instead: so it does
// with any that lies on one other alone, such as most of LVM's and dm-crypt's (lookup_block_device of core/cgroup.c;
// measured on 252). A limit there is written by file. It outlives a daemon-reload (measured), as systemd writes the
// lines of the devices alone that it was told of, and our units have its accounting, which keeps the controller. What a
// device lies on may change; so it goes by what it is, but for md, of which one with a single disk is broken.
func (d *desired) movesDown(device string) bool {
	dev, known := d.facts.Device(device)
	return known && dev.Kind.Layered() && (dev.Kind != blockdev.RAID || len(dev.Slaves) == 1)
}
