// Package desired computes what each file of each group's directories should hold, which controllers cgroup v2 has to
// hand down for that, and what CPU each group can count on. It turns settings into the values of kernel files, fits
// them to what the kernel allows together, splits what several directories or devices share, and notes what is not
// held. Which steps lead there is the planner's business.
package desired

import (
	"fmt"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// New computes the desired state. It looks at the observation only for what the root of a
// cpuset hierarchy has to give.
func New(in *plan.Input) *State {
	d := &State{
		facts:   in.Facts,
		Forest:  layout.NewForest(in.Facts, in.Host, in.InForce()),
		Rows:    layout.Rows(in.Facts),
		Values:  make(map[cgroup.Dir][]Value),
		rests:   make(map[cgroup.Dir]map[string]string),
		Enabled: make(map[cgroup.Dir][]string),

		observed: &in.Observed, use: in.Use, classes: classesOf(in),
	}
	if d.classes == nil &&
		plan.UsesNetwork(in.InForce()) { // which class a group has is not known: what is in force stays
		for id, rows := range d.Rows {
			d.Rows[id] = slices.DeleteFunc(rows, func(r *knob.Row) bool { return r.File == knob.FileClassID })
		}
	}
	d.Layout = layout.New(in.Facts, layout.Names{Root: in.Host.Root, Former: in.Former}, d.Forest, in.Systemd)
	d.shareDevices()
	for _, h := range d.Layout.Hierarchies() {
		rows := d.Rows[h.ID]
		settings := d.splitBudgets(h.ID, rows)
		for _, n := range d.Forest.Nodes {
			d.encodeGroup(n, h.ID, rows, settings[n.Path])
		}
		d.weighLeaves(h.ID)
		d.capQuotas(h.ID)
		d.shareRealtime(h.ID)
		d.protect(h)
		d.seed(h, &in.Observed)
		d.follow(h, &in.Observed)
		d.widen(h, &in.Observed)
		d.governUnits(h)
		d.own(h, &in.Observed)
	}
	d.enableControllers()
	d.noteUnits(in)
	return d
}

// encodeGroup computes the values of one group in one hierarchy. Budgets that do not descend go to
// the directory in which the group's processes sit, the rest to the one above its children.
func (d *State) encodeGroup(n *layout.Node, hierarchy string, rows []*knob.Row, settings policy.Settings) {
	own, ok := d.Layout.Own(n.Path)[hierarchy]
	if !ok {
		return
	}
	for _, row := range rows {
		dir := own
		if layout.IsBudget(row) {
			member, ok := d.Layout.Member(n.Path)[hierarchy]
			if !ok || d.Layout.Owner[member] != n.Path {
				continue
			}
			dir = member
		}
		for _, on := range row.Instances(settings) {
			d.encode(n.Path, dir, row, on, settings)
		}
	}
}

func (d *State) encode(group string, dir cgroup.Dir, row *knob.Row, on string, settings policy.Settings) {
	setting := reasonFor(row, on, settings)
	if d.Layout.Owned[dir.Hierarchy] && row.File == FileRTRuntime {
		d.Notes = append(d.Notes, plan.Note{Group: group, Key: setting.Key, NotEnforced: true,
			Text: fmt.Sprintf("%s is not held: systemd gives no real-time run time to the units above it", setting)})
		return
	}
	if group != layout.RootGroup && !row.Nests(d.facts.Kernel) {
		d.Notes = append(d.Notes, plan.Note{Group: group, Key: setting.Key, NotEnforced: true,
			Text: fmt.Sprintf("%s is not held: %s below another group needs kernel %s", setting, row.File, row.Nested)})
		return
	}
	text, ok, err := row.Encode(knob.Input{Settings: settings, Facts: d.facts, On: on, Class: d.classes[group]})
	switch {
	case err != nil:
		d.Notes = append(d.Notes, plan.Note{Group: group, Key: setting.Key, NotEnforced: true,
			Text: fmt.Sprintf("%s is not held: %v", setting, err)})
	case ok && text != "": // an empty list of CPUs or nodes asks for what the group above has
		v := ValueAt(row, on)
		v.Text, v.Setting = text, setting
		d.Values[dir] = append(d.Values[dir], v)
	}
}

// reasonFor finds the setting that makes a row needed: the first of its keys that is asked for.
func reasonFor(row *knob.Row, on string, settings policy.Settings) policy.Setting {
	for _, key := range row.Keys {
		if s, ok := settings.Get(key, on); ok {
			return s
		}
	}
	if s, ok := row.Tells(settings); ok {
		return s
	}
	return policy.Setting{Key: row.Keys[0], Value: policy.Unlimited{}}
}

// enableControllers computes what each v2 directory hands down: a controller must be enabled in every
// ancestor of the directory that uses it, from the root of the hierarchy on. An io limit brings
// memory along where the hierarchy has it: without it the kernel cannot tell whose buffered
// writes it writes back (cgroup-v2.rst, "Writeback"; measured).
func (d *State) enableControllers() {
	for _, h := range d.Layout.Hierarchies() {
		if h.Version != 2 {
			continue
		}
		for _, dir := range d.Layout.Dirs() {
			if dir.Hierarchy != h.ID {
				continue
			}
			for _, row := range d.Rows[h.ID] {
				if n := d.Forest.ByPath[d.Layout.Owner[dir]]; n != nil && !d.Layout.Owned[h.ID] &&
					row.Asked(n.Settings) && len(row.Instances(n.Settings)) == 0 {
					d.enableAbove(dir, row.Controller) // for what is in force
				}
			}
			for _, v := range d.Values[dir] {
				if v.Row.Controller == "" { // owners need none
					continue
				}
				if d.Layout.Owned[h.ID] && slices.Contains(layout.UnitControllers, v.Row.Controller) {
					continue // systemd hands these down where a unit's properties ask for it
				}
				d.enableAbove(dir, v.Row.Controller)
				if v.Row.Controller == "blkio" && slices.Contains(h.Controllers, "memory") {
					d.enableAbove(dir, "memory")
				}
			}
		}
	}
	for dir := range d.Enabled {
		slices.Sort(d.Enabled[dir])
	}
}

func (d *State) enableAbove(dir cgroup.Dir, controller string) {
	for dir.Path != "/" {
		dir = dir.Parent()
		if !slices.Contains(d.Enabled[dir], controller) {
			d.Enabled[dir] = append(d.Enabled[dir], controller)
		}
	}
}
