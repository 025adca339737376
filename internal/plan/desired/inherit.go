package desired

import (
	"fmt"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// seed gives every directory of a v1 cpuset its CPUs and nodes: what its group asks for, as far as
// the directory above has them, else all that the directory above has.
func (d *State) seed(h host.Hierarchy, o *plan.Observation) {
	for _, row := range d.Rows[h.ID] {
		if !row.Seed {
			continue
		}
		finals := map[string]string{"/": RootSet(d.facts, h, row, o)}
		for _, dir := range d.Layout.Dirs() {
			if dir.Hierarchy != h.ID {
				continue
			}
			outer := finals[dir.Parent().Path]
			finals[dir.Path] = d.seedDir(dir, row, outer)
		}
	}
}

// seedDir settles one set of one directory and gives it.
func (d *State) seedDir(dir cgroup.Dir, row *knob.Row, outer string) string {
	values := d.Values[dir]
	i := slices.IndexFunc(values, func(v Value) bool { return v.Row == row })
	if i < 0 {
		d.Values[dir] = append(values, Value{Row: row, File: row.File, Text: outer,
			Setting: policy.Setting{Key: row.Keys[0], Value: policy.IDs{Set: IDSet(outer)}, From: plan.FromAbove}})
		return outer
	}
	asked := IDSet(values[i].Text)
	if asked.Subset(IDSet(outer)) {
		return values[i].Text
	}
	fits := asked.Intersect(IDSet(outer)).String()
	text := fmt.Sprintf("%s %s is cut to %s: the group above has only %s", row.Keys[0], asked, fits, outer)
	if fits == "" {
		fits = outer
		text = fmt.Sprintf("%s %s is not held: the group above has only %s", row.Keys[0], asked, outer)
	}
	d.Notes = append(d.Notes, plan.Note{Group: d.Layout.Owner[dir], Key: row.Keys[0], Text: text, NotEnforced: true})
	values[i].Text = fits
	return fits
}

// RootSet is what the root of a cpuset hierarchy has: as observed, else every online CPU and every
// node with memory.
func RootSet(f *host.Facts, h host.Hierarchy, row *knob.Row, o *plan.Observation) string {
	if text := o.Dirs[cgroup.Dir{Hierarchy: h.ID, Path: "/"}][row.File]; text != "" {
		return text
	}
	if row.File == "cpuset.cpus" {
		return f.CPUs.String()
	}
	var nodes []int
	for _, n := range f.Nodes {
		if n.MemTotal > 0 || len(f.Nodes) == 1 {
			nodes = append(nodes, n.ID)
		}
	}
	return idset.New(nodes...).String()
}

// follow settles the rows that a new directory copies from the one above it, at that moment and never
// again: a directory whose group asks for nothing holds what the one above it holds.
func (d *State) follow(h host.Hierarchy, o *plan.Observation) {
	for _, row := range d.Rows[h.ID] {
		if !row.Inherits || !row.Nests(d.facts.Kernel) {
			continue
		}
		finals := make(map[string]Value) // by path; what a directory holds in the end, where that is known
		if text, ok := o.Dirs[cgroup.Dir{Hierarchy: h.ID, Path: "/"}][row.File]; ok {
			finals["/"] = Value{Row: row, File: row.File, Text: row.Parse(text)}
		}
		for _, dir := range d.Layout.Dirs() {
			if dir.Hierarchy == h.ID {
				d.followDir(dir, row, finals, o)
			}
		}
	}
}

func (d *State) followDir(dir cgroup.Dir, row *knob.Row, finals map[string]Value, o *plan.Observation) {
	if i := slices.IndexFunc(d.Values[dir], func(v Value) bool { return v.Row == row }); i >= 0 {
		finals[dir.Path] = d.Values[dir][i]
		return
	}
	v, known := finals[dir.Parent().Path]
	if !known { // the root group, above which nothing was seen: whatever it has is its own
		text, ok := o.Dirs[dir][row.File]
		if !ok {
			return
		}
		v = Value{Row: row, File: row.File, Text: row.Parse(text)}
	}
	finals[dir.Path] = v
	if v.Setting.Key != "" && !row.Descends {
		v.Setting.From = plan.FromAbove
		d.Values[dir] = append(d.Values[dir], v)
		return
	}
	d.setRest(dir, row, v.Text)
}

// widen settles what a v2 cpuset that nobody asks for may hold beside the empty list: all that the
// directory above has.
func (d *State) widen(h host.Hierarchy, o *plan.Observation) {
	for _, row := range d.Rows[h.ID] {
		if !IsWide(row) {
			continue
		}
		finals := map[string]idset.Set{"/": IDSet(RootSet(d.facts, h, row, o))}
		for _, dir := range d.Layout.Dirs() {
			if dir.Hierarchy != h.ID {
				continue
			}
			outer := finals[dir.Parent().Path]
			d.setRest(dir, row, outer.String())
			finals[dir.Path] = outer
			for _, v := range d.Values[dir] {
				if both := IDSet(v.Text).Intersect(outer); v.Row == row && len(both) > 0 {
					finals[dir.Path] = both
				}
			}
		}
	}
}

func (d *State) setRest(dir cgroup.Dir, row *knob.Row, text string) {
	if d.rests[dir] == nil {
		d.rests[dir] = make(map[string]string)
	}
	d.rests[dir][row.File] = text
}

// Rest is what a file should hold that no group asks for; ok is false when that is not known.
func (d *State) Rest(dir cgroup.Dir, row *knob.Row) (text string, ok bool) {
	if row.Inherits || row.Seed || IsWide(row) {
		text, ok = d.rests[dir][row.File]
		return text, ok
	}
	return row.Default, true
}
