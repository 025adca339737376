package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/current"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
	"bulkhead/internal/systemd/unitname"
)

// keepUnits puts before the writes from step first on what records the units that they change.
func (u *units) keepUnits(first int) {
	var keep []plan.Step
	keeps := func(unit string) bool {
		return slices.ContainsFunc(keep, func(k plan.Step) bool { return k.Addr == unit })
	}
	for _, s := range u.out.Steps[first:] {
		dir := s.File().Dir
		if unit := u.Desired.Layout.Unit(dir); unit != "" && u.Desired.Layout.Theirs(dir) && !keeps(unit) {
			keep = append(keep, plan.Step{Change: change.Change{Target: overrides(unit)}, Group: s.Group,
				Reason: "what systemd was told of it before, for the way back"})
		}
	}
	// A unit that carries another group's limits now, or from another place.
	for _, dir := range u.Desired.Layout.Dirs() {
		g := u.Desired.Layout.Governed[dir]
		k, known := u.In.Systemd.KeptOf(g.Unit)
		if known && (k.Group != g.Group || k.Dir != dir.Path) && !keeps(g.Unit) {
			keep = append(keep, plan.Step{Change: change.Change{Target: overrides(g.Unit)}, Group: g.Group,
				Reason: "it carries the limits of this group now"})
		}
	}
	u.out.Steps = slices.Insert(u.out.Steps, first, keep...)
}

// wakeKeeper starts a keeper again whose process has ended. The group's processes are not touched by either.
func (u *units) wakeKeeper(dir cgroup.Dir) {
	unit := u.Desired.Layout.Unit(dir)
	if dir.Hierarchy != u.Tracker() || !u.Desired.Layout.Names.IsKeeperUnit(unit) || u.In.Systemd.Keepers[dir.Path] {
		return
	}
	u.out.Steps = append(u.out.Steps, u.making(dir, "the process that keeps the directory has ended"))
}

// dropSettings gives units that a group claims back what they had before of those settings that the group asks for no
// more. The others stay as they are all the while: a memory limit that came back for a moment could kill.
func (u *units) dropSettings() {
	if u.In.Systemd == nil {
		return
	}
	for _, unit := range slices.Sorted(maps.Keys(u.In.Systemd.Set)) {
		k := u.In.Systemd.Kept[unit]
		asked := map[string]bool{}
		there := false
		for _, dir := range u.Desired.Layout.Dirs() {
			if u.Desired.Layout.Unit(dir) != unit || !u.Desired.Layout.Theirs(dir) {
				continue
			}
			there = true
			for _, row := range u.Desired.Rows[dir.Hierarchy] {
				if u.Leaves(dir, row) {
					for _, name := range row.PropertySettings() {
						asked[name] = true
					}
				}
			}
			for _, v := range u.Desired.Values[dir] {
				_, set := u.properties(dir, v.Row, v.Key, v.Text)
				for _, a := range set {
					if row, ok := systemd.RowOf(a.Name); ok {
						asked[row.Setting] = true
					}
				}
			}
			for _, c := range u.disks(dir, func(s string) bool { return asked[s] }) { // it is asked for on others
				u.addWrite(u.writeStep(dir, c.Row, c.On, c.From, c.To))
			}
		}
		// What systemd counts for the group stays as long as the group has the unit.
		extra := slices.DeleteFunc(slices.Clone(u.In.Systemd.Set[unit]),
			func(s string) bool { return asked[s] || slices.Contains(systemd.AccountingSettings(), s) })
		if !there || len(extra) == 0 {
			continue
		}
		u.backToOwnMemory(unit, k, extra)
		u.revert(unit, k, extra, strings.Join(extra, ", ")+" is no longer asked for")
	}
}

// adopt gives units that their group adopts the drop-in that starts them in the group's slice, and takes it from those
// that are adopted no more. It changes nothing that runs.
func (u *units) adopt() {
	if u.In.Systemd == nil {
		return
	}
	want := map[string]string{}
	groups := map[string]string{}
	seen := map[string]bool{}
	for _, g := range u.In.Systemd.Governed {
		seen[g.Unit] = true
		slice, ok := u.Desired.Layout.SliceName(g.Group)
		if ok && u.Desired.Layout.Adopts[g.Group] && unitname.TypeOf(g.Unit) == "service" {
			want[g.Unit], groups[g.Unit] = slice, g.Group
		}
	}
	for unit, slice := range u.In.Systemd.Adopted {
		// One that does not run now is kept for its next start, as long as its group may come back.
		if want[unit] == "" && !seen[unit] && !u.runsElsewhere(unit) {
			want[unit] = slice
		}
	}
	units := slices.AppendSeq(slices.Collect(maps.Keys(want)), maps.Keys(u.In.Systemd.Adopted))
	slices.Sort(units)
	for _, unit := range slices.Compact(units) {
		now := u.In.Systemd.Adopted[unit]
		if now == want[unit] {
			continue
		}
		reason := "adopt: next-start: the unit starts in the group's slice from its next start on"
		if want[unit] == "" {
			reason = "the unit is adopted no more; it leaves the slice at its next start"
		}
		u.dropIn(unit, groups[unit], now, want[unit], reason)
	}
}

func (u *units) dropIn(unit, group, from, to, reason string) {
	of := change.Target{Kind: unitfiles.KindDropIn, Addr: unit}
	u.out.Steps = append(u.out.Steps, plan.Step{Change: change.Of(of, sliceLine(from), sliceLine(to)), Group: group,
		Reason: reason})
}

func overrides(unit string) change.Target {
	return change.Target{Kind: unitfiles.KindOverrides, Addr: unit}
}

// sliceLine is the setting of a drop-in, "" for none.
func sliceLine(slice string) string {
	if slice == "" {
		return ""
	}
	return "Slice=" + slice
}

// isForsaken says whether a unit that bulkhead has set properties of belongs to no group any more. One that does not
// run, or starts just now, keeps them.
func (u *units) isForsaken(unit string, k layout.Kept) bool {
	if u.In.IsReleased(k.Group) {
		return false
	}
	if unitname.TypeOf(unit) == "slice" {
		return !u.Desired.Layout.Holds(cgroup.Dir{Hierarchy: u.Tracker(), Path: k.Dir})
	}
	for _, g := range u.Desired.Layout.Governed {
		if g.Unit == unit {
			return false
		}
	}
	for i := range u.table {
		if at, _, ok := u.Desired.Layout.Names.UnitDir(&u.table[i]); ok && at == k.Dir &&
			u.placed[u.table[i].ID].group == k.Group {
			return false // a part of it is the group's still
		}
	}
	return u.runsElsewhere(unit)
}

// revertUnits has systemd forget what bulkhead set of some of the units it has a record of.
func (u *units) revertUnits(which func(unit string, k layout.Kept) bool, reason string) {
	if u.In.Systemd == nil {
		return
	}
	for _, unit := range slices.Sorted(maps.Keys(u.In.Systemd.Kept)) {
		k := u.In.Systemd.Kept[unit]
		if !which(unit, k) {
			continue
		}
		settings := u.holdOwnMemory(unit, k)
		if len(settings) == 0 && len(k.Ours) > 0 {
			continue
		}
		u.revert(unit, k, settings, reason)
	}
}

// disks are the lines of single disks that a unit's directory holds by some of its settings, and nobody asks for.
func (u *units) disks(dir cgroup.Dir, by func(setting string) bool) (lines []knob.Change) {
	for _, row := range u.Desired.Rows[dir.Hierarchy] {
		if !row.PerDevice || !slices.ContainsFunc(row.PropertySettings(), by) || u.Leaves(dir, row) {
			continue
		}
		for _, on := range u.Present(dir, row) {
			now := u.Now(dir, desired.ValueAt(row, on))
			_, asked := u.Find(dir, row, on)
			if !asked && !row.Same(row.Default, now) && !u.Desired.MovesDown(on) {
				lines = append(lines, knob.Change{Row: row, On: on, From: now, To: row.Default})
			}
		}
	}
	return lines
}

// clearDisks takes the lines of disks out of the kernel's files before systemd forgets the settings: it leaves them
// there. What the unit's own files ask for comes back with the reload that follows, so none is compared at the end.
func (u *units) clearDisks(k layout.Kept, settings []string, reason string) {
	at := len(u.out.Steps)
	for at > 0 && u.out.Steps[at-1].Kind == unitfiles.KindOverrides { // of which several take one reload
		at--
	}
	for _, h := range u.In.Facts.Hierarchies {
		dir := cgroup.Dir{Hierarchy: h.ID, Path: k.Dir}
		for _, c := range u.disks(dir, func(s string) bool { return slices.Contains(settings, s) }) {
			step := u.writeStep(dir, c.Row, c.On, c.From, c.To)
			step.Unit, step.Do, step.Undo, step.Group = "", "", c.From, k.Group
			step.Reason, step.Optional = reason, true
			u.out.Steps = slices.Insert(u.out.Steps, at, step)
			at++
		}
	}
}

// revert has systemd forget what bulkhead set of a unit: these settings, or all where none is named.
func (u *units) revert(unit string, k layout.Kept, settings []string, reason string) {
	u.clearDisks(k, settings, reason)
	was := unitfiles.HeldFiles{Settings: settings, Files: k.Overrides}
	u.out.Steps = append(u.out.Steps, plan.Step{Change: change.Of(overrides(unit), "", was.String()), Group: k.Group,
		Reason: reason})
}

const settingMemoryMax = "MemoryMax"

// ownMemory gives the memory limit of a unit's own files as a change of what is in force, when it is below that and
// below what is in use.
func (u *units) ownMemory(unit string, k layout.Kept, settings []string) (dir cgroup.Dir, c knob.Change, lowers bool) {
	own, has := u.In.Systemd.Own[unit]
	if !has || !slices.Contains(settings, settingMemoryMax) {
		return dir, c, false
	}
	for _, h := range u.In.Facts.Hierarchies {
		dir = cgroup.Dir{Hierarchy: h.ID, Path: k.Dir}
		text, seen := u.Observed.Dirs[dir]
		if !seen || u.Charged(dir) <= own {
			continue
		}
		for _, row := range u.Desired.Rows[h.ID] {
			if isMemoryLimit(row) {
				return dir, knob.Change{Row: row, From: row.Parse(text[row.File]), To: strconv.FormatInt(own, 10)}, true
			}
		}
	}
	return dir, c, false
}

// backToOwnMemory lowers the memory limit of a unit to that of its own files before systemd is told to do it at once:
// in steps where memory has to go, and refused where it cannot.
func (u *units) backToOwnMemory(unit string, k layout.Kept, settings []string) {
	if dir, c, lowers := u.ownMemory(unit, k, settings); lowers {
		u.lowerMemory(dir, c)
	}
}

// holdOwnMemory is backToOwnMemory for the ways on which nothing is refused. It gives the settings that go back: a
// limit that would kill stays what it is, until the unit uses less.
func (u *units) holdOwnMemory(unit string, k layout.Kept) []string {
	dir, c, lowers := u.ownMemory(unit, k, k.Ours)
	if !lowers || u.In.Insist {
		return k.Ours
	}
	own := u.In.Systemd.Own[unit]
	current, pinned := u.In.Memory.Charged(dir)
	switch {
	case pinned > own:
		u.out.Notes = append(u.out.Notes, plan.Note{Group: k.Group, Key: policy.KeyMemoryMax, NotEnforced: true,
			Text: fmt.Sprintf(
				"%s keeps the memory limit that it has: its own MemoryMax=%s is below the %s in it that cannot be "+
					"reclaimed, and would have it killed; release again once it uses less or was restarted, or with "+
					"--force --reason",
				unit, policy.Bytes(own).Human(), policy.Bytes(pinned).Human())})
		return slices.DeleteFunc(slices.Clone(k.Ours), func(s string) bool { return s == settingMemoryMax })
	default:
		u.out.Notes = append(u.out.Notes, plan.Note{Group: k.Group, Key: policy.KeyMemoryMax, Text: fmt.Sprintf(
			"%s goes back to its own MemoryMax=%s in steps, as it uses %s", unit, policy.Bytes(own).Human(),
			policy.Bytes(current).Human())})
		for _, text := range append(u.descent(dir, c.From, desired.Number(c.To)), c.To) {
			step := u.writeStep(dir, c.Row, c.On, c.From, text)
			step.Group, step.Risk, step.Reason = k.Group, knob.RiskSlow,
				"the unit's own limit, in steps, so that the kernel can reclaim between them"
			u.addWrite(step)
			c.From = text
		}
	}
	return k.Ours
}

// noteLater names the files that take limits of ours away at each daemon-reload.
func (u *units) noteLater() {
	if u.In.Systemd == nil {
		return
	}
	told := map[string]bool{}
	for _, dir := range u.Desired.Layout.Dirs() {
		unit := u.Desired.Layout.Unit(dir)
		later := u.In.Systemd.Later[unit]
		if len(later) == 0 || !u.Desired.Layout.Theirs(dir) {
			continue
		}
		for _, v := range u.Desired.Values[dir] {
			_, set := u.properties(dir, v.Row, v.Key, v.Text)
			for _, a := range set {
				row, known := systemd.RowOf(a.Name)
				for _, l := range later {
					if text := unit + l.Setting + l.File; known && l.Setting == row.Setting && !told[text] {
						told[text] = true
						u.out.Notes = append(u.out.Notes,
							plan.Note{Group: u.Desired.Layout.Owner[dir], Key: v.Setting.Key,
								Fragile: true,
								Text: fmt.Sprintf(
									"at each daemon-reload %s gives %s its own %s=%s, until the agent sets the "+
										"group's "+
										"again: take that line out, or give the file a name that sorts before "+
										"50-%s.conf",
									l.File, unit, l.Setting, l.Value, l.Setting)})
					}
				}
			}
		}
	}
}

// units plans what systemd is told.
type units struct{ *writer }

// planner collects the steps of one plan.
type planner struct {
	*units
	foreign []cgroup.Dir
}

func newPlanner(in *plan.Input) *planner {
	if in.Memory == nil {
		in.Memory = noMemory{}
	}
	t := current.New(in)
	m := &members{
		Tree:    t,
		out:     &plan.Plan{},
		placed:  make(map[procfs.ID]placing, len(in.Classified.Placements)),
		skipped: make(map[procfs.ID]string, len(in.Classified.Skips)),
		at:      make(map[procfs.ID]map[string]string),
		goals:   make(map[string]string),
	}
	m.knowProcesses()
	m.knowResidents()
	return &planner{units: &units{&writer{members: m, dropped: map[cgroup.Dir][]string{},
		written: map[change.Target]string{}}}}
}
