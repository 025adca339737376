package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// setUnit makes a write one through the properties of the directory's unit, where systemd knows them.
func (p *planner) setUnit(step *plan.Step, row *knob.Row) {
	u, ok := p.d.Layout.KnobUnit(step.Dir)
	if !ok || step.File == desired.FileSubtree || row.PerDevice && p.d.MovesDown(step.Key) {
		return
	}
	devices, kept := p.told(step.Dir, row)
	want := func(file, device string) string {
		if file == step.File && device == step.Key {
			return step.New
		}
		for _, v := range p.d.Values[step.Dir] {
			if v.File == file && v.Key == device {
				return v.Text
			}
		}
		if file == row.File && device != "" {
			return row.Line(kept, device) // left as it is
		}
		return p.fallback(step.Dir, file)
	}
	set, ok := row.Properties(u, devices, want)
	if !ok {
		return
	}
	step.Unit, step.Set = u.Name, set
	if p.isNew[step.Dir] {
		return
	}
	observed := p.o.Dirs[step.Dir]
	step.Unset, _ = row.Properties(u, slices.DeleteFunc(row.Devices(observed[row.File]), p.d.MovesDown),
		func(file, device string) string {
			text, ok := observed[file]
			switch {
			case !ok:
				return p.fallback(step.Dir, file)
			case device != "":
				return row.Line(text, device)
			}
			return text
		})
}

// told lists the devices for which systemd is told of a row of a unit's directory, and gives what the file holds now:
// those with a limit, and those whose limit is left as it is.
func (p *planner) told(dir cgroup.Dir, row *knob.Row) (devices []string, now string) {
	for _, v := range p.d.Values[dir] {
		if v.File == row.File && row.PerDevice && !p.d.MovesDown(v.Key) {
			devices = append(devices, v.Key)
		}
	}
	now = p.o.Dirs[dir][row.File]
	if p.leaves(dir, row) {
		for _, on := range row.Devices(now) {
			if !slices.Contains(devices, on) && !p.d.MovesDown(on) {
				devices = append(devices, on)
			}
		}
	}
	return devices, now
}

// keepUnits puts before the writes from step first on what records the units that they change.
func (p *planner) keepUnits(first int) {
	var keep []plan.Step
	for _, s := range p.steps[first:] {
		if unit := p.d.Layout.Unit(s.Dir); s.Op == plan.OpWrite && unit != "" && p.d.Layout.Theirs(s.Dir) &&
			!slices.ContainsFunc(keep, func(k plan.Step) bool { return k.Unit == unit }) {
			keep = append(keep, plan.Step{Op: plan.OpKeep, Group: s.Group, Unit: unit, Dir: s.Dir,
				Reason: "what systemd was told of it before, for the way back"})
		}
	}
	for _, dir := range p.d.Layout.Dirs() { // a unit that carries another group's limits now, or from another place
		g := p.d.Layout.Governed[dir]
		k, known := p.in.Systemd.KeptOf(g.Unit)
		if known && (k.Group != g.Group || k.Dir != dir.Path) &&
			!slices.ContainsFunc(keep, func(s plan.Step) bool { return s.Unit == g.Unit }) {
			keep = append(keep, plan.Step{Op: plan.OpKeep, Group: g.Group, Unit: g.Unit, Dir: dir,
				Reason: "it carries the limits of this group now"})
		}
	}
	p.steps = slices.Insert(p.steps, first, keep...)
}

// wakeKeeper starts a keeper again whose process has ended. The group's processes are not touched by either.
func (p *planner) wakeKeeper(dir cgroup.Dir) {
	unit := p.d.Layout.Unit(dir)
	if dir.Hierarchy != p.tracker() || !p.d.Layout.Names.IsKeeperUnit(unit) || p.in.Systemd.Keepers[dir.Path] {
		return
	}
	p.steps = append(p.steps, plan.Step{Op: plan.OpMakeDir, Group: p.d.Layout.Owner[dir], Dir: dir, Unit: unit,
		Undo:   string(plan.OpRemoveDir),
		Reason: "the process that keeps the directory has ended"})
}

// dropSettings gives units that a group claims back what they had before of those settings that the group asks for no
// more. The others stay as they are all the while: a memory limit that came back for a moment could kill.
func (p *planner) dropSettings() {
	if p.in.Systemd == nil {
		return
	}
	for _, unit := range slices.Sorted(maps.Keys(p.in.Systemd.Set)) {
		k := p.in.Systemd.Kept[unit]
		asked := map[string]bool{}
		there := false
		for _, dir := range p.d.Layout.Dirs() {
			if p.d.Layout.Unit(dir) != unit || !p.d.Layout.Theirs(dir) {
				continue
			}
			there = true
			for _, row := range p.d.Rows[dir.Hierarchy] {
				if p.leaves(dir, row) {
					for _, name := range row.PropertySettings() {
						asked[name] = true
					}
				}
			}
			for _, v := range p.d.Values[dir] {
				s := plan.Step{Dir: dir, File: v.File, Key: v.Key, New: v.Text}
				p.setUnit(&s, v.Row)
				for _, a := range s.Set {
					if row, ok := systemd.RowOf(a.Name); ok {
						asked[row.Setting] = true
					}
				}
			}
		}
		// What systemd counts for the group stays as long as the group has the unit.
		extra := slices.DeleteFunc(slices.Clone(p.in.Systemd.Set[unit]),
			func(s string) bool { return asked[s] || slices.Contains(systemd.AccountingSettings(), s) })
		if !there || len(extra) == 0 {
			continue
		}
		p.backToOwnMemory(unit, k, extra)
		p.steps = append(p.steps, plan.Step{Op: plan.OpRevert, Group: k.Group, Unit: unit, Kept: &k, Settings: extra,
			Dir:    cgroup.Dir{Hierarchy: p.tracker(), Path: k.Dir},
			Reason: strings.Join(extra, ", ") + " is no longer asked for"})
	}
}

// fallback is what a file holds that nobody asks for.
func (p *planner) fallback(dir cgroup.Dir, file string) string {
	for _, r := range p.d.Rows[dir.Hierarchy] {
		if r.File == file {
			return r.Default
		}
	}
	return ""
}

// byProperty says whether a row of a directory is written through its unit.
func (p *planner) byProperty(dir cgroup.Dir, row *knob.Row) bool {
	u, ok := p.d.Layout.KnobUnit(dir)
	if !ok {
		return false
	}
	_, ok = row.Properties(u, nil, func(file, _ string) string { return p.fallback(dir, file) })
	return ok
}

// adopt gives units that their group adopts the drop-in that starts them in the group's slice, and takes it from those
// that are adopted no more. It changes nothing that runs.
func (p *planner) adopt() {
	if p.in.Systemd == nil {
		return
	}
	want := map[string]string{}
	groups := map[string]string{}
	seen := map[string]bool{}
	for _, g := range p.in.Systemd.Governed {
		seen[g.Unit] = true
		slice, ok := p.d.Layout.SliceName(g.Group)
		if ok && p.d.Layout.Adopts[g.Group] && unitname.TypeOf(g.Unit) == "service" {
			want[g.Unit], groups[g.Unit] = slice, g.Group
		}
	}
	for unit, slice := range p.in.Systemd.Adopted {
		// One that does not run now is kept for its next start, as long as its group may come back.
		if want[unit] == "" && !seen[unit] && !p.runsElsewhere(unit) {
			want[unit] = slice
		}
	}
	units := make([]string, 0, len(want)+len(p.in.Systemd.Adopted))
	for unit := range want {
		units = append(units, unit)
	}
	for unit := range p.in.Systemd.Adopted {
		if want[unit] == "" {
			units = append(units, unit)
		}
	}
	slices.Sort(units)
	for _, unit := range units {
		now := p.in.Systemd.Adopted[unit]
		if now == want[unit] {
			continue
		}
		reason := "adopt: next-start: the unit starts in the group's slice from its next start on"
		if want[unit] == "" {
			reason = "the unit is adopted no more; it leaves the slice at its next start"
		}
		p.dropIn(unit, groups[unit], now, want[unit], reason)
	}
}

func (p *planner) dropIn(unit, group, from, to, reason string) {
	p.steps = append(p.steps, plan.Step{Op: plan.OpDropIn, Group: group, Unit: unit, Old: sliceLine(from),
		New:  sliceLine(to),
		Undo: sliceLine(from), Reason: reason})
}

// sliceLine is the setting of a drop-in, "" for none.
func sliceLine(slice string) string {
	if slice == "" {
		return ""
	}
	return "Slice=" + slice
}

// runsElsewhere says whether a unit that no group claims runs something, and will do so.
func (p *planner) runsElsewhere(unit string) bool {
	return !p.in.Systemd.Between[unit] && slices.ContainsFunc(p.table, func(proc procfs.Process) bool {
		_, name, ok := p.d.Layout.Names.UnitDir(&proc)
		return ok && name == unit
	})
}

// awaited says whether a directory of ours is that of a group whose instance is about to be there: its unit is on its
// way up or down, or starts, or waits to start, in the group's slice, which systemd has made at boot already.
func (p *planner) awaited(dir cgroup.Dir) bool {
	if p.in.Systemd == nil {
		return false
	}
	group, ours := p.d.Layout.Group(dir)
	for unit, k := range p.in.Systemd.Kept {
		if _, leads := layout.Below(group, k.Group); p.in.Systemd.Between[unit] && ours && group != layout.RootGroup &&
			leads {
			return true
		}
	}
	if !strings.HasSuffix(p.d.Layout.Unit(dir), ".slice") {
		return false
	}
	for _, slice := range p.in.Systemd.Adopted {
		if at, err := unitname.SliceDir(slice); err == nil {
			if _, leads := layout.Below(dir.Path, at); leads {
				return true
			}
		}
	}
	return false
}

// isForsaken says whether a unit that bulkhead has set properties of belongs to no group any more. One that does not
// run, or starts just now, keeps them.
func (p *planner) isForsaken(unit string, k layout.Kept) bool {
	if p.in.IsReleased(k.Group) {
		return false
	}
	if unitname.TypeOf(unit) == "slice" {
		return !p.d.Layout.Holds(cgroup.Dir{Hierarchy: p.tracker(), Path: k.Dir})
	}
	for _, g := range p.d.Layout.Governed {
		if g.Unit == unit {
			return false
		}
	}
	for i := range p.table {
		if at, _, ok := p.d.Layout.Names.UnitDir(&p.table[i]); ok && at == k.Dir &&
			p.placed[p.table[i].ID].group == k.Group {
			return false // a part of it is the group's still
		}
	}
	return p.runsElsewhere(unit)
}

func (p *planner) tracker() string { return layout.Tracker(p.in.Facts) }

// revertUnits has systemd forget what bulkhead set of some of the units it has a record of.
func (p *planner) revertUnits(which func(unit string, k layout.Kept) bool, reason string) {
	if p.in.Systemd == nil {
		return
	}
	units := make([]string, 0, len(p.in.Systemd.Kept))
	for unit, k := range p.in.Systemd.Kept {
		if which(unit, k) {
			units = append(units, unit)
		}
	}
	slices.Sort(units)
	for _, unit := range units {
		k := p.in.Systemd.Kept[unit]
		settings := p.holdOwnMemory(unit, k)
		if len(settings) == 0 && len(k.Ours) > 0 {
			continue
		}
		p.steps = append(p.steps, plan.Step{Op: plan.OpRevert, Group: k.Group, Unit: unit, Kept: &k, Settings: settings,
			Reason: reason})
	}
}

const settingMemoryMax = "MemoryMax"

// ownMemory gives the memory limit of a unit's own files as a change of what is in force, when it is below that and
// below what is in use.
func (p *planner) ownMemory(unit string, k layout.Kept, settings []string) (dir cgroup.Dir, c knob.Change,
	lowers bool) {
	own, has := p.in.Systemd.Own[unit]
	if !has || !slices.Contains(settings, settingMemoryMax) {
		return dir, c, false
	}
	for _, h := range p.in.Facts.Hierarchies {
		dir = cgroup.Dir{Hierarchy: h.ID, Path: k.Dir}
		text, seen := p.o.Dirs[dir]
		if !seen || p.charged(dir) <= own {
			continue
		}
		for _, row := range p.d.Rows[h.ID] {
			if isMemoryLimit(row) {
				return dir, knob.Change{Row: row, From: row.Parse(text[row.File]), To: strconv.FormatInt(own, 10)}, true
			}
		}
	}
	return dir, c, false
}

// backToOwnMemory lowers the memory limit of a unit to that of its own files before systemd is told to do it at once:
// in steps where memory has to go, and refused where it cannot.
func (p *planner) backToOwnMemory(unit string, k layout.Kept, settings []string) {
	if dir, c, lowers := p.ownMemory(unit, k, settings); lowers {
		p.lowerMemory(dir, c)
	}
}

// holdOwnMemory is backToOwnMemory for the ways on which nothing is refused. It gives the settings that go back: a
// limit that would kill stays what it is, until the unit uses less.
func (p *planner) holdOwnMemory(unit string, k layout.Kept) []string {
	dir, c, lowers := p.ownMemory(unit, k, k.Ours)
	if !lowers || p.in.Insist {
		return k.Ours
	}
	own := p.in.Systemd.Own[unit]
	current, pinned := p.in.Memory.Charged(dir)
	switch {
	case pinned > own:
		p.notes = append(p.notes, plan.Note{Group: k.Group, Key: policy.KeyMemoryMax, NotEnforced: true,
			Text: fmt.Sprintf(
				"%s keeps the memory limit that it has: its own MemoryMax=%s is below the %s in it that cannot be "+
					"reclaimed, and would have it killed; release again once it uses less or was restarted, or with "+
					"--force --reason",
				unit, policy.Bytes(own).Human(), policy.Bytes(pinned).Human())})
		return slices.DeleteFunc(slices.Clone(k.Ours), func(s string) bool { return s == settingMemoryMax })
	default:
		p.notes = append(p.notes, plan.Note{Group: k.Group, Key: policy.KeyMemoryMax, Text: fmt.Sprintf(
			"%s goes back to its own MemoryMax=%s in steps, as it uses %s", unit, policy.Bytes(own).Human(),
			policy.Bytes(current).Human())})
		for _, text := range append(p.descent(dir, c.From, desired.Number(c.To)), c.To) {
			step := p.writeStep(dir, c.Row, c.On, c.From, text)
			step.Group, step.Risk, step.Reason = k.Group, knob.RiskSlow,
				"the unit's own limit, in steps, so that the kernel can reclaim between them"
			p.addWrite(step)
			c.From = text
		}
	}
	return k.Ours
}

// isTheirs says whether a directory is that of a unit that stays: not of a slice that the policy names and bulkhead has
// made.
func (p *planner) isTheirs(dir cgroup.Dir) bool { return p.d.Layout.Theirs(dir) && !p.o.Made[dir] }

// noteLater names the files that take limits of ours away at each daemon-reload.
func (p *planner) noteLater() {
	if p.in.Systemd == nil {
		return
	}
	told := map[string]bool{}
	for _, dir := range p.d.Layout.Dirs() {
		unit := p.d.Layout.Unit(dir)
		later := p.in.Systemd.Later[unit]
		if len(later) == 0 || !p.d.Layout.Theirs(dir) {
			continue
		}
		for _, v := range p.d.Values[dir] {
			s := plan.Step{Dir: dir, File: v.File, Key: v.Key, New: v.Text}
			p.setUnit(&s, v.Row)
			for _, a := range s.Set {
				row, known := systemd.RowOf(a.Name)
				for _, l := range later {
					if text := unit + l.Setting + l.File; known && l.Setting == row.Setting && !told[text] {
						told[text] = true
						p.notes = append(p.notes, plan.Note{Group: p.d.Layout.Owner[dir], Key: v.Setting.Key,
							Fragile: true,
							Text: fmt.Sprintf(
								"at each daemon-reload %s gives %s its own %s=%s, until the agent sets the group's "+
									"again: take that line out, or give the file a name that sorts before 50-%s.conf",
								l.File, unit, l.Setting, l.Value, l.Setting)})
					}
				}
			}
		}
	}
}
