package planner

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// where is the path of a process in a hierarchy, moves planned so far included.
func (p *planner) where(proc *procfs.Process, hierarchy string) string {
	if to, ok := p.at[proc.ID][hierarchy]; ok {
		return to
	}
	return proc.Cgroups[hierarchy]
}

// move plans one move in one hierarchy.
func (p *planner) move(proc *procfs.Process, hierarchy, to, group, why string) {
	from := p.where(proc, hierarchy)
	if from == to {
		return
	}
	step := plan.Step{
		Op: plan.OpMove, Group: group, Dir: cgroup.Dir{Hierarchy: hierarchy, Path: to},
		PID: proc.ID, Comm: proc.Comm, Old: from, Undo: from, Reason: why,
	}
	if p.chargesMemory(hierarchy) {
		step.Final = "memory it has charged already stays charged to " + from
	}
	p.steps = append(p.steps, step)
	if p.at[proc.ID] == nil {
		p.at[proc.ID] = make(map[string]string)
	}
	p.at[proc.ID][hierarchy] = to
}

// moveMembers places processes in their groups and sends those home that are in our tree and belong
// nowhere in it.
func (p *planner) moveMembers() {
	for _, proc := range p.parentsFirst() {
		if layout.Gone(proc) || proc.Kernel {
			continue
		}
		targets, group, why := p.targets(proc)
		if !p.mayMove(proc, targets, group) {
			continue
		}
		for _, h := range p.in.Facts.Hierarchies {
			if to, ok := targets[h.ID]; ok {
				p.move(proc, h.ID, to, group, why)
			}
		}
	}
}

// parentsFirst gives the processes so that a parent comes before its children: what a parent forks
// between the two moves is then born in the right place.
func (p *planner) parentsFirst() []*procfs.Process {
	ordered := make([]*procfs.Process, 0, len(p.table))
	done := make(map[int]bool, len(p.table))
	var visit func(proc *procfs.Process)
	visit = func(proc *procfs.Process) {
		if done[proc.PID] {
			return
		}
		done[proc.PID] = true // before the parent: a pid reused between two reads could make a loop
		if parent := p.byPID[proc.PPID]; parent != nil {
			visit(parent)
		}
		ordered = append(ordered, proc)
	}
	for i := range p.table {
		visit(&p.table[i])
	}
	return ordered
}

// targets says where a process is to go, by hierarchy; hierarchies that are not named are left alone.
func (p *planner) targets(proc *procfs.Process) (targets map[string]string, group, why string) {
	placed, isPlaced := p.placed[proc.ID]
	inReleased := isPlaced && p.in.IsReleased(placed.group)
	if isPlaced && !p.in.NoMoves && !inReleased {
		if member := p.d.Layout.Member(placed.group); len(member) > 0 {
			targets := p.into(proc, p.d.Layout.Place(proc, placed.group), placed.group)
			if placed.resident {
				p.dropElsewhere(proc, placed.group, targets)
			}
			return targets, placed.group, placed.why
		}
	}
	_, isSkipped := p.skipped[proc.ID]
	return p.homeward(proc, inReleased || isSkipped)
}

// into gives the directories of a group, and home where the group has none but the process is in our tree.
// Hierarchies of which nothing was observed are not looked at: v1's freezer belongs to freeze and thaw.
func (p *planner) into(proc *procfs.Process, member map[string]cgroup.Dir, group string) map[string]string {
	stays := len(p.d.Layout.Owned) > 0 && (p.d.Layout.StaysInUnit(proc, group) || p.d.Layout.InRun(proc, group))
	targets := make(map[string]string, len(member))
	for _, h := range p.in.Facts.Hierarchies {
		path, known := proc.Cgroups[h.ID]
		to, isMember := member[h.ID]
		switch {
		case isMember:
			targets[h.ID] = to.Path
		case stays && p.d.Layout.Owned[h.ID]: // in its unit
		case known && len(p.ours[h.ID]) > 0:
			if group, ok := p.d.Layout.Group(cgroup.Dir{Hierarchy: h.ID, Path: path}); ok {
				targets[h.ID] = p.home(proc, h.ID, group)
			}
		}
	}
	return targets
}

// homeward sends a process home from the directories of ours in which it should not be: from those that go away, and,
// unless it stays, from those that hold nobody by themselves and from all when it is expelled. What sits in a directory
// that others made is theirs.
func (p *planner) homeward(proc *procfs.Process, stays bool) (targets map[string]string, group, why string) {
	for _, h := range p.in.Facts.Hierarchies {
		dir := cgroup.Dir{Hierarchy: h.ID, Path: p.where(proc, h.ID)}
		owner, ours := p.d.Layout.Group(dir)
		if !ours || len(p.ours[h.ID]) == 0 || p.isReleasedDir(dir) || p.isForeign(dir) || p.inUnit(proc, h.ID) {
			continue
		}
		goes := p.isObsolete[dir]
		if p.in.NoMoves || stays && !goes {
			continue
		}
		if targets == nil {
			targets = make(map[string]string)
		}
		targets[h.ID] = p.home(proc, h.ID, owner)
		group, why = owner, "no group claims it, and it was sent back"
		switch {
		case owner == layout.RootGroup:
			why = "no group claims it, and the root group holds no process of its own"
		case goes:
			why = p.whyObsolete(dir)
		case p.d.Forest.ByPath[owner] == nil:
			why = whyNoGroup
		}
	}
	return targets, group, why
}

// inUnit says whether a process sits, in a hierarchy of systemd's, in a unit that is not ours.
func (p *planner) inUnit(proc *procfs.Process, hierarchy string) bool {
	if !p.d.Layout.Owned[hierarchy] {
		return false
	}
	_, _, is := p.d.Layout.Names.UnitDir(proc)
	return is
}

// mayMove says whether the kernel lets a process go where it should. A real-time task cannot enter a v1
// cpu group (EINVAL; measured on 6.18), and then it goes into no hierarchy at all.
func (p *planner) mayMove(proc *procfs.Process, targets map[string]string, group string) bool {
	if !proc.RT {
		return true
	}
	h, ok := p.in.Facts.HierarchyOf("cpu")
	to, moves := targets[h.ID]
	if _, ours := p.d.Layout.Group(cgroup.Dir{Hierarchy: h.ID, Path: to}); !ok || h.Version != 1 || !moves || !ours ||
		to == p.where(proc, h.ID) {
		return true
	}
	p.notes = append(p.notes, plan.Note{Group: group, PID: proc.PID, Text: fmt.Sprintf(
		"process %d (%s) is not moved: it is real-time, and the kernel lets no such task into a v1 cpu group",
		proc.PID, proc.Comm)})
	return false
}

// home is where a process of ours goes when it leaves: to its own home, else that of its nearest
// ancestor that has one, else that of the group, else the root. A home that is gone is replaced by the nearest
// directory above it that is there.
func (p *planner) home(proc *procfs.Process, hierarchy, group string) string {
	own := func(proc *procfs.Process) (string, bool) {
		path, ok := p.o.Homes.Process[proc.ID][hierarchy]
		if !ok {
			return "", false
		}
		return p.living(hierarchy, path)
	}
	if home, ok := own(proc); ok {
		return home
	}
	for parent := range p.ancestors(proc) {
		if home, ok := own(parent); ok {
			return home
		}
	}
	for g := group; g != layout.RootGroup; g = layout.ParentGroup(g) {
		if path, ok := p.o.Homes.Group[g][hierarchy]; ok {
			if home, ok := p.living(hierarchy, path); ok {
				return home
			}
		}
	}
	return "/"
}

// living gives the nearest directory, path itself or above it, that is there. A path in our own tree is
// no home.
func (p *planner) living(hierarchy, path string) (string, bool) {
	dir := cgroup.Dir{Hierarchy: hierarchy, Path: path}
	if _, ours := p.d.Layout.Group(dir); ours || !strings.HasPrefix(path, "/") {
		return "", false
	}
	for dir.Path != "/" && p.o.Existing != nil && !p.o.Existing[dir] {
		dir = dir.Parent()
	}
	return dir.Path, true
}

// scoreMembers sets oom_score_adj of the members of groups that ask for one, and gives it back to
// processes whose group asks for none any more.
func (p *planner) scoreMembers() {
	for i := range p.table {
		proc := &p.table[i]
		placed, ok := p.placed[proc.ID]
		if layout.Gone(proc) || ok && p.in.IsReleased(placed.group) {
			continue
		}
		setting, asked := p.scoreSetting(placed.group)
		now, known := p.o.OOMScoreAdj[proc.ID]
		if ok && asked {
			if want, isCount := setting.Value.(policy.Count); isCount && known && int(want) != now {
				p.score(proc, placed.group, now, int(want), reason(setting))
			}
			continue
		}
		if original, changed := p.originalScore(proc); changed && known && original != now {
			p.score(proc, placed.group, now, original, "oom_score_adj is no longer asked for")
		}
	}
}

// originalScore is the oom_score_adj that a process had before bulkhead: its own, or the one of its nearest
// ancestor that bulkhead has scored, as long as it still has the score which that one gave it by fork(2).
func (p *planner) originalScore(proc *procfs.Process) (score int, changed bool) {
	if score, changed = p.o.Originals.OOMScoreAdj[proc.ID]; changed {
		return score, true
	}
	now, known := p.o.OOMScoreAdj[proc.ID]
	if !known {
		return 0, false
	}
	for parent := range p.ancestors(proc) {
		if score, changed := p.o.Originals.OOMScoreAdj[parent.ID]; changed {
			theirs, known := p.o.OOMScoreAdj[parent.ID]
			return score, known && theirs == now
		}
	}
	return 0, false
}

func (p *planner) scoreSetting(group string) (policy.Setting, bool) {
	n := p.d.Forest.ByPath[group]
	if n == nil || group == layout.RootGroup {
		return policy.Setting{}, false
	}
	return n.Settings.Get(policy.KeyOOMScoreAdj, "")
}

// score plans one oom_score_adj. Without CAP_SYS_RESOURCE the kernel refuses a value below the lowest
// that a privileged process ever set, 0 for nearly all (proc(5)); that is said, and not tried.
func (p *planner) score(proc *procfs.Process, group string, from, to int, why string) {
	if to < from && to < 0 && !p.in.Facts.SysResource {
		p.notes = append(p.notes, plan.Note{Group: group, Key: policy.KeyOOMScoreAdj, NotEnforced: true,
			Text: fmt.Sprintf("oom_score_adj %d of process %d (%s) stays %d: lowering it below 0 takes "+
				"CAP_SYS_RESOURCE", to, proc.PID, proc.Comm, from)})
		return
	}
	p.steps = append(p.steps, plan.Step{
		Op: plan.OpOOMScore, Group: group, PID: proc.ID, Comm: proc.Comm,
		Old: fmt.Sprint(from), New: fmt.Sprint(to), Undo: fmt.Sprint(from), Reason: why, Setting: policy.KeyOOMScoreAdj,
	})
}

// removeDirs removes directories, children before parents. One in which a process stays is kept, and
// with it those above.
func (p *planner) removeDirs(dirs []cgroup.Dir, why func(cgroup.Dir) string) {
	kept := make(map[cgroup.Dir]bool)
	for i := range p.table {
		proc := &p.table[i]
		if layout.Gone(proc) {
			continue
		}
		for _, h := range p.in.Facts.Hierarchies {
			if path := p.where(proc, h.ID); path != "" {
				kept[cgroup.Dir{Hierarchy: h.ID, Path: path}] = true
			}
		}
	}
	for _, dir := range slices.Backward(dirs) {
		if kept[dir] {
			p.note(p.groupOf(dir), "", "%s is kept: a process or a group sits in it", dir)
			kept[dir.Parent()] = true
			continue
		}
		p.steps = append(p.steps, plan.Step{
			Op: plan.OpRemoveDir, Group: p.groupOf(dir), Dir: dir, Unit: p.d.Layout.Unit(dir),
			Undo:    string(plan.OpMakeDir),
			Reason:  why(dir),
			Restore: p.restoresAll(dir),
		})
	}
}

const whyNoGroup = "the policy makes no such group of what runs here now"

// whyObsolete says why a directory goes.
func (p *planner) whyObsolete(dir cgroup.Dir) string {
	if _, ok := p.d.Forest.ByPath[p.groupOf(dir)]; ok {
		return "the group needs no directory here any more"
	}
	return whyNoGroup
}
