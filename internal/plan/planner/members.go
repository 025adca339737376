package planner

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/classify"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/current"
	"bulkhead/internal/plan/layout"
)

// heldBy is the memory that the processes of a group and of those below it hold.
func (m *members) heldBy(group string) int64 {
	if m.held == nil {
		m.held = m.sumHeld()
	}
	return m.held[group]
}

// sumHeld adds up per group: private memory of every process, and of the shared memory the largest view
// of each group, because processes of one instance map the same segments.
func (m *members) sumHeld() map[string]int64 {
	private, shared := make(map[string]int64), make(map[string]int64)
	for id, pl := range m.placed {
		all, part := m.In.Memory.Held(id)
		part = min(part, all)
		private[pl.group] += all - part
		shared[pl.group] = max(shared[pl.group], part)
	}
	sums := make(map[string]int64, len(m.Desired.Forest.Nodes))
	for i := len(m.Desired.Forest.Nodes) - 1; i >= 0; i-- {
		n := m.Desired.Forest.Nodes[i]
		sums[n.Path] += private[n.Path] + shared[n.Path]
		if n.Parent != nil {
			sums[n.Parent.Path] += sums[n.Path]
		}
	}
	return sums
}

// where is the path of a process in a hierarchy, moves planned so far included.
func (m *members) where(proc *procfs.Process, hierarchy string) string {
	if to, ok := m.at[proc.ID][hierarchy]; ok {
		return to
	}
	return proc.Cgroups[hierarchy]
}

// move plans one move in one hierarchy.
func (m *members) move(proc *procfs.Process, hierarchy, to, group, why string) {
	from := m.where(proc, hierarchy)
	if from == to {
		return
	}
	step := plan.Step{
		Change: change.Of(cgroup.Membership(proc.ID, hierarchy), from, to), Group: group, Name: proc.Comm, Reason: why,
	}
	if m.ChargesMemory(hierarchy) {
		step.Final = "memory it has charged already stays charged to " + from
	}
	m.out.Steps = append(m.out.Steps, step)
	if m.at[proc.ID] == nil {
		m.at[proc.ID] = make(map[string]string)
	}
	m.at[proc.ID][hierarchy] = to
}

// moveMembers places processes in their groups and sends those home that are in our tree and belong
// nowhere in it.
func (m *members) moveMembers() {
	for _, proc := range m.parentsFirst() {
		if proc.Exited() || proc.Kernel {
			continue
		}
		targets, group, why := m.targets(proc)
		if !m.mayMove(proc, targets, group) {
			continue
		}
		for _, h := range m.In.Facts.Hierarchies {
			if to, ok := targets[h.ID]; ok {
				m.move(proc, h.ID, to, group, why)
			}
		}
	}
}

// parentsFirst gives the processes so that a parent comes before its children.
func (m *members) parentsFirst() []*procfs.Process {
	return procfs.ParentsFirst(m.table, func(p *procfs.Process) *procfs.Process { return p })
}

// targets says where a process is to go, by hierarchy; hierarchies that are not named are left alone. It holds until
// the next call.
func (m *members) targets(proc *procfs.Process) (targets map[string]string, group, why string) {
	placed, isPlaced := m.placed[proc.ID]
	inReleased := isPlaced && m.In.IsReleased(placed.group)
	if isPlaced && !m.In.NoMoves && !inReleased {
		if member := m.Desired.Layout.Member(placed.group); len(member) > 0 {
			targets := m.into(proc, m.Desired.Layout.Place(proc, placed.group), placed.group)
			if placed.resident {
				m.dropElsewhere(proc, placed.group, targets)
			}
			return targets, placed.group, placed.why
		}
	}
	_, isSkipped := m.skipped[proc.ID]
	return m.homeward(proc, inReleased || isSkipped)
}

// into gives the directories of a group, and home where the group has none but the process is in our tree.
// Hierarchies of which nothing was observed are not looked at: v1's freezer belongs to freeze and thaw.
func (m *members) into(proc *procfs.Process, member map[string]cgroup.Dir, group string) map[string]string {
	stays := len(m.Desired.Layout.Owned) > 0 &&
		(m.Desired.Layout.StaysInUnit(proc, group) || m.Desired.Layout.InRun(proc, group))
	clear(m.goals)
	targets := m.goals
	for _, h := range m.In.Facts.Hierarchies {
		path, known := proc.Cgroups[h.ID]
		to, isMember := member[h.ID]
		switch {
		case isMember:
			targets[h.ID] = to.Path
		case stays && m.Desired.Layout.Owned[h.ID]: // in its unit
		case known && len(m.Ours[h.ID]) > 0:
			if group, ok := m.Desired.Layout.Group(cgroup.Dir{Hierarchy: h.ID, Path: path}); ok {
				targets[h.ID] = m.home(proc, h.ID, group)
			}
		}
	}
	return targets
}

// homeward sends a process home from the directories of ours in which it should not be: from those that go away, and,
// unless it stays, from those that hold nobody by themselves and from all when it is expelled. What sits in a directory
// that others made is theirs.
func (m *members) homeward(proc *procfs.Process, stays bool) (targets map[string]string, group, why string) {
	for _, h := range m.In.Facts.Hierarchies {
		dir := cgroup.Dir{Hierarchy: h.ID, Path: m.where(proc, h.ID)}
		owner, ours := m.Desired.Layout.Group(dir)
		if !ours || len(m.Ours[h.ID]) == 0 || m.IsReleasedDir(dir) || m.IsForeign(dir) || m.inUnit(proc, h.ID) {
			continue
		}
		goes := m.IsObsolete[dir]
		if m.In.NoMoves || stays && !goes {
			continue
		}
		if targets == nil {
			targets = make(map[string]string)
		}
		targets[h.ID] = m.home(proc, h.ID, owner)
		group, why = owner, "no group claims it, and it was sent back"
		switch {
		case owner == layout.RootGroup:
			why = "no group claims it, and the root group holds no process of its own"
		case goes:
			why = m.WhyObsolete(dir)
		case m.Desired.Forest.ByPath[owner] == nil:
			why = current.WhyNoGroup
		}
	}
	return targets, group, why
}

// inUnit says whether a process sits, in a hierarchy of systemd's, in a unit that is not ours.
func (m *members) inUnit(proc *procfs.Process, hierarchy string) bool {
	if !m.Desired.Layout.Owned[hierarchy] {
		return false
	}
	_, _, is := m.Desired.Layout.Names.UnitDir(proc)
	return is
}

// mayMove says whether the kernel lets a process go where it should. A real-time task cannot enter a v1
// cpu group (EINVAL; measured on 6.18), and then it goes into no hierarchy at all.
func (m *members) mayMove(proc *procfs.Process, targets map[string]string, group string) bool {
	if !proc.RT {
		return true
	}
	h, ok := m.In.Facts.HierarchyOf("cpu")
	to, moves := targets[h.ID]
	if _, ours := m.Desired.Layout.Group(cgroup.Dir{Hierarchy: h.ID, Path: to}); !ok || h.Version != 1 || !moves ||
		!ours ||
		to == m.where(proc, h.ID) {
		return true
	}
	m.out.Notes = append(m.out.Notes, plan.Note{Group: group, PID: proc.PID, Text: fmt.Sprintf(
		"process %d (%s) is not moved: it is real-time, and the kernel lets no such task into a v1 cpu group",
		proc.PID, proc.Comm)})
	return false
}

// home is where a process of ours goes when it leaves: to its own home, else that of its nearest
// ancestor that has one, else that of the group, else the root. A home that is gone is replaced by the nearest
// directory above it that is there.
func (m *members) home(proc *procfs.Process, hierarchy, group string) string {
	own := func(proc *procfs.Process) (string, bool) {
		path, ok := m.Observed.Homes.Process[proc.ID][hierarchy]
		if !ok {
			return "", false
		}
		return m.living(hierarchy, path)
	}
	if home, ok := own(proc); ok {
		return home
	}
	for parent := range m.ancestors(proc) {
		if home, ok := own(parent); ok {
			return home
		}
	}
	for g := group; g != layout.RootGroup; g = layout.ParentGroup(g) {
		if path, ok := m.Observed.Homes.Group[g][hierarchy]; ok {
			if home, ok := m.living(hierarchy, path); ok {
				return home
			}
		}
	}
	return "/"
}

// living gives the nearest directory, path itself or above it, that is there. A path in our own tree is
// no home.
func (m *members) living(hierarchy, path string) (string, bool) {
	dir := cgroup.Dir{Hierarchy: hierarchy, Path: path}
	if _, ours := m.Desired.Layout.Group(dir); ours || !strings.HasPrefix(path, "/") {
		return "", false
	}
	for dir.Path != "/" && m.Observed.Existing != nil && !m.Observed.Existing[dir] {
		dir = dir.Parent()
	}
	return dir.Path, true
}

// membersBelow counts the processes of a group and of those inside it.
func (m *members) membersBelow(group string) (n int) {
	for _, pl := range m.placed {
		if _, inside := layout.Below(group, pl.group); inside || group == layout.RootGroup {
			n++
		}
	}
	return n
}

// members is the processes, where they are and where they belong. It plans their moves.
type members struct {
	*current.Tree
	out     *plan.Plan
	table   []procfs.Process        // every process known, by pid
	byPID   map[int]*procfs.Process // of table
	placed  map[procfs.ID]placing   // by classification, else by where it is
	skipped map[procfs.ID]string    // reason
	at      map[procfs.ID]map[string]string
	goals   map[string]string // of the process that is looked at, by hierarchy
	held    map[string]int64  // memory of the processes, by group
}

// placing is where a process belongs, and why.
type placing struct {
	group, why string
	resident   bool // by where it is, not by classification
}

// knowProcesses puts the process table and the classification together.
func (m *members) knowProcesses() {
	m.table = make([]procfs.Process, 0, len(m.Observed.Processes))
	seen := make(map[procfs.ID]bool, len(m.Observed.Processes))
	add := func(proc procfs.Process) {
		if m.Desired.Layout.Names.IsKeeper(&proc) {
			return // systemd's, and gone with its unit
		}
		if !seen[proc.ID] {
			seen[proc.ID] = true
			m.table = append(m.table, proc)
		}
	}
	for _, proc := range m.Observed.Processes {
		add(proc)
	}
	for _, pl := range m.In.Classified.Placements {
		add(pl.Process)
		why := pl.Rule
		switch pl.By {
		case classify.ByPin:
			why = "put there by run or move"
		case classify.ByRule:
			why = "matches " + pl.Rule
		}
		m.placed[pl.Process.ID] = placing{group: pl.Group, why: why}
	}
	for _, s := range m.In.Classified.Skips {
		add(s.Process)
		if !s.Ambiguous { // one that two rules claim is like one that none claims
			m.skipped[s.Process.ID] = s.Reason
		}
	}
	slices.SortFunc(m.table, func(a, b procfs.Process) int { return a.PID - b.PID })
	m.byPID = make(map[int]*procfs.Process, len(m.table))
	for i := range m.table {
		m.byPID[m.table[i].PID] = &m.table[i]
	}
}

// knowResidents places the processes that nothing claims in the group that they are in. Who gets into a
// group gets out by a rule, a pin, a release or the end of the group, and by nothing else: not by running
// another program or rewriting its arguments.
func (m *members) knowResidents() {
	for i := range m.table {
		proc := &m.table[i]
		_, isPlaced := m.placed[proc.ID]
		_, isSkipped := m.skipped[proc.ID]
		if isPlaced || isSkipped || m.expelled(proc) {
			continue
		}
		if group, ok := m.Desired.Layout.Resident(proc); ok {
			m.placed[proc.ID] = placing{group: group, why: "no rule matches it, and it stays in its group",
				resident: true}
		}
	}
}

// expelled says whether the process, or an ancestor with nothing claimed between, was sent back.
func (m *members) expelled(proc *procfs.Process) bool {
	if len(m.In.Expel) == 0 || m.In.Expel[proc.ID] {
		return len(m.In.Expel) > 0
	}
	for parent := range m.ancestors(proc) {
		if m.In.Expel[parent.ID] {
			return true
		}
		if placed, ok := m.placed[parent.ID]; ok && !placed.resident {
			return false
		}
	}
	return false
}

// dropElsewhere takes out of the targets of a resident what would move it from where others put it: only
// from a directory of ours, or from home, is it brought into the rest of its group.
func (m *members) dropElsewhere(proc *procfs.Process, group string, targets map[string]string) {
	for h := range targets {
		dir := cgroup.Dir{Hierarchy: h, Path: m.where(proc, h)}
		_, ours := m.Desired.Layout.Group(dir)
		if ours && m.IsForeign(dir) || !ours && dir.Path != m.home(proc, h, group) {
			delete(targets, h)
		}
	}
}

// ancestors yields the processes above one, nearest first. Pids are read while processes come and go, so
// the chain may close into a ring.
func (m *members) ancestors(proc *procfs.Process) func(yield func(*procfs.Process) bool) {
	return func(yield func(*procfs.Process) bool) {
		seen := map[int]bool{proc.PID: true}
		for at := m.byPID[proc.PPID]; at != nil && !seen[at.PID]; at = m.byPID[at.PPID] {
			seen[at.PID] = true
			if !yield(at) {
				return
			}
		}
	}
}

// untangle takes processes out of directories that hand controllers down already. Somebody put them there, and
// the kernel let them in because cpu, cpuset and pids may govern threads: such a directory is then the root
// of a threaded tree, and no process can enter those below it (EOPNOTSUPP) until it is empty.
func (m *members) untangle() {
	for _, h := range m.Desired.Layout.Hierarchies() {
		if h.Version != 2 {
			continue
		}
		for _, dir := range m.Ours[h.ID] {
			if m.Desired.Layout.Holds(dir) && len(m.Handed(dir)) > 0 {
				m.evacuate(dir, cgroup.Dir{})
			}
		}
	}
}

// evacuate moves what sits directly in a directory of ours out of the way: into its leaf, where the group's
// limits go on holding it, or where there is none to where it came from.
func (m *members) evacuate(dir, leaf cgroup.Dir) {
	group, ok := m.Desired.Layout.Group(dir)
	if !ok || m.IsNew[dir] {
		return
	}
	for i := range m.table {
		proc := &m.table[i]
		if m.where(proc, dir.Hierarchy) != dir.Path || proc.Exited() {
			continue
		}
		to := leaf.Path
		if !m.Desired.Layout.Holds(leaf) {
			to = m.home(proc, dir.Hierarchy, group)
		}
		m.move(proc, dir.Hierarchy, to, group, "cgroup v2 allows no processes beside child groups with limits")
	}
}

// runsElsewhere says whether a unit that no group claims runs something, and will do so.
func (m *members) runsElsewhere(unit string) bool {
	return !m.In.Systemd.Between[unit] && slices.ContainsFunc(m.table, func(proc procfs.Process) bool {
		_, name, ok := m.Desired.Layout.Names.UnitDir(&proc)
		return ok && name == unit
	})
}

// noMemory is in use where nobody can be asked.
type noMemory struct{}

// inside lists the processes of a group and of those inside it.
func (m *members) inside(group string) (list []procfs.Process) {
	for i := range m.table {
		if _, inside := layout.Below(group, m.placed[m.table[i].ID].group); inside {
			list = append(list, m.table[i])
		}
	}
	return list
}
