package planner

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/hostwide"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/plan/network"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/terminal"
)

// release plans the emergency exit for the groups of in.Release and everything below them: it works
// from the facts and the observation alone, with a broken policy too. The order:
//
//  1. interfaces get back what they had;
//  2. limits of memory and CPU are lifted top-down, then all others;
//  3. members go home, and then protections and weights go;
//  4. oom_score_adj goes back to what it was;
//  5. directories are removed bottom-up, unless somebody else made them or something stays in them;
//  6. with "" in in.Release, disks get back what weights on them took the place of, controllers that bulkhead enabled
//     above its root are disabled, and the kernel is switched back to its own way of moving processes.
//
// Every step is Optional: one that fails must not keep the others from helping.
func release(in plan.Input) plan.Plan {
	in.Classified.Groups = nil // nothing of our tree is wanted
	r := releaser{planner: newPlanner(&in)}
	for _, h := range in.Facts.Hierarchies {
		for _, dir := range r.Ours[h.ID] {
			if top := outermost(dir); r.Observed.Foreign[top] {
				if dir == top {
					r.out.Note(layout.RootGroup, "", "%s is left alone: bulkhead did not make it", top)
				}
				continue
			}
			if r.In.Releases(r.GroupOf(dir)) || r.isIdleAnchor(dir) {
				r.scope = append(r.scope, dir)
			}
		}
	}
	r.inScope = make(map[cgroup.Dir]bool, len(r.scope))
	for _, dir := range r.scope {
		r.inScope[dir] = true
	}
	network.Release(r.In, r.Desired, r.out)
	later := r.lift()
	r.leaveUnits()
	r.sendHome()
	for _, dir := range slices.Backward(r.scope) {
		r.write(dir, later[dir])
	}
	r.giveScoresBack()
	r.tellForeign()
	r.removeDirs(slices.DeleteFunc(slices.Clone(r.scope),
		func(d cgroup.Dir) bool { return r.holdsForeign(d) || r.IsTheirs(d) || r.isMute(d) }),
		func(cgroup.Dir) string { return whyReleased })
	if r.In.Releases(layout.RootGroup) {
		hostwide.GiveDisksBack(r.In, r.Desired.Forest, r.out, whyReleased)
		hostwide.GiveTuningBack(r.In, r.out, nil, whyReleased)
	}
	r.giveControllersBack()
	hostwide.SwitchMovesBack(r.In, r.out)
	for i := range r.out.Steps {
		r.out.Steps[i].Optional = true
	}
	r.out.Refusals = nil
	return *r.out
}

const whyReleased = "the group is released"

// releaser plans the way back.
type releaser struct {
	*planner
	scope   []cgroup.Dir // parents first
	inScope map[cgroup.Dir]bool
}

// outermost is the directory at the top of the hierarchy in which a directory lies, which may be it.
func outermost(dir cgroup.Dir) cgroup.Dir {
	name, _, _ := strings.Cut(strings.TrimPrefix(dir.Path, "/"), "/")
	return cgroup.Dir{Hierarchy: dir.Hierarchy, Path: "/" + name}
}

// isMute says whether a directory is that of a unit which systemd cannot be asked to end: it stays, for a release that
// can.
func (r *releaser) isMute(dir cgroup.Dir) bool {
	return r.In.Systemd != nil && r.In.Systemd.Mute && r.Desired.Layout.Owned[dir.Hierarchy] &&
		unitname.TypeOf(path.Base(dir.Path)) != ""
}

// isIdleAnchor says whether a directory is that of a slice which holds controllers beside units, when none of them
// waits any more to start elsewhere.
func (r *releaser) isIdleAnchor(dir cgroup.Dir) bool {
	if r.In.Systemd == nil || !r.Desired.Layout.Owned[dir.Hierarchy] || !r.Desired.Layout.Names.IsAnchor(dir.Path) {
		return false
	}
	for unit, k := range r.In.Systemd.Kept {
		if r.Desired.Layout.Names.Anchor(k.Dir) == dir.Path && r.In.Systemd.Adopted[unit] != "" &&
			!r.In.Releases(k.Group) {
			return false
		}
	}
	return true
}

// holdsForeign says whether a directory is not ours, or holds one that is not.
func (r *releaser) holdsForeign(dir cgroup.Dir) bool {
	for other, foreign := range r.Observed.Foreign {
		if _, inside := layout.Below(dir.Path, other.Path); foreign && inside && other.Hierarchy == dir.Hierarchy {
			return true
		}
	}
	return false
}

// tellForeign names what others made in the released groups, and so keeps directories of ours.
func (r *releaser) tellForeign() {
	for _, dir := range r.scope {
		if !r.Observed.Foreign[dir] || r.Observed.Foreign[dir.Parent()] {
			continue
		}
		if unit := r.Desired.Layout.Unit(dir); unit != "" {
			r.out.Note(r.GroupOf(dir), "",
				"%s runs in the group's slice, which holds it no more; a release after the unit's next start takes "+
					"the slice away", unit)
			continue
		}
		who := ""
		if inside := r.inside(dir); len(inside) > 0 {
			who = fmt.Sprintf(", and process %d (%s) sits in it", inside[0].PID, terminal.Printable(inside[0].Comm))
			if more := len(inside) - 1; more > 0 {
				who = fmt.Sprintf(", and process %d (%s) and %d more sit in it", inside[0].PID,
					terminal.Printable(inside[0].Comm), more)
			}
		}
		r.out.Note(r.GroupOf(dir), "",
			"%s is kept, and with it the directories above it: bulkhead did not make it%s; remove it and release again",
			dir, who)
	}
}

// inside gives the processes in a directory or below it, by pid.
func (r *releaser) inside(dir cgroup.Dir) []*procfs.Process {
	var found []*procfs.Process
	for i := range r.table {
		if _, in := layout.Below(dir.Path, r.where(&r.table[i], dir.Hierarchy)); in && !r.table[i].Exited() {
			found = append(found, &r.table[i])
		}
	}
	return found
}

// lift takes away every limit that holds the members back, those that stall or kill first, and gives what
// else is to be written: protections, weights and budgets, which only go when nobody is inside any more.
func (r *releaser) lift() (later map[cgroup.Dir][]knob.Change) {
	urgent := func(row *knob.Row) bool { return row.Controller == "memory" || row.Controller == "cpu" }
	later = make(map[cgroup.Dir][]knob.Change, len(r.scope))
	for _, first := range []bool{true, false} {
		for _, dir := range r.scope {
			var changes []knob.Change
			for _, row := range r.Desired.Rows[dir.Hierarchy] {
				if urgent(row) == first {
					changes = append(changes, r.lifted(dir, row)...)
				}
			}
			raise, lower := knob.Split(changes)
			r.write(dir, raise)
			later[dir] = append(later[dir], lower...)
		}
	}
	return later
}

func (r *releaser) write(dir cgroup.Dir, changes []knob.Change) {
	for _, c := range changes {
		step := r.writeStep(dir, c.Row, c.On, c.From, c.To)
		step.Reason = "limits of the group are lifted"
		r.addWrite(step)
	}
}

// lifted gives the changes of one row of a directory to what a group without limits has.
func (r *releaser) lifted(dir cgroup.Dir, row *knob.Row) []knob.Change {
	if r.Observed.Foreign[dir] || r.Desired.Layout.Theirs(dir) {
		return nil
	}
	to, ok := r.unlimitedValue(dir, row)
	if !ok {
		return nil
	}
	var changes []knob.Change
	for _, on := range r.Present(dir, row) {
		if now := r.Now(dir, desired.ValueAt(row, on)); !row.Same(to, now) && !(desired.IsWide(row) && now == "") {
			changes = append(changes, knob.Change{Row: row, On: on, From: now, To: to})
		}
	}
	return changes
}

// unlimitedValue is what a file of a group without limits holds: the row's default, or what the nearest
// directory that is not released has.
func (r *releaser) unlimitedValue(dir cgroup.Dir, row *knob.Row) (string, bool) {
	if desired.IsWide(row) {
		return r.OuterSet(r.top(dir), row), true
	}
	if !row.Seed && !row.Inherits {
		return row.Default, true
	}
	dir = r.top(dir).Parent()
	if text, ok := r.Observed.Dirs[dir][row.File]; ok {
		return row.Parse(text), true
	}
	h, _ := r.In.Facts.Hierarchy(dir.Hierarchy)
	if row.Seed && dir.Path == "/" {
		return desired.RootSet(r.In.Facts, h, row, r.Observed), true
	}
	return "", false
}

// top is the uppermost directory above dir, or dir itself, that is released.
func (r *releaser) top(dir cgroup.Dir) cgroup.Dir {
	for r.inScope[dir.Parent()] {
		dir = dir.Parent()
	}
	return dir
}

// leaveUnits gives units back what they had: systemd forgets what was set of them, and starts them where it did before.
func (r *releaser) leaveUnits() {
	if r.In.Systemd == nil {
		return
	}
	if r.In.Systemd.Mute {
		r.liftUnits()
		return
	}
	r.revertUnits(func(_ string, k layout.Kept) bool { return r.In.Releases(k.Group) }, whyReleased)
	for _, unit := range slices.Sorted(maps.Keys(r.In.Systemd.Adopted)) {
		slice := r.In.Systemd.Adopted[unit]
		group, ours := r.Desired.Layout.Names.GroupOfUnit(slice)
		if ours && r.In.Releases(group) || !ours && r.In.Releases(layout.RootGroup) {
			r.dropIn(unit, group, slice, "", whyReleased)
		}
	}
	r.liftUnits()
}

// liftUnits takes away what was written by file into the directories of units that bulkhead did not make.
func (r *releaser) liftUnits() {
	for _, unit := range slices.Sorted(maps.Keys(r.In.Systemd.Kept)) {
		k := r.In.Systemd.Kept[unit]
		for _, h := range r.In.Facts.Hierarchies {
			dir := cgroup.Dir{Hierarchy: h.ID, Path: k.Dir}
			if _, seen := r.Observed.Dirs[dir]; !seen || !r.In.Releases(k.Group) || !r.Desired.Layout.Owned[h.ID] {
				continue
			}
			var changes []knob.Change
			for _, row := range r.Desired.Rows[h.ID] {
				// memory.oom.group of a service is systemd's own, by OOMPolicy=.
				if row.File == "memory.oom.group" && unitname.TypeOf(unit) != "slice" || row.Inherits {
					continue
				}
				byProperty := r.ByProperty(dir, row)
				for _, on := range r.Present(dir, row) {
					if byProperty && !(row.PerDevice && r.Desired.MovesDown(on)) {
						continue
					}
					if now := r.Now(dir, desired.ValueAt(row, on)); !row.Same(row.Default, now) {
						changes = append(changes, knob.Change{Row: row, On: on, From: now, To: row.Default})
					}
				}
			}
			r.write(dir, knob.Sequence(changes))
		}
	}
}

// sendHome moves the members of the released groups home from every directory of ours: what sits
// in one of their directories in any hierarchy, and what the classification placed in them. Nobody is
// pulled out of a directory that others made, though it may lie in ours.
func (r *releaser) sendHome() {
	for _, proc := range r.parentsFirst() {
		group, member := r.memberOf(proc)
		if !member || proc.Exited() {
			continue
		}
		for _, h := range r.In.Facts.Hierarchies {
			dir := cgroup.Dir{Hierarchy: h.ID, Path: r.where(proc, h.ID)}
			if owner, ours := r.Desired.Layout.Group(dir); ours && len(r.Ours[h.ID]) > 0 && !r.IsForeign(dir) &&
				!r.inUnit(proc, h.ID) {
				if !r.In.Releases(owner) {
					owner = group
				}
				r.move(proc, h.ID, r.home(proc, h.ID, owner), owner, whyReleased)
			}
		}
	}
}

// memberOf says whether a process belongs to a released group, and to which.
func (r *releaser) memberOf(proc *procfs.Process) (group string, member bool) {
	for _, h := range r.In.Facts.Hierarchies {
		dir := cgroup.Dir{Hierarchy: h.ID, Path: r.where(proc, h.ID)}
		if r.inScope[dir] {
			return r.GroupOf(dir), true
		}
	}
	placed, ok := r.placed[proc.ID]
	return placed.group, ok && r.In.Releases(placed.group)
}

// giveScoresBack writes the oom_score_adj that the members had.
func (r *releaser) giveScoresBack() {
	for i := range r.table {
		proc := &r.table[i]
		original, changed := r.originalScore(proc)
		group, member := r.formerGroup(proc)
		if !changed || proc.Exited() || !member {
			continue
		}
		now, known := r.Observed.OOMScoreAdj[proc.ID]
		if known && now == original {
			continue
		}
		from := ""
		if known {
			from = strconv.Itoa(now)
		}
		r.out.Steps = append(r.out.Steps, plan.Step{
			Change: change.Of(proc.ID.ScoreTarget(), from, strconv.Itoa(original)), Group: group, Name: proc.Comm,
			Reason: whyReleased})
	}
}

// formerGroup is the released group of a process before it was sent home. A release of everything covers
// those that have left on their own, too.
func (r *releaser) formerGroup(proc *procfs.Process) (string, bool) {
	for _, h := range r.In.Facts.Hierarchies {
		if dir := (cgroup.Dir{Hierarchy: h.ID, Path: proc.Cgroups[h.ID]}); r.inScope[dir] {
			return r.GroupOf(dir), true
		}
	}
	placed := r.placed[proc.ID]
	return placed.group, r.In.Releases(layout.RootGroup) || placed.group != "" && r.In.Releases(placed.group)
}

// giveControllersBack disables, above our root, what bulkhead enabled there.
func (r *releaser) giveControllersBack() {
	if !r.In.Releases(layout.RootGroup) {
		return
	}
	dirs := slices.SortedFunc(maps.Keys(r.Observed.Originals.Subtree), layout.CompareDirs)
	for _, dir := range slices.Backward(dirs) {
		var drop []string
		for _, c := range host.V1Names(r.Observed.Originals.Subtree[dir]) {
			if slices.Contains(r.Handed(dir), c) {
				drop = append(drop, c)
			}
		}
		if len(drop) > 0 {
			r.out.Steps = append(r.out.Steps, r.subtreeStep(dir, nil, drop,
				"bulkhead enabled "+strings.Join(drop, ", ")+" here"))
		}
	}
}
