package desired

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/terminal"
)

// noteUnits says what the limits of a group do not hold because its processes sit in several units.
func (d *State) noteUnits(in *plan.Input) {
	if in.Systemd == nil {
		return
	}
	outside := map[string][]string{} // group → units that carry its limits by themselves
	for _, g := range in.Systemd.Governed {
		if !g.Inside && d.Forest.ByPath[g.Group] != nil && g.Group != layout.RootGroup {
			outside[g.Group] = append(outside[g.Group], g.Unit)
		}
	}
	loose := noteStuck(d, in)
	d.loose = loose
	for _, n := range d.Forest.Nodes {
		units := outside[n.Path]
		if len(units) == 0 {
			continue
		}
		slices.Sort(units)
		if hasTotal(n.Settings) && apart(n.Path, outside, loose) > 1 {
			d.Notes = append(d.Notes, plan.Note{Group: n.Path, NotEnforced: true, Text: fmt.Sprintf(
				"its limits hold %s and the rest of the group each for itself, not together: %s",
				strings.Join(units, ", "), whenTogether(d.Layout, n.Path, in, units))})
		}
		if n.Parent != nil && n.Parent.Path != layout.RootGroup && hasTotal(n.Parent.Settings) {
			d.Notes = append(d.Notes, plan.Note{Group: n.Parent.Path, NotEnforced: true, Text: fmt.Sprintf(
				"its limits do not cover %s, which is not in its slice: %s", strings.Join(units, ", "),
				whenTogether(d.Layout, n.Path, in, units))})
		}
		noteSets(d, n, units, in)
		for _, key := range []policy.Key{policy.KeyMemoryMin, policy.KeyMemoryLow} {
			if s, ok := n.Settings.Get(key, ""); ok && !s.FromRole() {
				d.Notes = append(d.Notes, plan.Note{Group: n.Path, Key: key, NotEnforced: true, Text: fmt.Sprintf(
					"%s protects %s only as far as the slice that it is in is protected: `adopt: next-start` brings "+
						"it into the group's", key, strings.Join(units, ", "))})
			}
		}
	}
}

// noteSets says which sets of the group above one do not hold its units.
func noteSets(d *State, n *layout.Node, units []string, in *plan.Input) {
	h, _ := d.facts.HierarchyOf("cpuset")
	if n.Parent == nil || n.Parent.Path == layout.RootGroup || !d.Layout.Owned[h.ID] {
		return
	}
	for _, key := range []policy.Key{policy.KeyCPUCPUs, policy.KeyMemoryNUMA} {
		if _, asked := n.Parent.Settings.Get(key, ""); asked {
			d.Notes = append(d.Notes, plan.Note{Group: n.Parent.Path, Key: key, NotEnforced: true, Text: fmt.Sprintf(
				"does not cover %s, which is not in its slice: %s", strings.Join(units, ", "),
				whenTogether(d.Layout, n.Path, in, units))})
		}
	}
}

// noteStuck names the processes that are left in a unit which does not carry their group's limits, and counts by group
// those that are in none.
func noteStuck(d *State, in *plan.Input) (loose map[string]int) {
	loose = map[string]int{}
	stuck := map[string][]string{}
	for i := range in.Classified.Placements {
		p := &in.Classified.Placements[i]
		switch unit := d.Layout.Stuck(&p.Process, p.Group); {
		case unit != "":
			stuck[p.Group] = append(stuck[p.Group],
				fmt.Sprintf("process %d (%s) of %s", p.Process.PID, terminal.Printable(p.Process.Comm), unit))
		case !d.Layout.StaysInUnit(&p.Process, p.Group):
			loose[p.Group]++
		}
	}
	for _, n := range d.Forest.Nodes {
		if all := stuck[n.Path]; len(all) > 0 {
			d.Notes = append(d.Notes, plan.Note{Group: n.Path, NotEnforced: true, Text: fmt.Sprintf(
				"no limit of the group holds %s: it is a part of a unit; `from_unit: true` takes it out of there, "+
					"and out of the unit's limits and its stop", some(all))})
		}
	}
	return loose
}

// apart counts the places in which a group's processes sit apart from each other.
func apart(group string, outside map[string][]string, loose map[string]int) int {
	n := 0
	for g, units := range outside {
		if _, in := layout.Below(group, g); in {
			n += len(units)
		}
	}
	for g := range loose {
		if _, in := layout.Below(group, g); in {
			n++
		}
	}
	return n
}

// whenTogether says when a unit comes under its group's slice.
func whenTogether(l layout.Layout, group string, in *plan.Input, units []string) string {
	for _, u := range units {
		if in.Systemd.Adopted[u] == "" && !l.Adopts[group] {
			return "`adopt: next-start` brings it there at its next start"
		}
	}
	return "that waits for its next start"
}

// hasTotal says whether a group asks for a limit that counts over all of its processes.
func hasTotal(s policy.Settings) bool { return slices.ContainsFunc(s, plan.IsTotal) }

// some names the first of many.
func some(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

// governUnits gives the units that a group claims the group's limits, and rounds what goes by property to what systemd
// keeps of it.
func (d *State) governUnits(h host.Hierarchy) {
	for _, dir := range d.Layout.Dirs() {
		if g, ok := d.Layout.Governed[dir]; ok && dir.Hierarchy == h.ID {
			d.Values[dir] = d.valuesOf(g, h.ID)
		}
	}
	for dir := range d.Layout.Anchors {
		if dir.Hierarchy == h.ID {
			d.Values[dir] = d.holding(dir)
		}
	}
	for _, dir := range d.Layout.Dirs() {
		u, ok := d.Layout.KnobUnit(dir)
		if dir.Hierarchy != h.ID || !ok {
			continue
		}
		period := ""
		for _, v := range d.Values[dir] {
			if v.File == FilePeriod {
				period = v.Text
			}
		}
		for i, v := range d.Values[dir] {
			text := v.Row.Settle(u, v.Text, period)
			if text == v.Text {
				continue
			}
			d.Values[dir][i].Text = text
			if v.Setting.Key == policy.KeyCPULimit && d.Layout.Own(d.Layout.Owner[dir])[h.ID] == dir {
				asked, _ := v.Setting.Value.(policy.Cores)
				d.Notes = append(d.Notes, plan.Note{Group: d.Layout.Owner[dir], Key: policy.KeyCPULimit,
					NotEnforced: asked < policy.One/100, // it gets that much
					Text: v.Setting.String() + " is held to a whole per cent of a core, as systemd keeps no more: " +
						v.Row.HumanIn(text, map[string]string{FilePeriod: period})})
			}
		}
	}
}

// anchorWeight is any weight but the default, which would ask for no controller. Nobody is in such a slice.
const anchorWeight = "99"

// holding is what makes systemd hand controllers down beside an anchor: those of memory, pids and io it does for the
// counting, those of the CPU for a weight, and for a set of CPUs or nodes.
func (d *State) holding(dir cgroup.Dir) []Value {
	var values []Value
	setting := policy.Setting{Key: policy.KeyCPUWeight, Value: policy.Weight(99),
		From: "a unit beside it that is to start elsewhere"}
	for _, row := range d.Rows[dir.Hierarchy] {
		if row.File == "cpu.weight" {
			values = append(values, Value{Row: row, File: row.File, Text: anchorWeight, Setting: setting})
		}
	}
	for beside := range d.Layout.Governed {
		for _, v := range d.Values[beside] {
			if beside.Parent() == dir.Parent() && IsWide(v.Row) &&
				!slices.ContainsFunc(values, func(o Value) bool { return o.Row == v.Row }) {
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
func (d *State) valuesOf(g layout.Governed, hierarchy string) []Value {
	var values []Value
	if own := d.Layout.Own(g.Group)[hierarchy]; !g.Inside || !d.Layout.Theirs(own) {
		values = slices.Clone(d.Values[own])
	}
	if member, ok := d.Layout.Member(g.Group)[hierarchy]; ok {
		for _, v := range d.Values[member] {
			if layout.IsBudget(v.Row) {
				values = append(values, v)
			}
		}
	}
	return values
}

// MovesDown says whether systemd, told of a limit on a device, may put it on the one disk below instead: so it does
// with any that lies on one other alone, such as most of LVM's and dm-crypt's (lookup_block_device of core/cgroup.c;
// measured on 252). A limit there is written by file. It outlives a daemon-reload (measured), as systemd writes the
// lines of the devices alone that it was told of, and our units have its accounting, which keeps the controller. What a
// device lies on may change; so it goes by what it is, but for md, of which one with a single disk is broken.
func (d *State) MovesDown(device string) bool {
	dev, known := d.facts.Device(device)
	return known && dev.Kind.Layered() && (dev.Kind != blockdev.RAID || len(dev.Slaves) == 1)
}
