// Package planner turns what is wanted and what is there into ordered steps. It is pure: values in, values out, no
// clock, no file, no root.
//
//	p := planner.Make(plan.Input{Facts: facts, Host: host, Classified: classified, Observed: observed})
package planner

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Make gives the ordered steps from what is to what is wanted. It is idempotent: planning over an
// observation that already is as wanted gives no steps. With in.Release set it is release.
//
// The order, each phase over all hierarchies, after the kernel was switched to fast moves, if it is to be, and disks
// have what weights on them need:
//
//  1. directories are made top-down; a v1 cpuset gets its CPUs and nodes right after;
//  2. on v2, processes leave a directory that is about to hand controllers to its children, for its
//     leaf "db", and then controllers are enabled from the root down;
//  3. real-time budgets and those of io shrink bottom-up (others share the same budget, so room comes first);
//  4. values that allow more are written top-down, and new directories get all of theirs, before
//     any process enters;
//  5. values that allow less are written bottom-up;
//  6. on v2, controllers that nobody needs any more are disabled bottom-up;
//  7. interfaces are shaped: what leads packets somewhere goes first and comes last;
//  8. processes move, parents before children, all hierarchies of one process together;
//  9. oom_score_adj of the members;
//  10. directories of groups that the policy no longer has are removed bottom-up.
//
// A group in in.Released, and every group below it, is left alone.
func Make(in plan.Input) plan.Plan {
	if in.Release != nil {
		return release(in)
	}
	if in.Facts.Systemd && (in.Systemd == nil || in.Systemd.Mute) {
		return plan.Plan{Refusals: []plan.Refusal{systemdRefusal()}}
	}
	p := newPlanner(&in)
	if err := p.d.Layout.TooLong; err != nil {
		return plan.Plan{Refusals: []plan.Refusal{{Reason: err.Error()}}}
	}
	result := plan.Plan{Want: p.d.Wanted(), Shares: desired.Shares(p.d, &in.Observed)}
	p.checkReserve()
	p.noteReserve(result.Shares)
	noteOthers(p, result.Shares)
	p.checkForeign()
	if len(p.foreign) == 0 {
		p.switchMoves()
		p.weighDisks()
		p.makeDirs()
		p.enable()
		first := len(p.steps)
		p.dropSettings()
		p.writeValues()
		p.keepUnits(first)
		p.giveDisksBack("no group asks for a weight on the disk any more")
		p.noteLater()
		p.checkNodes()
		p.noteAffinity()
		p.noteRestart()
		noteHarm(p)
		p.adopt()
		p.disable()
		p.networkSteps(&result)
		p.moveMembers()
		p.scoreMembers()
		p.removeDirs(p.obsolete, p.whyObsolete)
		p.revertUnits(func(unit string, k layout.Kept) bool { return p.isForsaken(unit, k) },
			"no group claims the unit any more")
	}
	result.Steps = p.steps
	result.Refusals = p.refusals
	result.Notes = append(append(p.d.ExplainAll(&in), p.d.Notes...), p.notes...)
	return result
}

func systemdRefusal() plan.Refusal {
	return plan.Refusal{
		Reason: "systemd owns the cgroup tree of this host, and could not be asked",
		Hint:   "`systemctl status` tells whether it answers; what is written beside it would be undone",
	}
}

// planner collects the steps of one plan.
type planner struct {
	in         *plan.Input
	o          *plan.Observation
	d          *desired.State
	table      []procfs.Process        // every process known, by pid
	byPID      map[int]*procfs.Process // of table
	placed     map[procfs.ID]placing   // by classification, else by where it is
	skipped    map[procfs.ID]string    // reason
	at         map[procfs.ID]map[string]string
	isNew      map[cgroup.Dir]bool
	ours       map[string][]cgroup.Dir // hierarchy ID → observed directories of ours, parents first
	obsolete   []cgroup.Dir            // parents first
	isObsolete map[cgroup.Dir]bool
	foreign    []cgroup.Dir
	held       map[string]int64
	dropped    map[cgroup.Dir][]string // controllers that steps so far take away from the children
	written    map[cgroup.File]string  // what the writes so far have put there

	steps    []plan.Step
	notes    []plan.Note
	refusals []plan.Refusal
}

// placing is where a process belongs, and why.
type placing struct {
	group, why string
	resident   bool // by where it is, not by classification
}

func newPlanner(in *plan.Input) *planner {
	if in.Memory == nil {
		in.Memory = noMemory{}
	}
	p := &planner{
		in:         in,
		o:          &in.Observed,
		d:          desired.New(in),
		placed:     make(map[procfs.ID]placing, len(in.Classified.Placements)),
		skipped:    make(map[procfs.ID]string, len(in.Classified.Skips)),
		at:         make(map[procfs.ID]map[string]string),
		isNew:      make(map[cgroup.Dir]bool),
		isObsolete: make(map[cgroup.Dir]bool),
		dropped:    make(map[cgroup.Dir][]string),
		written:    make(map[cgroup.File]string),
	}
	p.knowProcesses()
	p.knowDirs()
	p.knowResidents()
	return p
}

// knowProcesses puts the process table and the classification together.
func (p *planner) knowProcesses() {
	seen := make(map[procfs.ID]bool, len(p.o.Processes))
	add := func(proc procfs.Process) {
		if p.d.Layout.Names.IsKeeper(&proc) {
			return // systemd's, and gone with its unit
		}
		if !seen[proc.ID] {
			seen[proc.ID] = true
			p.table = append(p.table, proc)
		}
	}
	for _, proc := range p.o.Processes {
		add(proc)
	}
	for _, pl := range p.in.Classified.Placements {
		add(pl.Process)
		why := pl.Rule
		switch pl.By {
		case classify.ByPin:
			why = "put there by run or move"
		case classify.ByRule:
			why = "matches " + pl.Rule
		}
		p.placed[pl.Process.ID] = placing{group: pl.Group, why: why}
	}
	for _, s := range p.in.Classified.Skips {
		add(s.Process)
		if !s.Ambiguous { // one that two rules claim is like one that none claims
			p.skipped[s.Process.ID] = s.Reason
		}
	}
	slices.SortFunc(p.table, func(a, b procfs.Process) int { return a.PID - b.PID })
	p.byPID = make(map[int]*procfs.Process, len(p.table))
	for i := range p.table {
		p.byPID[p.table[i].PID] = &p.table[i]
	}
}

// knowDirs sorts the observed directories into those of the layout, new ones and obsolete ones.
func (p *planner) knowDirs() {
	p.ours = oursByHierarchy(p.d.Layout, p.o)
	for _, dir := range p.d.Layout.Dirs() {
		if _, ok := p.o.Dirs[dir]; !ok && p.d.Layout.Governed[dir].Unit == "" {
			p.isNew[dir] = true
		}
	}
	for _, h := range p.in.Facts.Hierarchies {
		for _, dir := range p.ours[h.ID] {
			if !p.d.Layout.Holds(dir) && !p.holdsKept(dir) && !p.isTheirs(dir) && !p.awaited(dir) &&
				!p.d.Layout.HoldsRun(dir) {
				p.obsolete = append(p.obsolete, dir)
				p.isObsolete[dir] = true
			}
		}
	}
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

// holdsKept says whether the directory, or one below it, must stay: it is not ours, or it belongs to
// a released group.
func (p *planner) holdsKept(dir cgroup.Dir) bool {
	for _, other := range p.ours[dir.Hierarchy] {
		if _, inside := layout.Below(dir.Path, other.Path); inside && (p.o.Foreign[other] || p.isReleasedDir(other)) {
			return true
		}
	}
	return false
}

func (p *planner) isReleasedDir(dir cgroup.Dir) bool {
	group, ok := p.d.Layout.Group(dir)
	return ok && group != layout.RootGroup && p.in.IsReleased(group)
}

// checkForeign refuses a root group, or an outermost group, whose directory somebody else made.
func (p *planner) checkForeign() {
	for _, dir := range p.d.Layout.Dirs() {
		if !p.o.Foreign[dir] || dir.Parent().Path != "/" {
			continue
		}
		group, hint := p.d.Layout.Owner[dir],
			"choose another name for the group, or remove that directory if nobody needs it"
		if group == layout.RootGroup {
			hint = "choose another name with host.root, or remove that directory if nobody needs it"
		}
		p.foreign = append(p.foreign, dir)
		p.refuse(group, hint, "there is a group %q in the %s hierarchy that bulkhead did not make", dir.Path,
			dir.Hierarchy)
	}
}

func (p *planner) refuse(group, hint, format string, args ...any) {
	p.refusals = append(p.refusals, plan.Refusal{Group: group, Reason: fmt.Sprintf(format, args...), Hint: hint})
}

func (p *planner) note(group string, key policy.Key, format string, args ...any) {
	p.notes = append(p.notes, plan.Note{Group: group, Key: key, Text: fmt.Sprintf(format, args...)})
}

// makeDirs makes what the layout has and the host has not.
func (p *planner) makeDirs() {
	for _, dir := range p.d.Layout.Dirs() {
		if !p.isNew[dir] {
			p.wakeKeeper(dir)
			continue
		}
		group := p.d.Layout.Owner[dir]
		reason := "the group's limits"
		switch {
		case p.d.Layout.Anchors[dir]:
			reason = "holds the controllers of a unit beside it that is to start elsewhere"
		case group == layout.RootGroup:
			reason = "holds every group"
		case path.Base(dir.Path) == layout.Members && p.d.Layout.Owned[dir.Hierarchy]:
			reason = "the group's processes that are in no unit"
		case strings.HasSuffix(p.d.Layout.Unit(dir), ".service"):
			reason = "keeps a directory that systemd leaves to bulkhead"
		case path.Base(dir.Path) == layout.Leaf && dir != p.d.Layout.Own(group)[dir.Hierarchy]:
			reason = "the group's own processes, beside its child groups"
		}
		p.steps = append(p.steps, plan.Step{Op: plan.OpMakeDir, Group: group, Dir: dir, Unit: p.d.Layout.Unit(dir),
			Undo: string(plan.OpRemoveDir), Reason: reason})
		p.seedNew(dir)
	}
}

// seedNew gives a new v1 cpuset directory its CPUs and nodes. What it is to have in the end fits unless
// the directory above has yet to grow; then it starts with what that one has now.
func (p *planner) seedNew(dir cgroup.Dir) {
	for _, v := range p.d.Values[dir] {
		if !v.Row.Seed {
			continue
		}
		v.Text = p.seedText(dir, v)
		p.addWrite(p.writeStep(dir, v.Row, v.On, "", v.Text))
	}
}

// seedText is what a new cpuset directory starts with.
func (p *planner) seedText(dir cgroup.Dir, v desired.Value) string {
	if have := p.nowAbove(dir, v.Row); !desired.IDSet(v.Text).Subset(desired.IDSet(have)) {
		return have
	}
	return v.Text
}

// nowAbove is what the directory above has at the time dir is made.
func (p *planner) nowAbove(dir cgroup.Dir, row *knob.Row) string {
	above := dir.Parent()
	if above.Path == "/" {
		h, _ := p.in.Facts.Hierarchy(dir.Hierarchy)
		return desired.RootSet(p.in.Facts, h, row, p.o)
	}
	if !p.isNew[above] {
		return p.o.Dirs[above][row.File]
	}
	for _, v := range p.d.Values[above] {
		if v.Row == row {
			return p.seedText(above, v)
		}
	}
	return p.nowAbove(above, row)
}

// noMemory is in use where nobody can be asked.
type noMemory struct{}

func (noMemory) Charged(cgroup.Dir) (current, pinned int64) { return 0, 0 }
func (noMemory) Held(procfs.ID) (all, shared int64)         { return 0, 0 }
func (noMemory) OnNodes(string) map[int]int64               { return nil }
func (noMemory) Migrates(cgroup.Dir) bool                   { return false }
