package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// observe fills in what the kernel says now about our tree and about the members.
func (c *Controller) observe(ctx context.Context, v *View, shares bool) error {
	o := &v.Observed
	o.Dirs = map[cgroup.Dir]map[string]string{}
	o.Subtree = map[cgroup.Dir]plan.Subtree{}
	o.Foreign = map[cgroup.Dir]bool{}
	made := c.Store.Made(v.Facts.BootID)
	files := filesByHierarchy(v.Facts)
	for _, h := range v.Facts.Hierarchies {
		names, governed := files[h.ID]
		if !governed {
			continue
		}
		if err := observeHierarchy(v, h, names); err != nil {
			return err
		}
		if err := observeUnitDirs(v, made, h, names); err != nil {
			return err
		}
	}
	c.observeOwners(ctx, v, made)
	c.observeHomes(v)
	c.observeScores(v)
	if shares {
		c.observeSiblings(v)
	}
	return nil
}

// observeHierarchy reads our directories in one hierarchy, and what they get from the top of it.
func observeHierarchy(v *View, h host.Hierarchy, names []string) error {
	o, root := &v.Observed, cgroup.Dir{Hierarchy: h.ID, Path: "/"}
	tops, err := topsOf(v.Tree, v.Names, h.ID)
	if err != nil {
		return fail(CodeFailed, "", "look at our groups: %w", err)
	}
	if h.Version == 2 {
		if err := observeSubtrees(v.Tree, o, root); err != nil {
			return err
		}
	}
	if slices.Contains(h.Controllers, "cpuset") && h.Version == 1 {
		if o.Dirs[root], err = v.Tree.ReadMany(root, names); err != nil {
			return fail(CodeFailed, "", "look at the CPUs and nodes of the host: %w", err)
		}
	}
	for _, top := range tops {
		if err := observeDirs(v.Tree, o, top, v.Names, names, h.Version); err != nil {
			return err
		}
	}
	if !looksAtOwners(v) {
		return nil
	}
	for d, values := range o.Dirs {
		if d.Hierarchy == h.ID {
			maps.Copy(values, cgroup.Owners{Tree: v.Tree}.Of(d, h.Version))
		}
	}
	return nil
}

// topsOf lists our directories at the top of a hierarchy: root groups and outermost groups.
func topsOf(t *cgroup.Tree, names plan.Names, hierarchy string) ([]cgroup.Dir, error) {
	root := cgroup.Dir{Hierarchy: hierarchy, Path: "/"}
	children, err := t.Children(root)
	var tops []cgroup.Dir
	for _, name := range children {
		if names.IsTop(name) {
			tops = append(tops, root.Child(name))
		}
	}
	return tops, err
}

// nameTaken reports, as a problem of the policy, a directory with the name of a root group or an outermost group that
// bulkhead did not make: apply refuses it. Who may not read the state directory cannot tell.
func (c *Controller) nameTaken(ctx context.Context, v *View) error {
	if c.Store == nil {
		return nil
	}
	made := c.Store.Made(v.Facts.BootID)
	for _, d := range v.Layout.Dirs() {
		if d.Parent().Path != "/" || made[d] || v.Layout.Theirs(d) {
			continue
		}
		if there, err := v.Tree.Exists(d); err != nil || !there {
			continue
		}
		if owned, err := c.ownsSlice(ctx, v.Facts, d); err != nil {
			return errUnasked(err)
		} else if owned {
			continue
		}
		at := cmp.Or(v.Policy.Host.RootPos, v.Policy.Host.Pos, policy.Pos{File: v.Policy.Sources[0].Path})
		taken := policy.Problem{Pos: at, Msg: v.Tree.Abs(d) + " already exists and bulkhead did not make it", Hint: hintTaken(v, d)}
		return yamlform.Annotate(policy.Problems{taken}, v.Policy.Sources)
	}
	return nil
}

// filesByHierarchy names the knob files of each hierarchy that the table can use, and none for
// cpuacct, which holds no limit but in which groups get a directory for their figures.
func filesByHierarchy(f *host.Facts) map[string][]string {
	files := map[string][]string{}
	for _, r := range knob.RowsFor(f) {
		id := r.HierarchyID(f)
		if !r.PerSize {
			files[id] = append(files[id], r.Name(""))
			continue
		}
		for _, size := range f.HugePageSizes {
			files[id] = append(files[id], r.Name(policy.HugePageName(size)))
		}
	}
	if h, ok := f.HierarchyOf("cpuacct"); ok && files[h.ID] == nil {
		files[h.ID] = []string{}
	}
	for _, h := range f.Hierarchies {
		// In cgroup2, even without controllers, groups get a directory when their sockets are to be told apart.
		if files[h.ID] == nil && (plan.Tracks(f, h) || h.Version == 2) {
			files[h.ID] = []string{}
		}
	}
	return files
}

// observeUnitDirs reads the directories outside our root that carry limits of ours: those of governed units, and what
// is ours in a slice of an administrator's.
func observeUnitDirs(v *View, made map[cgroup.Dir]bool, h host.Hierarchy, names []string) error {
	if v.Systemd == nil {
		return nil
	}
	paths := map[string]bool{}
	for _, d := range v.Layout.Dirs() {
		if d.Hierarchy == h.ID {
			paths[d.Path] = true
		}
	}
	for d := range made {
		if d.Hierarchy == h.ID && v.Names.IsAnchor(d.Path) {
			paths[d.Path] = true
		}
	}
	for unit, k := range v.Systemd.Kept {
		paths[k.Dir] = true
		if unitname.TypeOf(unit) == "slice" {
			if keeper, err := unitname.KeeperName(v.Names.Root, k.Group); err == nil {
				paths[path.Join(k.Dir, keeper)], paths[path.Join(k.Dir, keeper, plan.Members)] = true, true
			}
		}
	}
	for at := range paths {
		d := cgroup.Dir{Hierarchy: h.ID, Path: at}
		if _, done := v.Observed.Dirs[d]; done || v.Names.IsTop(strings.SplitN(at, "/", 3)[1]) {
			continue
		}
		values, err := v.Tree.ReadMany(d, names)
		if errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if err != nil {
			return fail(CodeFailed, "", "look at %s: %w", at, err)
		}
		v.Observed.Dirs[d] = values
	}
	return nil
}

// ours says whether a directory of our tree is one that we would make, by its name.
func (v *View) ours(d cgroup.Dir) bool {
	unit := v.Layout.Unit(d)
	if _, ok := v.Names.GroupOfUnit(unit); !ok {
		return false
	}
	return unitname.TypeOf(unit) != "scope" || v.Names.IsRun(unit)
}

// observeDirs reads every directory of our tree in one hierarchy.
func observeDirs(t *cgroup.Tree, o *plan.Observation, top cgroup.Dir, ours plan.Names, names []string, version int) error {
	dirs, err := t.Walk(top)
	if err != nil && !errors.Is(err, cgroup.ErrGone) {
		return fail(CodeFailed, "", "look at our groups: %w", err)
	}
	for _, d := range dirs {
		if path.Base(d.Path) == systemd.KeeperSubgroup && ours.IsKeeperDir(d.Path) {
			continue // where a keeper's own process is; it goes with the unit
		}
		values, err := t.ReadMany(d, names)
		if errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if err != nil {
			return fail(CodeFailed, "", "look at our groups: %w", err)
		}
		o.Dirs[d] = values
		if version == 2 {
			if err := observeSubtrees(t, o, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// observeSubtrees reads what each v2 directory from the mount's root down to d offers its children.
func observeSubtrees(t *cgroup.Tree, o *plan.Observation, d cgroup.Dir) error {
	for p := d.Path; ; p = path.Dir(p) {
		at := cgroup.Dir{Hierarchy: d.Hierarchy, Path: p}
		if _, done := o.Subtree[at]; !done {
			available, enabled, err := t.Subtree(at)
			if err != nil && !errors.Is(err, cgroup.ErrGone) {
				return fail(CodeFailed, "", "look at %s: %w", p, err)
			}
			if err == nil {
				o.Subtree[at] = plan.Subtree{Available: available, Enabled: enabled}
			}
		}
		if p == "/" {
			return nil
		}
	}
}

// observeHomes reads where members came from, and which of those places are still there.
func (c *Controller) observeHomes(v *View) {
	process, group := c.Store.Homes(v.Facts.BootID)
	process = maps.Clone(process)
	for id, home := range v.homes {
		if process == nil {
			process = map[procfs.ID]map[string]string{}
		}
		process[id] = home
	}
	v.Observed.Homes = plan.Homes{Process: process, Group: group}
	v.Observed.Existing = map[cgroup.Dir]bool{}
	note := func(homes map[string]string) {
		for hierarchy, p := range homes {
			for ; ; p = path.Dir(p) {
				d := cgroup.Dir{Hierarchy: hierarchy, Path: p}
				if _, done := v.Observed.Existing[d]; done {
					break
				}
				there, err := v.Tree.Exists(d)
				v.Observed.Existing[d] = err == nil && there
				if p == "/" {
					break
				}
			}
		}
	}
	for _, homes := range process {
		note(homes)
	}
	for _, homes := range group {
		note(homes)
	}
}

// observeScores reads the oom_score_adj of members whose group asks for one, and of every process whose
// own bulkhead has changed.
func (c *Controller) observeScores(v *View) {
	v.Observed.OOMScoreAdj = map[procfs.ID]int{}
	wanted := map[string]bool{}
	for _, g := range v.Classified.Groups {
		_, wanted[g.Path] = g.Settings.Get(policy.KeyOOMScoreAdj, "")
	}
	for _, p := range v.Members {
		if !wanted[p.Group] {
			continue
		}
		// One that exits meanwhile is left out, and so gets no step.
		if score, err := c.Host.Proc.ReadOOMScoreAdj(p.Process.ID); err == nil {
			v.Observed.OOMScoreAdj[p.Process.ID] = score
		}
	}
	v.Observed.Originals = plan.Originals{OOMScoreAdj: c.Store.Scores(v.Facts.BootID), Subtree: c.Store.Subtree(v.Facts.BootID), FavorDynmods: c.Store.Changed(v.Facts.BootID, plan.FavorDynmods.Target()), Disks: diskOriginals(v.Facts, c.Store.Originals(v.Facts.BootID))}
	for id := range v.Observed.Originals.OOMScoreAdj {
		if score, err := c.Host.Proc.ReadOOMScoreAdj(id); err == nil {
			v.Observed.OOMScoreAdj[id] = score
		}
	}
	// Their children were born with the changed one.
	for _, p := range descendants(v.Observed.Processes, v.Observed.Originals.OOMScoreAdj) {
		if score, err := c.Host.Proc.ReadOOMScoreAdj(p); err == nil {
			v.Observed.OOMScoreAdj[p] = score
		}
	}
}

// diskOriginals picks what was changed of disks.
func diskOriginals(facts *host.Facts, all []journal.Change) map[cgroup.File]string {
	disks := map[cgroup.File]string{}
	for _, c := range all {
		if f, is := cgroup.DiskFile(c.Target, plan.DisksAt(facts)); is && slices.Contains(plan.DiskFiles, f.Name) {
			disks[f] = c.Old
		}
	}
	return disks
}

// descendants lists the processes that have one of the given ones above them.
func descendants(all []procfs.Process, of map[procfs.ID]int) []procfs.ID {
	if len(of) == 0 {
		return nil
	}
	byPID := make(map[int]*procfs.Process, len(all))
	for i := range all {
		byPID[all[i].PID] = &all[i]
	}
	var found []procfs.ID
	for _, p := range all {
		// A table read while processes come and go may hold a loop: no chain is longer than the table.
		for parent, left := byPID[p.PPID], len(all); parent != nil && left > 0; parent, left = byPID[parent.PPID], left-1 {
			if _, ok := of[parent.ID]; ok {
				found = append(found, p.ID)
				break
			}
		}
	}
	return found
}

// observeSiblings reads who competes with our groups for CPU.
func (c *Controller) observeSiblings(v *View) {
	h, ok := v.Facts.HierarchyOf("cpu")
	if !ok {
		return
	}
	top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
	v.Observed.Siblings = append([]plan.Sibling{{Dir: top, Tasks: c.rootTasks(v, h)}}, besides(v, h, top)...)
	v.Observed.Beside = map[cgroup.Dir][]plan.Sibling{}
	if v.Systemd == nil {
		return
	}
	v.Observed.Beside[top] = v.Observed.Siblings
	above := func(at string) {
		for d := (cgroup.Dir{Hierarchy: h.ID, Path: at}); d.Path != "/"; d = d.Parent() {
			if at := d.Parent(); v.Observed.Beside[at] == nil {
				v.Observed.Beside[at] = append([]plan.Sibling{{Dir: at, Tasks: c.sliceTasks(v, h, at)}}, besides(v, h, at)...)
			}
		}
	}
	for at, g := range v.Systemd.Governed {
		if !g.Inside {
			above(at)
		}
	}
	for _, g := range v.Classified.Groups {
		if own, ok := v.Layout.Own(g.Path)[h.ID]; ok && g.Slice != "" {
			above(own.Path)
		}
	}
}

// rootTasks counts what competes directly in the root of a hierarchy, task by task. Only who wants to run now counts: a
// host's many sleeping daemons do not make it a contended one. Without systemd everybody is there whom nobody has put elsewhere, so
// one for each CPU counts at least. systemd keeps everybody but kernel threads in units, and those that v1 does not show yet
// get a directory with the first weight beside them.
func (c *Controller) rootTasks(v *View, h host.Hierarchy) int {
	tasks := 0
	for i := range v.Observed.Processes {
		p := &v.Observed.Processes[i]
		if p.Cgroups[h.ID] == "/" && !p.Kernel && (!v.Facts.Systemd || plan.UnitPath(p) == "/") {
			tasks += c.runnable(p)
		}
	}
	if v.Facts.Systemd {
		return tasks
	}
	return max(tasks, len(v.Facts.CPUs))
}

// sliceTasks counts what competes directly in a slice on cgroup v1: who wants to run now in its units that have no directory under
// the cpu controller. A weight of one of them brings it one and none to its siblings (seen on 252).
func (c *Controller) sliceTasks(v *View, h host.Hierarchy, at cgroup.Dir) int {
	tasks := 0
	for i := range v.Observed.Processes {
		p := &v.Observed.Processes[i]
		dir, _, unit := v.Names.UnitDir(p)
		_, governed := v.Systemd.Governed[dir]
		above := p.Cgroups[h.ID]
		if h.Version == 1 && unit && !governed && strings.HasPrefix(dir, at.Path+"/") &&
			(above == "/" || above == at.Path || strings.HasPrefix(at.Path, above+"/")) {
			tasks += c.runnable(p)
		}
	}
	return tasks
}

// runnable counts the threads of a process that run or want to. Its own state is that of the first one.
func (c *Controller) runnable(p *procfs.Process) (tasks int) {
	const running = 'R'
	if p.Threads <= 1 {
		if p.State == running {
			return 1
		}
		return 0
	}
	all, err := c.Host.Proc.Tasks(p.PID)
	if err != nil {
		return 0 // it is gone
	}
	for _, t := range all {
		if t.State == running {
			tasks++
		}
	}
	return tasks
}

// besides reads the weights in a directory, what is ours left out, and what has no process and gets none by itself: a mount
// for one, which is a unit too. systemd brings what is at the top under the cpu controller once one of it has a weight, and on
// cgroup v2 the units of a slice, too; they count from the beginning.
func besides(v *View, h host.Hierarchy, at cgroup.Dir) (all []plan.Sibling) {
	file, weight := "cpu.shares", int64(1024)
	if h.Version == 2 {
		file, weight = "cpu.weight", 100
	}
	units := at // where systemd keeps who is in which unit
	if v.Systemd != nil {
		units.Hierarchy = plan.Tracker(v.Facts)
	}
	names, err := v.Tree.Children(at)
	if err != nil {
		names = nil // not made yet
	}
	if units != at {
		if more, err := v.Tree.Children(units); err == nil {
			names = append(names, more...)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		d := at.Child(name)
		if !v.isRival(d, units.Child(name)) {
			continue
		}
		values, err := v.Tree.ReadMany(d, []string{file, "cpu.idle"})
		sibling := plan.Sibling{Dir: d, Weight: weight}
		switch n, bad := strconv.ParseInt(values[file], 10, 64); {
		case err == nil && bad == nil:
			sibling.Weight, sibling.Idle = n, values["cpu.idle"] == "1"
		case v.Systemd == nil || err != nil && (units == at || at.Path != "/" || !errors.Is(err, cgroup.ErrGone)):
			continue // not under the cpu controller, or gone between the listing and the look
		}
		all = append(all, sibling)
	}
	return all
}

// isRival says whether a directory competes with our groups: it is none of ours, and no unit in which nobody is. unit is
// where systemd keeps who is in it.
func (v *View) isRival(d, unit cgroup.Dir) bool {
	if d.Parent().Path == "/" && v.Names.IsTop(path.Base(d.Path)) {
		return false
	}
	return v.Systemd == nil || !v.Names.IsAnchor(d.Path) && !idleUnit(v.Tree, unit)
}

// idleUnit says whether a unit that is no slice holds neither a process nor a group.
func idleUnit(t *cgroup.Tree, d cgroup.Dir) bool {
	if kind := unitname.TypeOf(path.Base(d.Path)); kind == "" || kind == "slice" {
		return false
	}
	children, err := t.Children(d)
	if err != nil || len(children) > 0 {
		return false
	}
	procs, err := t.Procs(d)
	return err == nil && len(procs) == 0
}

// plan makes the plan of a view.
func (v *View) plan() { v.Plan = plan.Make(v.input()) }

// input is what a plan for a view is made from.
func (v *View) input() plan.Input {
	return plan.Input{
		Facts: v.Facts, Host: v.Policy.Host, Former: v.Names.Former, Agent: v.Policy.Agent, Classified: v.Classified,
		Observed: v.Observed, Memory: v.inUse(), Released: v.Released, Expel: v.expel, Systemd: v.Systemd,
		Network: v.Network, Leave: v.left, AskNodes: v.askNodes,
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

// asProblems gives the problems in an error, or makes one of it.
func asProblems(err error) policy.Problems {
	var ps policy.Problems
	if errors.As(err, &ps) {
		return ps
	}
	return policy.Problems{{Msg: fmt.Sprint(err)}}
}
