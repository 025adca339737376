// Package desired computes what each file of each group's directories should hold, which controllers cgroup v2 has to hand
// down for that, and what CPU each group can count on. It turns settings into the values of kernel files, fits them to
// what the kernel allows together, splits what several directories or devices share, and notes what is not held. Which
// steps lead there is the planner's business.
package planner

import (
	"fmt"
	"slices"
	"strconv"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// fromBelow asks for a limit that no group wrote.
const fromBelow = "the groups below"

// value is what one knob file, or one line of it, should hold.
type value struct {
	row     *knob.Row
	file    string
	key     string // device of a per-device file
	on      string // what Encode was asked for: device or page size
	text    string
	setting policy.Setting
}

// desired is the whole of what a plan leads to.
type desired struct {
	facts  *host.Facts
	layout layout.Layout
	forest *layout.Forest
	rows   map[string][]*knob.Row // hierarchy ID → rows, all hierarchies of the host
	values map[cgroup.Dir][]value
	// rests holds what a file of a directory should hold that no group asks for, where that is not
	// the row's default: the value of the directory above.
	rests map[cgroup.Dir]map[string]string
	// enabled holds, for each v2 directory including those above our root, the controllers that it
	// must hand to its children.
	enabled map[cgroup.Dir][]string
	notes   []plan.Note
	// observed and use are what those that share a limit have now, and use.
	observed *plan.Observation
	use      map[cgroup.Dir]map[string]plan.IOUse
	loose    map[string]int    // processes in no unit, by group; under systemd only
	classes  map[string]uint32 // of traffic control, by group
}

// newDesired computes the desired state. It looks at the observation only for what the root of a
// cpuset hierarchy has to give.
func newDesired(in *plan.Input) *desired {
	d := &desired{
		facts:   in.Facts,
		forest:  layout.NewForest(in.Facts, in.Host, in.InForce()),
		rows:    layout.Rows(in.Facts),
		values:  make(map[cgroup.Dir][]value),
		rests:   make(map[cgroup.Dir]map[string]string),
		enabled: make(map[cgroup.Dir][]string),

		observed: &in.Observed, use: in.Use, classes: classesOf(in),
	}
	if d.classes == nil &&
		plan.UsesNetwork(in.InForce()) { // which class a group has is not known: what is in force stays
		for id, rows := range d.rows {
			d.rows[id] = slices.DeleteFunc(rows, func(r *knob.Row) bool { return r.File == knob.FileClassID })
		}
	}
	d.layout = layout.New(in.Facts, layout.Names{Root: in.Host.Root, Former: in.Former}, d.forest, in.Systemd)
	d.shareDevices()
	for _, h := range d.layout.Hierarchies() {
		rows := d.rows[h.ID]
		settings := d.splitBudgets(h.ID, rows)
		for _, n := range d.forest.Nodes {
			d.encodeGroup(n, h.ID, rows, settings[n.Path])
		}
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
func (d *desired) encodeGroup(n *layout.Node, hierarchy string, rows []*knob.Row, settings policy.Settings) {
	own, ok := d.layout.Own(n.Path)[hierarchy]
	if !ok {
		return
	}
	for _, row := range rows {
		dir := own
		if layout.IsBudget(row) {
			member, ok := d.layout.Member(n.Path)[hierarchy]
			if !ok || d.layout.Owner[member] != n.Path {
				continue
			}
			dir = member
		}
		for _, on := range row.Instances(settings) {
			d.encode(n.Path, dir, row, on, settings)
		}
	}
}

func (d *desired) encode(group string, dir cgroup.Dir, row *knob.Row, on string, settings policy.Settings) {
	setting := reasonFor(row, on, settings)
	if d.layout.Owned[dir.Hierarchy] && row.File == fileRTRuntime {
		d.notes = append(d.notes, plan.Note{Group: group, Key: setting.Key, NotEnforced: true,
			Text: fmt.Sprintf("%s is not held: systemd gives no real-time run time to the units above it", setting)})
		return
	}
	if group != layout.RootGroup && !row.Nests(d.facts.Kernel) {
		d.notes = append(d.notes, plan.Note{Group: group, Key: setting.Key, NotEnforced: true,
			Text: fmt.Sprintf("%s is not held: %s below another group needs kernel %s", setting, row.File, row.Nested)})
		return
	}
	text, ok, err := row.Encode(knob.Input{Settings: settings, Facts: d.facts, On: on, Class: d.classes[group]})
	switch {
	case err != nil:
		d.notes = append(d.notes, plan.Note{Group: group, Key: setting.Key, NotEnforced: true,
			Text: fmt.Sprintf("%s is not held: %v", setting, err)})
	case ok && text != "": // an empty list of CPUs or nodes asks for what the group above has
		v := value{row: row, file: row.Name(on), on: on, text: text, setting: setting}
		if row.PerDevice {
			v.key = on
		}
		d.values[dir] = append(d.values[dir], v)
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

// capQuotas drops a v1 CPU quota that is above the one of a group above it: the kernel refuses it
// (EINVAL, tg_cfs_schedulable_down), and the tighter one holds the child anyway.
func (d *desired) capQuotas(hierarchy string) {
	above := make(map[string]quota) // by path of the directory
	for _, dir := range d.layout.Dirs() {
		if dir.Hierarchy != hierarchy {
			continue
		}
		outer, limited := above[dir.Parent().Path]
		q, ok := quotaOf(d.values[dir])
		switch {
		case ok && limited && q.above(outer):
			d.values[dir] = slices.DeleteFunc(d.values[dir], func(v value) bool { return isBandwidth(v.row) })
			d.notes = append(d.notes, plan.Note{Group: d.layout.Owner[dir], Key: policy.KeyCPULimit,
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
func (d *desired) shareRealtime(hierarchy string) {
	asks := make(map[string]value) // by group
	for _, dir := range d.layout.Dirs() {
		for _, v := range d.values[dir] {
			if dir.Hierarchy == hierarchy && v.file == fileRTRuntime {
				asks[d.layout.Owner[dir]] = v
			}
		}
	}
	if len(asks) == 0 {
		return
	}
	sums := make(map[string]int64, len(asks))
	for _, n := range slices.Backward(d.forest.Nodes) {
		if v, ok := asks[n.Path]; ok {
			sums[n.Path] = number(v.text)
		}
		if n.Parent != nil {
			if _, ok := asks[n.Parent.Path]; !ok {
				sums[n.Parent.Path] += sums[n.Path]
			}
		}
	}
	root := d.forest.Nodes[0]
	if d.layout.Has(layout.RootGroup) {
		d.giveRealtime(root, hierarchy, sums[layout.RootGroup], asks, sums)
		return
	}
	for _, n := range root.Children {
		d.giveRealtime(n, hierarchy, sums[n.Path], asks, sums)
	}
}

// giveRealtime writes run time microseconds to n and splits them below it.
func (d *desired) giveRealtime(n *layout.Node, hierarchy string, run int64, asks map[string]value,
	sums map[string]int64) {
	dir, ok := d.layout.Own(n.Path)[hierarchy]
	if !ok || run == 0 {
		return
	}
	v, asked := asks[n.Path]
	if !asked {
		v = anyOf(asks)
		v.setting = policy.Setting{Key: policy.KeyCPURT, Value: policy.Duration(run * 1000), From: fromBelow}
	}
	d.setValue(dir, v, run)
	wants := make([]int64, 0, len(n.Children)+1)
	for _, c := range n.Children {
		wants = append(wants, sums[c.Path])
	}
	leaf, hasLeaf := d.layout.Member(n.Path)[hierarchy]
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
func anyOf(asks map[string]value) value {
	first := ""
	for group := range asks {
		if first == "" || group < first {
			first = group
		}
	}
	return asks[first]
}

// setValue writes or replaces a numeric value.
func (d *desired) setValue(dir cgroup.Dir, v value, n int64) {
	v.text = strconv.FormatInt(n, 10)
	for i, old := range d.values[dir] {
		if old.file == v.file && old.key == v.key {
			d.values[dir][i] = v
			return
		}
	}
	d.values[dir] = append(d.values[dir], v)
}

// seed gives every directory of a v1 cpuset its CPUs and nodes: what its group asks for, as far as
// the directory above has them, else all that the directory above has.
func (d *desired) seed(h host.Hierarchy, o *plan.Observation) {
	for _, row := range d.rows[h.ID] {
		if !row.Seed {
			continue
		}
		finals := map[string]string{"/": rootSet(d.facts, h, row, o)}
		for _, dir := range d.layout.Dirs() {
			if dir.Hierarchy != h.ID {
				continue
			}
			outer := finals[dir.Parent().Path]
			finals[dir.Path] = d.seedDir(dir, row, outer)
		}
	}
}

// seedDir settles one set of one directory and gives it.
func (d *desired) seedDir(dir cgroup.Dir, row *knob.Row, outer string) string {
	values := d.values[dir]
	i := slices.IndexFunc(values, func(v value) bool { return v.row == row })
	if i < 0 {
		d.values[dir] = append(values, value{row: row, file: row.File, text: outer,
			setting: policy.Setting{Key: row.Keys[0], Value: policy.IDs{Set: idSet(outer)}, From: plan.FromAbove}})
		return outer
	}
	asked := idSet(values[i].text)
	if asked.Subset(idSet(outer)) {
		return values[i].text
	}
	fits := asked.Intersect(idSet(outer)).String()
	text := fmt.Sprintf("%s %s is cut to %s: the group above has only %s", row.Keys[0], asked, fits, outer)
	if fits == "" {
		fits = outer
		text = fmt.Sprintf("%s %s is not held: the group above has only %s", row.Keys[0], asked, outer)
	}
	d.notes = append(d.notes, plan.Note{Group: d.layout.Owner[dir], Key: row.Keys[0], Text: text, NotEnforced: true})
	values[i].text = fits
	return fits
}

// rootSet is what the root of a cpuset hierarchy has: as observed, else every online CPU and every
// node with memory.
func rootSet(f *host.Facts, h host.Hierarchy, row *knob.Row, o *plan.Observation) string {
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
func (d *desired) follow(h host.Hierarchy, o *plan.Observation) {
	for _, row := range d.rows[h.ID] {
		if !row.Inherits || !row.Nests(d.facts.Kernel) {
			continue
		}
		finals := make(map[string]value) // by path; what a directory holds in the end, where that is known
		if text, ok := o.Dirs[cgroup.Dir{Hierarchy: h.ID, Path: "/"}][row.File]; ok {
			finals["/"] = value{row: row, file: row.File, text: row.Parse(text)}
		}
		for _, dir := range d.layout.Dirs() {
			if dir.Hierarchy == h.ID {
				d.followDir(dir, row, finals, o)
			}
		}
	}
}

func (d *desired) followDir(dir cgroup.Dir, row *knob.Row, finals map[string]value, o *plan.Observation) {
	if i := slices.IndexFunc(d.values[dir], func(v value) bool { return v.row == row }); i >= 0 {
		finals[dir.Path] = d.values[dir][i]
		return
	}
	v, known := finals[dir.Parent().Path]
	if !known { // the root group, above which nothing was seen: whatever it has is its own
		text, ok := o.Dirs[dir][row.File]
		if !ok {
			return
		}
		v = value{row: row, file: row.File, text: row.Parse(text)}
	}
	finals[dir.Path] = v
	if v.setting.Key != "" && !row.Descends {
		v.setting.From = plan.FromAbove
		d.values[dir] = append(d.values[dir], v)
		return
	}
	d.setRest(dir, row, v.text)
}

// widen settles what a v2 cpuset that nobody asks for may hold beside the empty list: all that the
// directory above has.
func (d *desired) widen(h host.Hierarchy, o *plan.Observation) {
	for _, row := range d.rows[h.ID] {
		if !isWide(row) {
			continue
		}
		finals := map[string]idset.Set{"/": idSet(rootSet(d.facts, h, row, o))}
		for _, dir := range d.layout.Dirs() {
			if dir.Hierarchy != h.ID {
				continue
			}
			outer := finals[dir.Parent().Path]
			d.setRest(dir, row, outer.String())
			finals[dir.Path] = outer
			for _, v := range d.values[dir] {
				if both := idSet(v.text).Intersect(outer); v.row == row && len(both) > 0 {
					finals[dir.Path] = both
				}
			}
		}
	}
}

func (d *desired) setRest(dir cgroup.Dir, row *knob.Row, text string) {
	if d.rests[dir] == nil {
		d.rests[dir] = make(map[string]string)
	}
	d.rests[dir][row.File] = text
}

// rest is what a file should hold that no group asks for; ok is false when that is not known.
func (d *desired) rest(dir cgroup.Dir, row *knob.Row) (text string, ok bool) {
	if row.Inherits || row.Seed || isWide(row) {
		text, ok = d.rests[dir][row.File]
		return text, ok
	}
	return row.Default, true
}

// enableControllers computes what each v2 directory hands down: a controller must be enabled in every
// ancestor of the directory that uses it, from the root of the hierarchy on. An io limit brings
// memory along where the hierarchy has it: without it the kernel cannot tell whose buffered
// writes it writes back (cgroup-v2.rst, "Writeback"; measured).
func (d *desired) enableControllers() {
	for _, h := range d.layout.Hierarchies() {
		if h.Version != 2 {
			continue
		}
		for _, dir := range d.layout.Dirs() {
			if dir.Hierarchy != h.ID {
				continue
			}
			for _, row := range d.rows[h.ID] {
				if n := d.forest.ByPath[d.layout.Owner[dir]]; n != nil && !d.layout.Owned[h.ID] &&
					row.Asked(n.Settings) && len(row.Instances(n.Settings)) == 0 {
					d.enableAbove(dir, row.Controller) // for what is in force
				}
			}
			for _, v := range d.values[dir] {
				if v.row.Controller == "" { // owners need none
					continue
				}
				if d.layout.Owned[h.ID] && slices.Contains(layout.UnitControllers, v.row.Controller) {
					continue // systemd hands these down where a unit's properties ask for it
				}
				d.enableAbove(dir, v.row.Controller)
				if v.row.Controller == "blkio" && slices.Contains(h.Controllers, "memory") {
					d.enableAbove(dir, "memory")
				}
			}
		}
	}
	for dir := range d.enabled {
		slices.Sort(d.enabled[dir])
	}
}

func (d *desired) enableAbove(dir cgroup.Dir, controller string) {
	for dir.Path != "/" {
		dir = dir.Parent()
		if !slices.Contains(d.enabled[dir], controller) {
			d.enabled[dir] = append(d.enabled[dir], controller)
		}
	}
}

// wanted lists every value, directory by directory, parents first.
func (d *desired) wanted() []plan.Wanted {
	var all []plan.Wanted
	for _, dir := range d.layout.Dirs() {
		for _, v := range d.values[dir] {
			all = append(all, plan.Wanted{Group: d.layout.Owner[dir], Dir: dir, File: v.file, Key: v.key,
				Value: v.text, Setting: v.setting, Row: v.row})
		}
	}
	return all
}

// slotsOf numbers the groups that have limits on interfaces. One whose interface is gone for now keeps its number.
func slotsOf(in *plan.Input) (map[string]netshape.Slot, error) {
	var names []string
	groups := in.InForce()
	for _, g := range in.Classified.Groups {
		_, had := in.Network.Slots[g.Path]
		if wanted := slices.ContainsFunc(groups, func(o classify.Group) bool { return o.Path == g.Path }); had ||
			wanted && layout.LimitsNetwork(g.Settings) {
			names = append(names, g.Path)
		}
	}
	return netshape.Slots(in.Network.Slots, names)
}

// classesOf gives the numbers by which net_cls tells the groups apart, where the kernel can sort by them.
func classesOf(in *plan.Input) map[string]uint32 {
	if in.Network == nil || !in.Network.Has.Has(netshape.HasNetCls) || !knob.SortsByNetCls(in.Facts) {
		return nil
	}
	slots, err := slotsOf(in)
	if err != nil { // networkSteps refuses it
		return nil
	}
	classes := make(map[string]uint32, len(slots))
	for group, slot := range slots {
		classes[group] = uint32(slot.Class())
	}
	return classes
}
