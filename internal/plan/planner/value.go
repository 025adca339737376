package planner

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// writeValues brings every knob file to its value.
func (p *planner) writeValues() {
	raise := make(map[cgroup.Dir][]knob.Change)
	lower := make(map[cgroup.Dir][]knob.Change)
	first := make(map[cgroup.Dir][]knob.Change)
	for _, dir := range p.d.Layout.Dirs() {
		raise[dir], lower[dir] = knob.Split(p.changes(dir))
		first[dir], lower[dir] = partition(lower[dir], comesFirst)
		for i, c := range raise[dir] {
			if least := c.Row.Least(c.From, c.To); c.Row.Budget() && !c.Row.Same(least, c.From) {
				first[dir] = append(first[dir], knob.Change{Row: c.Row, On: c.On, From: c.From, To: least})
				raise[dir][i].From = least
			}
		}
		// What one device no longer needs is taken off it before others get it, and one that joins gets what others
		// gave up before.
		lifted, others := partition(raise[dir], func(c knob.Change) bool { return p.frees(dir, c, c.To) })
		raise[dir] = append(lifted, others...)
		joined, others := partition(first[dir], func(c knob.Change) bool { return p.frees(dir, c, c.From) })
		first[dir] = append(others, joined...)
	}
	dirs := slices.Clone(p.d.Layout.Dirs())
	for _, dir := range p.obsolete {
		up, down := knob.Split(p.fit(dir))
		if len(up)+len(down) == 0 {
			continue
		}
		raise[dir] = up
		first[dir], lower[dir] = partition(down, comesFirst)
		dirs = append(dirs, dir)
	}
	slices.SortStableFunc(dirs, depth)
	p.emit(slices.Backward(dirs), first)
	p.emit(slices.All(dirs), raise)
	p.emit(slices.Backward(dirs), lower)
}

// frees says whether a device has no part of a budget with a value that a change begins or ends with.
func (p *planner) frees(dir cgroup.Dir, c knob.Change, value string) bool {
	rest, known := p.d.Rest(dir, c.Row)
	return c.Row.Budget() && known && c.Row.Same(rest, value)
}

// depth orders by the depth of the directory, shallow first.
func depth(a, b cgroup.Dir) int {
	return cmp.Compare(strings.Count(a.Path, "/"), strings.Count(b.Path, "/"))
}

func partition(changes []knob.Change, in func(knob.Change) bool) (those, others []knob.Change) {
	for _, c := range changes {
		if in(c) {
			those = append(those, c)
		} else {
			others = append(others, c)
		}
	}
	return those, others
}

// comesFirst says whether a value is lowered before others are raised, as they share something.
func comesFirst(c knob.Change) bool { return c.Row.File == desired.FileRTRuntime || c.Row.Budget() }

func (p *planner) emit(dirs func(func(int, cgroup.Dir) bool), changes map[cgroup.Dir][]knob.Change) {
	for _, dir := range dirs {
		for _, c := range changes[dir] {
			p.write(dir, c)
		}
	}
}

// changes gives what is to become of each file of a directory: the values that are asked for, those
// that are so already included, and files that hold what nobody asks for any more.
func (p *planner) changes(dir cgroup.Dir) []knob.Change {
	var changes []knob.Change
	for _, v := range p.d.Values[dir] {
		c := knob.Change{Row: v.Row, On: v.On, From: p.now(dir, v), To: v.Text}
		if p.isLeft(dir, v, v.Text) {
			c.To = c.From
		}
		changes = append(changes, c)
	}
	if p.d.Layout.Theirs(dir) {
		return append(changes, p.liftByFile(dir)...)
	}
	for _, row := range p.d.Rows[dir.Hierarchy] {
		rest, ok := p.d.Rest(dir, row)
		if !ok || !p.handsDown(dir, row.Controller) {
			continue // not known, or the file goes away with its controller
		}
		for _, on := range p.present(dir, row) {
			v := desired.Value{Row: row, File: row.Name(on), On: on}
			if row.PerDevice {
				v.Key = on
			}
			if p.asked(dir, v) || p.leaves(dir, row) {
				continue
			}
			if now := p.now(dir, v); !row.Same(rest, now) && !(desired.IsWide(row) && now == "") &&
				!p.isLeft(dir, v, rest) {
				changes = append(changes, knob.Change{Row: row, On: on, From: now, To: rest})
			}
		}
	}
	return changes
}

// isLeft says whether a file keeps what somebody else wrote there.
func (p *planner) isLeft(dir cgroup.Dir, v desired.Value, wanted string) bool {
	then, left := p.in.Leave[cgroup.File{Dir: dir, Name: v.File, Key: v.Key}]
	return left && !p.isNew[dir] && v.Row.Same(then, wanted)
}

// present lists the instances of a row that a directory has a value for now: "" for a plain file that is
// there, else devices or page sizes. A new directory that copies its parent's values has those.
func (p *planner) present(dir cgroup.Dir, row *knob.Row) []string {
	files := p.o.Dirs[dir]
	switch {
	case row.PerDevice:
		return row.Devices(files[row.File])
	case row.PerSize:
		var sizes []string
		for _, size := range p.in.Facts.HugePageSizes {
			if name := policy.HugePageName(size); files[row.Name(name)] != "" {
				sizes = append(sizes, name)
			}
		}
		return sizes
	}
	if _, ok := files[row.File]; ok || row.Inherits && p.isNew[dir] {
		return []string{""}
	}
	return nil
}

// liftByFile lifts what bulkhead has written by file into the directory of a unit for devices that systemd would take
// others for, once nobody asks for it.
func (p *planner) liftByFile(dir cgroup.Dir) []knob.Change {
	if _, ours := p.in.Systemd.KeptOf(p.d.Layout.Unit(dir)); !ours {
		return nil
	}
	var changes []knob.Change
	for _, row := range p.d.Rows[dir.Hierarchy] {
		for _, on := range row.Devices(p.o.Dirs[dir][row.File]) {
			v := desired.Value{Row: row, File: row.File, Key: on, On: on}
			if now := p.now(dir, v); p.d.MovesDown(on) && !p.asked(dir, v) && !p.leaves(dir, row) &&
				!row.Same(row.Default, now) {
				changes = append(changes, knob.Change{Row: row, On: on, From: now, To: row.Default})
			}
		}
	}
	return changes
}

// leaves says whether what a directory holds of a row and nobody asks for stays as it is: its group, or where the row
// does not descend one above it, has a limit whose device cannot be told at the moment. The kernel itself drops the
// limits of devices that are gone.
func (p *planner) leaves(dir cgroup.Dir, row *knob.Row) bool {
	for group := p.groupOf(dir); ; group = layout.ParentGroup(group) {
		if n := p.d.Forest.ByPath[group]; n != nil && row.PerDevice &&
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

func (p *planner) asked(dir cgroup.Dir, v desired.Value) bool {
	return slices.ContainsFunc(p.d.Values[dir],
		func(o desired.Value) bool { return o.File == v.File && o.Key == v.Key })
}

// notKnown stands for the value of a file that was not seen. It equals nothing.
const notKnown = "?"

// now gives what a file holds at the time of the write: as observed; in a new directory what it was
// seeded with, what it copied from the one above, or the default.
func (p *planner) now(dir cgroup.Dir, v desired.Value) string {
	if !p.isNew[dir] {
		text, ok := p.o.Dirs[dir][v.File]
		if !ok {
			return v.Row.Default
		}
		return v.Row.Parse(v.Row.Line(text, v.On))
	}
	switch {
	case v.Row.Seed:
		for _, o := range p.d.Values[dir] {
			if o.Row == v.Row {
				return p.seedText(dir, o)
			}
		}
	case v.Row.Inherits:
		if above := dir.Parent(); above.Path != "/" {
			return p.now(above, v)
		} else if text, ok := p.o.Dirs[above][v.File]; ok {
			return v.Row.Parse(text)
		}
		return notKnown
	}
	return v.Row.Default
}

// fit gives the changes that an obsolete directory needs so that those above it can be changed: the kernel
// refuses a parent below its child. The rest of its limits go away with it.
func (p *planner) fit(dir cgroup.Dir) []knob.Change {
	kept := dir.Parent()
	for !p.d.Layout.Holds(kept) {
		if kept.Path == "/" {
			return nil // no directory above it is changed
		}
		kept = kept.Parent()
	}
	var changes []knob.Change
	for _, row := range p.d.Rows[dir.Hierarchy] {
		text, ok := p.o.Dirs[dir][row.File]
		if !ok {
			continue
		}
		from, to := row.Parse(text), ""
		switch {
		case row.File == desired.FileQuota:
			outer, limited := p.quotaAbove(kept)
			mine := desired.Quota{Quota: desired.Number(from),
				Period: desired.Number(p.o.Dirs[dir][desired.FilePeriod])}
			if limited && mine.Quota >= 0 && mine.Above(outer) {
				to = row.Default
			}
		case row.File == desired.FileRTRuntime:
			to = row.Default
		case row.Seed:
			if final := p.valueOf(kept, row); !desired.IDSet(from).Subset(desired.IDSet(final)) {
				to = final
			}
		}
		if to != "" && !row.Same(to, from) {
			changes = append(changes, knob.Change{Row: row, From: from, To: to})
		}
	}
	return changes
}

// quotaAbove is the v1 CPU limit of a directory or of the nearest above it that will have one.
func (p *planner) quotaAbove(dir cgroup.Dir) (desired.Quota, bool) {
	for ; dir.Path != "/"; dir = dir.Parent() {
		if q, ok := desired.QuotaOf(p.d.Values[dir]); ok {
			return q, true
		}
	}
	return desired.Quota{}, false
}

// valueOf is what a plain row of a directory holds in the end; "" when nobody asks for it.
func (p *planner) valueOf(dir cgroup.Dir, row *knob.Row) string {
	for _, v := range p.d.Values[dir] {
		if v.Row == row {
			return v.Text
		}
	}
	return ""
}

// write adds one write. A memory limit that falls below what is charged now is lowered in steps.
func (p *planner) write(dir cgroup.Dir, c knob.Change) {
	if v, asked := p.find(dir, c.Row, c.On); asked && v.Text != c.To && p.together(dir, c.Row) {
		return
	}
	switch lowers := !c.Row.Loosens(c.From, c.To); {
	case lowers && isMemoryLimit(c.Row):
		p.lowerMemory(dir, c)
		return
	case lowers && c.Row.File == fileMemsw:
		p.lowerMemsw(dir, c)
		return
	}
	p.addWrite(p.writeStep(dir, c.Row, c.On, c.From, c.To))
}

// together says whether a row goes by a property that sets others with it, so that there are no values between: quota
// and period of the CPU, and the weight with cpu.idle.
func (p *planner) together(dir cgroup.Dir, row *knob.Row) bool {
	if row.File == "cpu.weight" {
		return slices.ContainsFunc(p.d.Rows[dir.Hierarchy],
			func(r *knob.Row) bool { return r.File == "cpu.idle" && p.byProperty(dir, r) })
	}
	return desired.IsBandwidth(row) && p.byProperty(dir, row)
}

// addWrite adds a write to the plan and remembers what the file holds from then on.
func (p *planner) addWrite(step plan.Step) {
	p.steps = append(p.steps, step)
	p.written[cgroup.File{Dir: step.Dir, Name: step.File, Key: step.Key}] = step.New
}

// restoresAll gives what a directory that is removed at this point of the plan held: its values, and on v2
// the controllers that it handed down.
func (p *planner) restoresAll(dir cgroup.Dir) []plan.Restore {
	writes := p.restores(dir, func(r *knob.Row) bool { return !slices.Contains(p.dropped[dir.Parent()], r.Controller) })
	if handed := without(p.handed(dir), p.dropped[dir]); len(handed) > 0 {
		writes = append(writes, plan.Restore{File: dir.File(desired.FileSubtree), Value: subtreeWords(handed, nil)})
	}
	return writes
}

// restores gives what a directory of ours holds, at this point of the plan, in the files of the rows
// picked, as the writes that bring it from a fresh directory's values to these.
func (p *planner) restores(dir cgroup.Dir, pick func(*knob.Row) bool) []plan.Restore {
	var changes []knob.Change
	for _, row := range p.d.Rows[dir.Hierarchy] {
		if !pick(row) {
			continue
		}
		for _, on := range p.present(dir, row) {
			v := desired.Value{Row: row, File: row.Name(on), On: on}
			if row.PerDevice {
				v.Key = on
			}
			text, written := p.written[cgroup.File{Dir: dir, Name: v.File, Key: v.Key}]
			if !written {
				text = p.now(dir, v)
			}
			from := row.Default
			if row.Inherits {
				from = notKnown
			}
			changes = append(changes, knob.Change{Row: row, On: on, From: from, To: row.Parse(text)})
		}
	}
	var writes []plan.Restore
	for _, c := range knob.Sequence(changes) {
		f := dir.File(c.Row.Name(c.On))
		if c.Row.PerDevice {
			f.Key = c.On
		}
		writes = append(writes, plan.Restore{File: f, Value: c.To})
	}
	return writes
}

// finalWide is why an undo writes the CPUs or nodes of the directory above instead of the empty list.
const finalWide = "the kernel takes no empty list back while processes are inside (ENOSPC); the undo names the same " +
	"by number"

// outerSet is what an empty cpuset list of a v2 directory stands for now.
func (p *planner) outerSet(dir cgroup.Dir, row *knob.Row) string {
	for dir.Path != "/" {
		dir = dir.Parent()
		if text := row.Parse(p.o.Dirs[dir][row.File]); text != "" && dir.Path != "/" {
			return text
		}
	}
	h, _ := p.in.Facts.Hierarchy(dir.Hierarchy)
	return desired.RootSet(p.in.Facts, h, row, p.o)
}

// writeStep describes one write with its reason.
func (p *planner) writeStep(dir cgroup.Dir, row *knob.Row, on, from, to string) plan.Step {
	step := plan.Step{
		Op: plan.OpWrite, Group: p.groupOf(dir), Dir: dir, File: row.Name(on), New: to,
		Old: from, Undo: from, Setting: row.Keys[0], Final: p.finalClass(row, to),
	}
	if row.PerDevice {
		step.Key = on
	}
	if from == notKnown {
		step.Old, step.Undo = "", ""
	}
	if p.isNew[dir] {
		step.Old = ""
	} else if desired.IsWide(row) && from == "" {
		step.Undo, step.Final = p.outerSet(dir, row), finalWide
	}
	if step.Undo != "" {
		step.Undo = row.Parse(step.Undo)
	}
	if !row.Loosens(from, to) || row.Risk == knob.RiskMigrate {
		step.Risk = row.Risk
	}
	if p.isNew[dir] {
		step.Risk = knob.RiskNone // nobody is in it yet
	}
	v, asked := p.find(dir, row, on)
	switch {
	case asked && v.Text == to:
		step.Setting = v.Setting.Key
		step.Reason = reason(v.Setting)
	case asked && row.Budget():
		step.Setting = v.Setting.Key
		step.Reason = "on the way to " + row.Human(v.Text) +
			": less first, so that those who share the limit never have more than it"
	case asked:
		step.Setting = v.Setting.Key
		step.Reason = "on the way to " + row.Human(v.Text) + ": the kernel refuses the direct way"
	case p.isObsolete[dir]:
		step.Reason = "the group goes away, and the one above it must not be below it until then"
	default:
		step.Reason = fmt.Sprintf("%s is no longer asked for", row.Keys[0])
	}
	p.setUnit(&step, row)
	return step
}

func (p *planner) find(dir cgroup.Dir, row *knob.Row, on string) (desired.Value, bool) {
	for _, v := range p.d.Values[dir] {
		if v.Row == row && v.On == on {
			return v, true
		}
	}
	return desired.Value{}, false
}

func (p *planner) groupOf(dir cgroup.Dir) string {
	if g, ok := p.d.Layout.Governed[dir]; ok {
		return g.Group
	}
	group, _ := p.d.Layout.Group(dir)
	return group
}

// reason says what asks for a limit, who, and where that is written:
// "cpu.limit 4 cores, class standard, policy.yaml:12".
func reason(s policy.Setting) string {
	parts := []string{describe(s)}
	if s.From != "" && s.From != "group" {
		parts = append(parts, s.From)
	}
	if s.Pos.File != "" {
		place := filepath.Base(s.Pos.File)
		if s.Pos.Line > 0 {
			place += fmt.Sprintf(":%d", s.Pos.Line)
		}
		parts = append(parts, place)
	}
	return strings.Join(parts, ", ")
}

// describe is a setting in words: "memory.max 8GiB (4%)", "io.read.bandwidth 50MB/s on /data".
func describe(s policy.Setting) string {
	text := string(s.Key)
	if s.Value != nil {
		text += " " + s.Value.String()
	}
	if s.Key == policy.KeyCPULimit {
		text += " cores"
	}
	if s.Raw != "" {
		text += " (" + s.Raw + ")"
	}
	if on := cmp.Or(s.On, s.Dev); on != "" {
		text += " on " + on
	}
	if s.Why != "" {
		text += " (" + s.Why + ")"
	}
	return text
}

func mapped(names []string, f func(string) string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = f(name)
	}
	return all
}
