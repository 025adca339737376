// Package current holds what a plan is made of beside what is wanted: which directories of ours are there, which are to
// be made and which to go, and what each of their files holds now. It knows no steps.
package current

import (
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd/unitname"
)

// Charged is the memory that a directory and those below it are charged now.
func (t *Tree) Charged(dir cgroup.Dir) int64 {
	current, _ := t.In.Memory.Charged(dir)
	return current
}

// WhyObsolete says why a directory goes.
func (t *Tree) WhyObsolete(dir cgroup.Dir) string {
	if _, ok := t.Desired.Forest.ByPath[t.GroupOf(dir)]; ok {
		return "the group needs no directory here any more"
	}
	return WhyNoGroup
}

// Tree is what is there of the directories of groups, beside what is wanted of them.
type Tree struct {
	In         *plan.Input
	Observed   *plan.Observation
	Desired    *desired.State
	IsNew      map[cgroup.Dir]bool
	Ours       map[string][]cgroup.Dir // hierarchy ID → observed directories of ours, parents first
	Obsolete   []cgroup.Dir            // parents first
	IsObsolete map[cgroup.Dir]bool
}

// New compares what is wanted with what was observed.
func New(in *plan.Input) *Tree {
	t := &Tree{In: in, Observed: &in.Observed, Desired: desired.New(in), IsNew: map[cgroup.Dir]bool{},
		IsObsolete: map[cgroup.Dir]bool{}}
	t.knowDirs()
	return t
}

// knowDirs sorts the observed directories into those of the layout, new ones and obsolete ones.
func (t *Tree) knowDirs() {
	t.Ours = oursByHierarchy(t.Desired.Layout, t.Observed)
	for _, dir := range t.Desired.Layout.Dirs() {
		if _, ok := t.Observed.Dirs[dir]; !ok && t.Desired.Layout.Governed[dir].Unit == "" {
			t.IsNew[dir] = true
		}
	}
	for _, h := range t.In.Facts.Hierarchies {
		for _, dir := range t.Ours[h.ID] {
			if !t.Desired.Layout.Holds(dir) && !t.holdsKept(dir) && !t.IsTheirs(dir) && !t.awaited(dir) &&
				!t.Desired.Layout.HoldsRun(dir) {
				t.Obsolete = append(t.Obsolete, dir)
				t.IsObsolete[dir] = true
			}
		}
	}
}

// holdsKept says whether the directory, or one below it, must stay: it is not ours, or it belongs to
// a released group.
func (t *Tree) holdsKept(dir cgroup.Dir) bool {
	for _, other := range t.Ours[dir.Hierarchy] {
		if _, inside := layout.Below(dir.Path, other.Path); inside &&
			(t.Observed.Foreign[other] || t.IsReleasedDir(other)) {
			return true
		}
	}
	return false
}

// IsReleasedDir says whether a directory is that of a group that was released and stays so.
func (t *Tree) IsReleasedDir(dir cgroup.Dir) bool {
	group, ok := t.Desired.Layout.Group(dir)
	return ok && group != layout.RootGroup && t.In.IsReleased(group)
}

// SeedText is what a new cpuset directory starts with.
func (t *Tree) SeedText(dir cgroup.Dir, v desired.Value) string {
	if have := t.nowAbove(dir, v.Row); !desired.IDSet(v.Text).Subset(desired.IDSet(have)) {
		return have
	}
	return v.Text
}

// nowAbove is what the directory above has at the time dir is made.
func (t *Tree) nowAbove(dir cgroup.Dir, row *knob.Row) string {
	above := dir.Parent()
	if above.Path == "/" {
		h, _ := t.In.Facts.Hierarchy(dir.Hierarchy)
		return desired.RootSet(t.In.Facts, h, row, t.Observed)
	}
	if !t.IsNew[above] {
		return t.Observed.Dirs[above][row.File]
	}
	for _, v := range t.Desired.Values[above] {
		if v.Row == row {
			return t.SeedText(above, v)
		}
	}
	return t.nowAbove(above, row)
}

// IsForeign says whether others made the directory or one that it lies in.
func (t *Tree) IsForeign(dir cgroup.Dir) bool {
	for ; dir.Path != "/" && dir.Path != "."; dir = dir.Parent() {
		if t.Observed.Foreign[dir] {
			return true
		}
	}
	return false
}

// Handed gives the controllers that a directory hands down now.
func (t *Tree) Handed(dir cgroup.Dir) []string {
	if t.IsNew[dir] {
		return nil
	}
	enabled := host.V1Names(t.Observed.Subtree[dir].Enabled)
	if t.Desired.Layout.Owned[dir.Hierarchy] {
		return Without(enabled, layout.UnitControllers)
	}
	return enabled
}

// Without gives these but for those.
func Without(these, those []string) []string {
	return slices.DeleteFunc(slices.Clone(these), func(s string) bool { return slices.Contains(those, s) })
}

// HandsDown says whether the files of a controller will be there in a directory when the plan is done.
// Controllers enabled above our root stay so until everything is released.
func (t *Tree) HandsDown(dir cgroup.Dir, controller string) bool {
	if t.Desired.Layout.Owned[dir.Hierarchy] && slices.Contains(layout.UnitControllers, controller) {
		return true
	}
	h, _ := t.In.Facts.Hierarchy(dir.Hierarchy)
	_, inside := t.Desired.Layout.Group(dir.Parent())
	return h.Version != 2 || !inside || slices.Contains(t.Desired.Enabled[dir.Parent()], controller)
}

// ChargesMemory says whether a move in this hierarchy leaves charged memory behind.
func (t *Tree) ChargesMemory(hierarchy string) bool {
	h, ok := t.In.Facts.HierarchyOf("memory")
	return ok && h.ID == hierarchy && (h.Version == 1 ||
		t.anyValue(hierarchy, policy.KeyMemoryMax, policy.KeyMemoryHigh, policy.KeyMemoryLow, policy.KeyMemoryMin))
}

func (t *Tree) anyValue(hierarchy string, keys ...policy.Key) bool {
	for dir, values := range t.Desired.Values {
		for _, v := range values {
			if dir.Hierarchy == hierarchy && slices.Contains(keys, v.Setting.Key) {
				return true
			}
		}
	}
	return false
}

// Fallback is what a file holds that nobody asks for.
func (t *Tree) Fallback(dir cgroup.Dir, file string) string {
	for _, r := range t.Desired.Rows[dir.Hierarchy] {
		if r.File == file {
			return r.Default
		}
	}
	return ""
}

// ByProperty says whether a row of a directory is written through its unit.
func (t *Tree) ByProperty(dir cgroup.Dir, row *knob.Row) bool {
	u, ok := t.Desired.Layout.KnobUnit(dir)
	if !ok {
		return false
	}
	_, ok = row.Properties(u, nil, func(file, _ string) string { return t.Fallback(dir, file) })
	return ok
}

// awaited says whether a directory of ours is that of a group whose instance is about to be there: its unit is on its
// way up or down, or starts, or waits to start, in the group's slice, which systemd has made at boot already.
func (t *Tree) awaited(dir cgroup.Dir) bool {
	if t.In.Systemd == nil {
		return false
	}
	group, ours := t.Desired.Layout.Group(dir)
	for unit, k := range t.In.Systemd.Kept {
		if _, leads := layout.Below(group, k.Group); t.In.Systemd.Between[unit] && ours && group != layout.RootGroup &&
			leads {
			return true
		}
	}
	if !strings.HasSuffix(t.Desired.Layout.Unit(dir), ".slice") {
		return false
	}
	for _, slice := range t.In.Systemd.Adopted {
		if at, err := unitname.SliceDir(slice); err == nil {
			if _, leads := layout.Below(dir.Path, at); leads {
				return true
			}
		}
	}
	return false
}

// Tracker is the hierarchy in which every unit of systemd's has a directory.
func (t *Tree) Tracker() string { return layout.Tracker(t.In.Facts) }

// IsTheirs says whether a directory is that of a unit that stays: not of a slice that the policy names and bulkhead has
// made.
func (t *Tree) IsTheirs(dir cgroup.Dir) bool {
	return t.Desired.Layout.Theirs(dir) && !t.Observed.Made[dir]
}

// IsLeft says whether a file keeps what somebody else wrote there.
func (t *Tree) IsLeft(dir cgroup.Dir, v desired.Value, wanted string) bool {
	then, left := t.In.Leave[v.Target(dir)]
	return left && !t.IsNew[dir] && v.Row.Same(then, wanted)
}

// Present lists the instances of a row that a directory has a value for now: "" for a plain file that is
// there, else devices or page sizes. A new directory that copies its parent's values has those.
func (t *Tree) Present(dir cgroup.Dir, row *knob.Row) []string {
	files := t.Observed.Dirs[dir]
	switch {
	case row.PerDevice:
		return row.Devices(files[row.File])
	case row.PerSize:
		var sizes []string
		for _, size := range t.In.Facts.HugePageSizes {
			if name := policy.HugePageName(size); files[row.Name(name)] != "" {
				sizes = append(sizes, name)
			}
		}
		return sizes
	}
	if _, ok := files[row.File]; ok || row.Inherits && t.IsNew[dir] {
		return []string{""}
	}
	return nil
}

// Leaves says whether what a directory holds of a row and nobody asks for stays as it is: its group, or where the row
// does not descend one above it, has a limit whose device cannot be told at the moment. The kernel itself drops the
// limits of devices that are gone.
func (t *Tree) Leaves(dir cgroup.Dir, row *knob.Row) bool {
	for group := t.GroupOf(dir); ; group = layout.ParentGroup(group) {
		if n := t.Desired.Forest.ByPath[group]; n != nil && row.PerDevice &&
			slices.ContainsFunc(n.Settings, func(s policy.Setting) bool {
				return s.Lost != "" &&
					slices.Contains(row.Keys, s.Key)
			}) {
			return true
		}
		if group == layout.RootGroup || row.Descends {
			return false
		}
	}
}

// Asked says whether somebody asks for a value.
func (t *Tree) Asked(dir cgroup.Dir, v desired.Value) bool {
	return slices.ContainsFunc(t.Desired.Values[dir],
		func(o desired.Value) bool { return o.File == v.File && o.Key == v.Key })
}

// NotKnown stands for the value of a file that was not seen. It equals nothing.
const NotKnown = "?"

// Now gives what a file holds at the time of the write: as observed; in a new directory what it was
// seeded with, what it copied from the one above, or the default.
func (t *Tree) Now(dir cgroup.Dir, v desired.Value) string {
	if !t.IsNew[dir] {
		text, ok := t.Observed.Dirs[dir][v.File]
		if !ok {
			return v.Row.Default
		}
		return v.Row.Parse(v.Row.Line(text, v.On))
	}
	switch {
	case v.Row.Seed:
		for _, o := range t.Desired.Values[dir] {
			if o.Row == v.Row {
				return t.SeedText(dir, o)
			}
		}
	case v.Row.Inherits:
		if above := dir.Parent(); above.Path != "/" {
			return t.Now(above, v)
		} else if text, ok := t.Observed.Dirs[above][v.File]; ok {
			return v.Row.Parse(text)
		}
		return NotKnown
	}
	return v.Row.Default
}

// ValueOf is what a plain row of a directory holds in the end; "" when nobody asks for it.
func (t *Tree) ValueOf(dir cgroup.Dir, row *knob.Row) string {
	for _, v := range t.Desired.Values[dir] {
		if v.Row == row {
			return v.Text
		}
	}
	return ""
}

// Together says whether a row goes by a property that sets others with it, so that there are no values between: quota
// and period of the CPU, and the weight with cpu.idle.
func (t *Tree) Together(dir cgroup.Dir, row *knob.Row) bool {
	if row.File == "cpu.weight" {
		return slices.ContainsFunc(t.Desired.Rows[dir.Hierarchy],
			func(r *knob.Row) bool { return r.File == "cpu.idle" && t.ByProperty(dir, r) })
	}
	return desired.IsBandwidth(row) && t.ByProperty(dir, row)
}

// OuterSet is what an empty cpuset list of a v2 directory stands for now.
func (t *Tree) OuterSet(dir cgroup.Dir, row *knob.Row) string {
	for dir.Path != "/" {
		dir = dir.Parent()
		if text := row.Parse(t.Observed.Dirs[dir][row.File]); text != "" && dir.Path != "/" {
			return text
		}
	}
	h, _ := t.In.Facts.Hierarchy(dir.Hierarchy)
	return desired.RootSet(t.In.Facts, h, row, t.Observed)
}

// Find gives what a file is to hold, if somebody asks for it. on is a device or page size.
func (t *Tree) Find(dir cgroup.Dir, row *knob.Row, on string) (desired.Value, bool) {
	for _, v := range t.Desired.Values[dir] {
		if v.Row == row && v.On == on {
			return v, true
		}
	}
	return desired.Value{}, false
}

// GroupOf is the group that a directory of ours, or a unit that carries limits, belongs to.
func (t *Tree) GroupOf(dir cgroup.Dir) string {
	if g, ok := t.Desired.Layout.Governed[dir]; ok {
		return g.Group
	}
	group, _ := t.Desired.Layout.Group(dir)
	return group
}

// oursByHierarchy gives the observed directories below and including our root, parents before children.
func oursByHierarchy(l layout.Layout, o *plan.Observation) map[string][]cgroup.Dir {
	ours := make(map[string][]cgroup.Dir)
	for dir := range o.Dirs {
		if _, ok := l.Group(dir); ok {
			ours[dir.Hierarchy] = append(ours[dir.Hierarchy], dir)
		}
	}
	for _, dirs := range ours {
		slices.SortFunc(dirs, layout.CompareDirs)
	}
	return ours
}

// WhyNoGroup is why a process or a directory of a former group goes.
const WhyNoGroup = "the policy makes no such group of what runs here now"
