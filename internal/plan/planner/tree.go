package planner

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

// charged is the memory that a directory and those below it are charged now.
func (t *tree) charged(dir cgroup.Dir) int64 {
	current, _ := t.in.Memory.Charged(dir)
	return current
}

// whyObsolete says why a directory goes.
func (t *tree) whyObsolete(dir cgroup.Dir) string {
	if _, ok := t.d.Forest.ByPath[t.groupOf(dir)]; ok {
		return "the group needs no directory here any more"
	}
	return whyNoGroup
}

// tree is what is there of the directories of groups, beside what is wanted of them.
type tree struct {
	in         *plan.Input
	o          *plan.Observation
	d          *desired.State
	isNew      map[cgroup.Dir]bool
	ours       map[string][]cgroup.Dir // hierarchy ID → observed directories of ours, parents first
	obsolete   []cgroup.Dir            // parents first
	isObsolete map[cgroup.Dir]bool
}

// knowDirs sorts the observed directories into those of the layout, new ones and obsolete ones.
func (t *tree) knowDirs() {
	t.ours = oursByHierarchy(t.d.Layout, t.o)
	for _, dir := range t.d.Layout.Dirs() {
		if _, ok := t.o.Dirs[dir]; !ok && t.d.Layout.Governed[dir].Unit == "" {
			t.isNew[dir] = true
		}
	}
	for _, h := range t.in.Facts.Hierarchies {
		for _, dir := range t.ours[h.ID] {
			if !t.d.Layout.Holds(dir) && !t.holdsKept(dir) && !t.isTheirs(dir) && !t.awaited(dir) &&
				!t.d.Layout.HoldsRun(dir) {
				t.obsolete = append(t.obsolete, dir)
				t.isObsolete[dir] = true
			}
		}
	}
}

// holdsKept says whether the directory, or one below it, must stay: it is not ours, or it belongs to
// a released group.
func (t *tree) holdsKept(dir cgroup.Dir) bool {
	for _, other := range t.ours[dir.Hierarchy] {
		if _, inside := layout.Below(dir.Path, other.Path); inside && (t.o.Foreign[other] || t.isReleasedDir(other)) {
			return true
		}
	}
	return false
}

func (t *tree) isReleasedDir(dir cgroup.Dir) bool {
	group, ok := t.d.Layout.Group(dir)
	return ok && group != layout.RootGroup && t.in.IsReleased(group)
}

// seedText is what a new cpuset directory starts with.
func (t *tree) seedText(dir cgroup.Dir, v desired.Value) string {
	if have := t.nowAbove(dir, v.Row); !desired.IDSet(v.Text).Subset(desired.IDSet(have)) {
		return have
	}
	return v.Text
}

// nowAbove is what the directory above has at the time dir is made.
func (t *tree) nowAbove(dir cgroup.Dir, row *knob.Row) string {
	above := dir.Parent()
	if above.Path == "/" {
		h, _ := t.in.Facts.Hierarchy(dir.Hierarchy)
		return desired.RootSet(t.in.Facts, h, row, t.o)
	}
	if !t.isNew[above] {
		return t.o.Dirs[above][row.File]
	}
	for _, v := range t.d.Values[above] {
		if v.Row == row {
			return t.seedText(above, v)
		}
	}
	return t.nowAbove(above, row)
}

// isForeign says whether others made the directory or one that it lies in.
func (t *tree) isForeign(dir cgroup.Dir) bool {
	for ; dir.Path != "/" && dir.Path != "."; dir = dir.Parent() {
		if t.o.Foreign[dir] {
			return true
		}
	}
	return false
}

// handed gives the controllers that a directory hands down now.
func (t *tree) handed(dir cgroup.Dir) []string {
	if t.isNew[dir] {
		return nil
	}
	enabled := host.V1Names(t.o.Subtree[dir].Enabled)
	if t.d.Layout.Owned[dir.Hierarchy] {
		return without(enabled, layout.UnitControllers)
	}
	return enabled
}

func without(these, those []string) []string {
	return slices.DeleteFunc(slices.Clone(these), func(s string) bool { return slices.Contains(those, s) })
}

// handsDown says whether the files of a controller will be there in a directory when the plan is done.
// Controllers enabled above our root stay so until everything is released.
func (t *tree) handsDown(dir cgroup.Dir, controller string) bool {
	if t.d.Layout.Owned[dir.Hierarchy] && slices.Contains(layout.UnitControllers, controller) {
		return true
	}
	h, _ := t.in.Facts.Hierarchy(dir.Hierarchy)
	_, inside := t.d.Layout.Group(dir.Parent())
	return h.Version != 2 || !inside || slices.Contains(t.d.Enabled[dir.Parent()], controller)
}

// chargesMemory says whether a move in this hierarchy leaves charged memory behind.
func (t *tree) chargesMemory(hierarchy string) bool {
	h, ok := t.in.Facts.HierarchyOf("memory")
	return ok && h.ID == hierarchy && (h.Version == 1 ||
		t.anyValue(hierarchy, policy.KeyMemoryMax, policy.KeyMemoryHigh, policy.KeyMemoryLow, policy.KeyMemoryMin))
}

func (t *tree) anyValue(hierarchy string, keys ...policy.Key) bool {
	for dir, values := range t.d.Values {
		for _, v := range values {
			if dir.Hierarchy == hierarchy && slices.Contains(keys, v.Setting.Key) {
				return true
			}
		}
	}
	return false
}

// fallback is what a file holds that nobody asks for.
func (t *tree) fallback(dir cgroup.Dir, file string) string {
	for _, r := range t.d.Rows[dir.Hierarchy] {
		if r.File == file {
			return r.Default
		}
	}
	return ""
}

// byProperty says whether a row of a directory is written through its unit.
func (t *tree) byProperty(dir cgroup.Dir, row *knob.Row) bool {
	u, ok := t.d.Layout.KnobUnit(dir)
	if !ok {
		return false
	}
	_, ok = row.Properties(u, nil, func(file, _ string) string { return t.fallback(dir, file) })
	return ok
}

// awaited says whether a directory of ours is that of a group whose instance is about to be there: its unit is on its
// way up or down, or starts, or waits to start, in the group's slice, which systemd has made at boot already.
func (t *tree) awaited(dir cgroup.Dir) bool {
	if t.in.Systemd == nil {
		return false
	}
	group, ours := t.d.Layout.Group(dir)
	for unit, k := range t.in.Systemd.Kept {
		if _, leads := layout.Below(group, k.Group); t.in.Systemd.Between[unit] && ours && group != layout.RootGroup &&
			leads {
			return true
		}
	}
	if !strings.HasSuffix(t.d.Layout.Unit(dir), ".slice") {
		return false
	}
	for _, slice := range t.in.Systemd.Adopted {
		if at, err := unitname.SliceDir(slice); err == nil {
			if _, leads := layout.Below(dir.Path, at); leads {
				return true
			}
		}
	}
	return false
}

func (t *tree) tracker() string { return layout.Tracker(t.in.Facts) }

// isTheirs says whether a directory is that of a unit that stays: not of a slice that the policy names and bulkhead has
// made.
func (t *tree) isTheirs(dir cgroup.Dir) bool { return t.d.Layout.Theirs(dir) && !t.o.Made[dir] }

// isLeft says whether a file keeps what somebody else wrote there.
func (t *tree) isLeft(dir cgroup.Dir, v desired.Value, wanted string) bool {
	then, left := t.in.Leave[cgroup.File{Dir: dir, Name: v.File, Key: v.Key}]
	return left && !t.isNew[dir] && v.Row.Same(then, wanted)
}

// present lists the instances of a row that a directory has a value for now: "" for a plain file that is
// there, else devices or page sizes. A new directory that copies its parent's values has those.
func (t *tree) present(dir cgroup.Dir, row *knob.Row) []string {
	files := t.o.Dirs[dir]
	switch {
	case row.PerDevice:
		return row.Devices(files[row.File])
	case row.PerSize:
		var sizes []string
		for _, size := range t.in.Facts.HugePageSizes {
			if name := policy.HugePageName(size); files[row.Name(name)] != "" {
				sizes = append(sizes, name)
			}
		}
		return sizes
	}
	if _, ok := files[row.File]; ok || row.Inherits && t.isNew[dir] {
		return []string{""}
	}
	return nil
}

// leaves says whether what a directory holds of a row and nobody asks for stays as it is: its group, or where the row
// does not descend one above it, has a limit whose device cannot be told at the moment. The kernel itself drops the
// limits of devices that are gone.
func (t *tree) leaves(dir cgroup.Dir, row *knob.Row) bool {
	for group := t.groupOf(dir); ; group = layout.ParentGroup(group) {
		if n := t.d.Forest.ByPath[group]; n != nil && row.PerDevice &&
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

func (t *tree) asked(dir cgroup.Dir, v desired.Value) bool {
	return slices.ContainsFunc(t.d.Values[dir],
		func(o desired.Value) bool { return o.File == v.File && o.Key == v.Key })
}

// notKnown stands for the value of a file that was not seen. It equals nothing.
const notKnown = "?"

// now gives what a file holds at the time of the write: as observed; in a new directory what it was
// seeded with, what it copied from the one above, or the default.
func (t *tree) now(dir cgroup.Dir, v desired.Value) string {
	if !t.isNew[dir] {
		text, ok := t.o.Dirs[dir][v.File]
		if !ok {
			return v.Row.Default
		}
		return v.Row.Parse(v.Row.Line(text, v.On))
	}
	switch {
	case v.Row.Seed:
		for _, o := range t.d.Values[dir] {
			if o.Row == v.Row {
				return t.seedText(dir, o)
			}
		}
	case v.Row.Inherits:
		if above := dir.Parent(); above.Path != "/" {
			return t.now(above, v)
		} else if text, ok := t.o.Dirs[above][v.File]; ok {
			return v.Row.Parse(text)
		}
		return notKnown
	}
	return v.Row.Default
}

// valueOf is what a plain row of a directory holds in the end; "" when nobody asks for it.
func (t *tree) valueOf(dir cgroup.Dir, row *knob.Row) string {
	for _, v := range t.d.Values[dir] {
		if v.Row == row {
			return v.Text
		}
	}
	return ""
}

// together says whether a row goes by a property that sets others with it, so that there are no values between: quota
// and period of the CPU, and the weight with cpu.idle.
func (t *tree) together(dir cgroup.Dir, row *knob.Row) bool {
	if row.File == "cpu.weight" {
		return slices.ContainsFunc(t.d.Rows[dir.Hierarchy],
			func(r *knob.Row) bool { return r.File == "cpu.idle" && t.byProperty(dir, r) })
	}
	return desired.IsBandwidth(row) && t.byProperty(dir, row)
}

// outerSet is what an empty cpuset list of a v2 directory stands for now.
func (t *tree) outerSet(dir cgroup.Dir, row *knob.Row) string {
	for dir.Path != "/" {
		dir = dir.Parent()
		if text := row.Parse(t.o.Dirs[dir][row.File]); text != "" && dir.Path != "/" {
			return text
		}
	}
	h, _ := t.in.Facts.Hierarchy(dir.Hierarchy)
	return desired.RootSet(t.in.Facts, h, row, t.o)
}

func (t *tree) find(dir cgroup.Dir, row *knob.Row, on string) (desired.Value, bool) {
	for _, v := range t.d.Values[dir] {
		if v.Row == row && v.On == on {
			return v, true
		}
	}
	return desired.Value{}, false
}

func (t *tree) groupOf(dir cgroup.Dir) string {
	if g, ok := t.d.Layout.Governed[dir]; ok {
		return g.Group
	}
	group, _ := t.d.Layout.Group(dir)
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
