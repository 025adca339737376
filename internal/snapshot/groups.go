package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// observe fills in what the kernel says now about our tree and about the members.
func (r *Reader) observe(ctx context.Context, v *Snapshot) error {
	o := &v.Observed
	o.Dirs = map[cgroup.Dir]map[string]string{}
	o.Subtree = map[cgroup.Dir]plan.Subtree{}
	o.Foreign = map[cgroup.Dir]bool{}
	files := FilesOf(v.Facts)
	for _, h := range v.Facts.Hierarchies {
		names, governed := files[h.ID]
		if !governed {
			continue
		}
		if err := observeHierarchy(v, h, names); err != nil {
			return err
		}
		if err := observeUnitDirs(v, h, names); err != nil {
			return err
		}
	}
	r.observeOwners(ctx, v)
	r.observeHomes(v)
	r.observeScores(v)
	if v.options.Shares {
		observeSiblings(v)
	}
	return nil
}

// observeHierarchy reads our directories in one hierarchy, and what they get from the top of it.
func observeHierarchy(v *Snapshot, h host.Hierarchy, names []string) error {
	o, root := &v.Observed, cgroup.Dir{Hierarchy: h.ID, Path: "/"}
	tops, err := TopsOf(v.Tree, v.Names, h.ID)
	if err != nil {
		return fmt.Errorf("look at our groups: %w", err)
	}
	if h.Version == 2 {
		if err := observeSubtrees(v.Tree, o, root); err != nil {
			return err
		}
	}
	if slices.Contains(h.Controllers, "cpuset") && h.Version == 1 {
		if o.Dirs[root], err = v.Tree.ReadMany(root, names); err != nil {
			return fmt.Errorf("look at the CPUs and nodes of the host: %w", err)
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

// TopsOf lists our directories at the top of a hierarchy: root groups and outermost groups.
func TopsOf(t *cgroup.Tree, names layout.Names, hierarchy string) ([]cgroup.Dir, error) {
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

// FilesOf names the knob files of each hierarchy that the table can use, and none for
// cpuacct, which holds no limit but in which groups get a directory for their figures.
func FilesOf(f *host.Facts) map[string][]string {
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
		if files[h.ID] == nil && (layout.Tracks(f, h) || h.Version == 2) {
			files[h.ID] = []string{}
		}
	}
	return files
}

// observeUnitDirs reads the directories outside our root that carry limits of ours: those of governed units, and what
// is ours in a slice of an administrator's.
func observeUnitDirs(v *Snapshot, h host.Hierarchy, names []string) error {
	if v.Systemd == nil {
		return nil
	}
	paths := map[string]bool{}
	for _, d := range v.Layout.Dirs() {
		if d.Hierarchy == h.ID {
			paths[d.Path] = true
		}
	}
	for d := range v.records.made {
		if d.Hierarchy == h.ID && v.Names.IsAnchor(d.Path) {
			paths[d.Path] = true
		}
	}
	for unit, k := range v.Systemd.Kept {
		paths[k.Dir] = true
		if unitname.TypeOf(unit) == "slice" {
			if keeper, err := unitname.KeeperName(v.Names.Root, k.Group); err == nil {
				paths[path.Join(k.Dir, keeper)], paths[path.Join(k.Dir, keeper, layout.Members)] = true, true
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
			return fmt.Errorf("look at %s: %w", at, err)
		}
		v.Observed.Dirs[d] = values
	}
	return nil
}

// ours says whether a directory of our tree is one that we would make, by its name.
func (s *Snapshot) ours(d cgroup.Dir) bool {
	unit := s.Layout.Unit(d)
	if _, ok := s.Names.GroupOfUnit(unit); !ok {
		return false
	}
	return unitname.TypeOf(unit) != "scope" || s.Names.IsRun(unit)
}

// observeDirs reads every directory of our tree in one hierarchy.
func observeDirs(
	t *cgroup.Tree, o *plan.Observation, top cgroup.Dir, ours layout.Names, names []string, version int,
) error {
	dirs, err := t.Walk(top)
	if err != nil && !errors.Is(err, cgroup.ErrGone) {
		return fmt.Errorf("look at our groups: %w", err)
	}
	for _, d := range dirs {
		if path.Base(d.Path) == systemd.KeeperSubgroup && ours.IsKeeperDir(d.Path) {
			continue // where a keeper's own process is; it goes with the unit
		}
		may := names
		if version == 2 {
			if err := observeSubtrees(t, o, d); err != nil {
				return err
			}
			if sub, known := o.Subtree[d]; known {
				may = slices.DeleteFunc(slices.Clone(names),
					func(name string) bool { return !cgroup.MayHaveWith(sub.Available, name) })
			}
		}
		values, err := t.ReadMany(d, may)
		if errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at our groups: %w", err)
		}
		o.Dirs[d] = values
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
				return fmt.Errorf("look at %s: %w", p, err)
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
func (r *Reader) observeHomes(v *Snapshot) {
	process, group := r.Store.InBoot(v.Facts.BootID).Homes()
	maps.Copy(process, v.homes)
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
func (r *Reader) observeScores(v *Snapshot) {
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
		if score, err := r.Host.Proc.ReadOOMScoreAdj(p.Process.ID); err == nil {
			v.Observed.OOMScoreAdj[p.Process.ID] = score
		}
	}
	boot := v.Facts.BootID
	v.Observed.Originals = plan.Originals{
		OOMScoreAdj: r.Store.InBoot(boot).Scores(), Subtree: r.Store.InBoot(boot).Subtree(),
		Disks:        valuesBefore(r.Store.InBoot(boot).Originals(), ofDisk),
		Tuned:        valuesBefore(r.Store.InBoot(boot).Lasting(), func(change.Target) bool { return true }),
		Wrote:        map[change.Target]string{},
		FavorDynmods: r.Store.InBoot(boot).Changed(plan.FavorDynmods.Target()),
	}
	for _, c := range r.Store.InBoot(boot).Lasting() {
		v.Observed.Originals.Wrote[c.Target] = c.New
	}
	maps.Copy(v.Observed.Originals.Tuned, valuesBefore(r.Store.InBoot(boot).Originals(), func(t change.Target) bool {
		return t.Kind == tunable.KindQueueByName
	}))
	for id := range v.Observed.Originals.OOMScoreAdj {
		if score, err := r.Host.Proc.ReadOOMScoreAdj(id); err == nil {
			v.Observed.OOMScoreAdj[id] = score
		}
	}
	// Their children were born with the changed one.
	for _, p := range descendants(v.Observed.Processes, v.Observed.Originals.OOMScoreAdj) {
		if score, err := r.Host.Proc.ReadOOMScoreAdj(p); err == nil {
			v.Observed.OOMScoreAdj[p] = score
		}
	}
}

// valuesBefore is what targets held before bulkhead first changed them.
func valuesBefore(all []journal.Change, of func(change.Target) bool) map[change.Target]string {
	before := map[change.Target]string{}
	for _, c := range all {
		if of(c.Target) {
			before[c.Target] = c.Old
		}
	}
	return before
}

func ofDisk(t change.Target) bool {
	f, is := cgroup.NamedFile(t)
	return is && slices.Contains(plan.DiskFiles, f.Name)
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
		parent := byPID[p.PPID]
		for left := len(all); parent != nil && left > 0; parent, left = byPID[parent.PPID], left-1 {
			if _, ok := of[parent.ID]; ok {
				found = append(found, p.ID)
				break
			}
		}
	}
	return found
}

// observeOwners tells the directories that somebody else made, and the slices that systemd made by itself.
func (r *Reader) observeOwners(ctx context.Context, v *Snapshot) {
	o, made := &v.Observed, v.records.made
	owns := func(d cgroup.Dir) bool {
		if v.Systemd == nil || v.Systemd.Mute {
			return false // only a release is planned then, and it leaves the directory to systemd
		}
		is, err := r.OwnsSlice(ctx, v.Facts, d)
		if err != nil {
			v.Unasked, v.Systemd = err, nil
		}
		return is
	}
	for d := range o.Dirs {
		if o.Foreign[d] = d.Path != "/" && !made[d] && !v.Layout.Theirs(d); o.Foreign[d] && v.Layout.Unit(d) != "" {
			o.Foreign[d] = !owns(d) || !v.ours(d)
		}
	}
	o.Made = map[cgroup.Dir]bool{}
	for d := range o.Dirs {
		if made[d] && v.Layout.Theirs(d) && unitname.TypeOf(v.Layout.Unit(d)) == "slice" {
			o.Made[d] = owns(d)
		}
	}
}

// OwnsSlice says whether a slice of our name is one that systemd made by itself, for a unit that starts in it. One
// with a file is an administrator's. An error says that systemd could not be asked.
func (r *Reader) OwnsSlice(ctx context.Context, f *host.Facts, d cgroup.Dir) (bool, error) {
	unit := path.Base(d.Path)
	if !f.Systemd || unitname.TypeOf(unit) == "" {
		return false, nil
	}
	m, err := r.Manager(ctx, f)
	if err != nil {
		return false, err
	}
	u, err := m.Unit(ctx, unit)
	return err == nil && (u.Transient || u.FragmentPath == ""), err
}

// looksAtOwners says whether a look reads who owns the files of groups. The agent does so where the policy has owners;
// who changes something also sees what an earlier policy left.
func looksAtOwners(v *Snapshot) bool {
	if v.options.Cache == nil {
		return true
	}
	for _, g := range v.Classified.Groups {
		if len(g.Owner) > 0 {
			return true
		}
	}
	return false
}

// Counted says which directories count what a group uses: those of its members, and those of its processes that lie
// outside of it.
func (s *Snapshot) Counted(group string) (g metrics.Group) {
	for hierarchy, d := range s.Layout.Member(group) {
		if own, ok := s.Layout.Own(group)[hierarchy]; ok {
			if _, there := s.Observed.Dirs[own]; there {
				d = own
			}
		}
		var dirs []cgroup.Dir
		if owner, laid := s.Layout.Owner[d]; !laid || owner == group { // else it sits in that of a group above
			dirs = append(dirs, d)
		}
		if dirs = append(dirs, s.Layout.Outside(group, hierarchy)...); len(dirs) > 0 {
			g.Dirs = append(g.Dirs, dirs)
		}
	}
	return g
}

// HasGroup says whether the policy has a group.
func (s *Snapshot) HasGroup(name string) bool {
	return slices.ContainsFunc(s.Classified.Groups, func(g classify.Group) bool { return g.Path == name })
}

// HoldsInstance says whether a group holds the main process of a database.
func (s *Snapshot) HoldsInstance(group string) bool {
	for _, p := range s.Members {
		if p.Group == group && slices.ContainsFunc(s.Instances,
			func(i engine.Instance) bool { return i.Main == p.Process.ID }) {
			return true
		}
	}
	return false
}
