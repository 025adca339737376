// Package planner turns what is wanted and what is there into ordered steps. It is pure: values in, values out, no
// clock, no file, no root.
//
//	p := planner.Make(plan.Input{Facts: facts, Host: host, Classified: classified, Observed: observed})
package planner

import (
	"path"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/hostwide"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/plan/network"
	"bulkhead/internal/plan/notes"
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
	p := steps(in)
	p.Describe()
	return p
}

func steps(in plan.Input) plan.Plan {
	if in.Release != nil {
		return release(in)
	}
	if in.Facts.Systemd && (in.Systemd == nil || in.Systemd.Mute) {
		return plan.Plan{Refusals: []plan.Refusal{systemdRefusal()}}
	}
	p := newPlanner(&in)
	if err := p.Desired.Layout.TooLong; err != nil {
		return plan.Plan{Refusals: []plan.Refusal{{Reason: err.Error()}}}
	}
	p.out.Want, p.out.Shares = p.Desired.Wanted(), desired.Shares(p.Desired, &in.Observed)
	about := notes.For(&in, p.Desired, p.out)
	about.Reserve()
	about.Others()
	p.checkForeign()
	if len(p.foreign) == 0 {
		hostwide.SwitchMoves(&in, p.out)
		hostwide.Tune(&in, p.Desired.Forest, p.out)
		hostwide.WeighDisks(&in, p.Desired.Forest, p.out)
		p.makeDirs()
		p.enable()
		first := len(p.out.Steps)
		p.dropSettings()
		p.writeValues()
		p.keepUnits(first)
		hostwide.GiveDisksBack(&in, p.Desired.Forest, p.out, "no group asks for a weight on the disk any more")
		p.noteLater()
		p.checkNodes()
		about.Affinity()
		about.Restart()
		about.Harm(p.inside)
		p.adopt()
		p.disable()
		network.Make(&in, p.Desired, p.out)
		p.moveMembers()
		p.scoreMembers()
		p.removeDirs(p.Obsolete, p.WhyObsolete)
		p.revertUnits(func(unit string, k layout.Kept) bool { return p.isForsaken(unit, k) },
			"no group claims the unit any more")
	}
	p.out.Notes = append(append(p.Desired.ExplainAll(&in), p.Desired.Notes...), p.out.Notes...)
	return *p.out
}

func systemdRefusal() plan.Refusal {
	return plan.Refusal{
		Reason: "systemd owns the cgroup tree of this host, and could not be asked",
		Hint:   "`systemctl status` tells whether it answers; what is written beside it would be undone",
	}
}

// checkForeign refuses a root group, or an outermost group, whose directory somebody else made.
func (p *planner) checkForeign() {
	for _, dir := range p.Desired.Layout.Dirs() {
		if !p.Observed.Foreign[dir] || dir.Parent().Path != "/" {
			continue
		}
		group, hint := p.Desired.Layout.Owner[dir],
			"choose another name for the group, or remove that directory if nobody needs it"
		if group == layout.RootGroup {
			hint = "choose another name with host.root, or remove that directory if nobody needs it"
		}
		p.foreign = append(p.foreign, dir)
		p.out.Refuse(group, hint, "there is a group %q in the %s hierarchy that bulkhead did not make", dir.Path,
			dir.Hierarchy)
	}
}

// makeDirs makes what the layout has and the host has not.
func (u *units) makeDirs() {
	for _, dir := range u.Desired.Layout.Dirs() {
		if !u.IsNew[dir] {
			u.wakeKeeper(dir)
			continue
		}
		group := u.Desired.Layout.Owner[dir]
		reason := "the group's limits"
		switch {
		case u.Desired.Layout.Anchors[dir]:
			reason = "holds the controllers of a unit beside it that is to start elsewhere"
		case group == layout.RootGroup:
			reason = "holds every group"
		case path.Base(dir.Path) == layout.Members && u.Desired.Layout.Owned[dir.Hierarchy]:
			reason = "the group's processes that are in no unit"
		case strings.HasSuffix(u.Desired.Layout.Unit(dir), ".service"):
			reason = "keeps a directory that systemd leaves to bulkhead"
		case path.Base(dir.Path) == layout.Leaf && dir != u.Desired.Layout.Own(group)[dir.Hierarchy]:
			reason = "the group's own processes, beside its child groups"
		}
		u.out.Steps = append(u.out.Steps, u.making(dir, reason))
		u.seedNew(dir)
	}
}

// making is the step that makes a directory.
func (u *units) making(dir cgroup.Dir, reason string) plan.Step {
	return plan.Step{Change: change.Of(dir.Target(), "", cgroup.There), Group: u.Desired.Layout.Owner[dir],
		Unit: u.Desired.Layout.Unit(dir), Reason: reason}
}

// seedNew gives a new v1 cpuset directory its CPUs and nodes. What it is to have in the end fits unless
// the directory above has yet to grow; then it starts with what that one has now.
func (w *writer) seedNew(dir cgroup.Dir) {
	for _, v := range w.Desired.Values[dir] {
		if !v.Row.Seed {
			continue
		}
		v.Text = w.SeedText(dir, v)
		w.addWrite(w.writeStep(dir, v.Row, v.On, "", v.Text))
	}
}

func (noMemory) Charged(cgroup.Dir) (current, pinned int64) { return 0, 0 }
func (noMemory) Held(procfs.ID) (all, shared int64)         { return 0, 0 }
func (noMemory) OnNodes(string) map[int]int64               { return nil }
func (noMemory) Migrates(cgroup.Dir) bool                   { return false }
