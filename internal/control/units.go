package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// manager gives the connection to systemd, the same one as long as it lasts; nil without an error where systemd does not
// own the tree.
func (c *Controller) manager(ctx context.Context, f *host.Facts) (*systemd.Manager, error) {
	if !f.Systemd {
		return nil, nil //nolint:nilnil // there is none to connect to
	}
	c.bus.Lock()
	m := c.systemd
	c.bus.Unlock()
	if m != nil {
		return m, nil
	}
	// Nothing is held meanwhile: a systemd that hangs holds up only who asks it, and that one until ctx ends.
	m, err := systemd.Connect(ctx, systemd.Options{Root: c.root, Timeout: c.patience, JobTimeout: c.patience})
	if err != nil {
		return nil, err
	}
	c.bus.Lock()
	defer c.bus.Unlock()
	if c.systemd != nil { // somebody else was faster
		m.Close()
	} else {
		c.systemd = m
	}
	return c.systemd, nil
}

// observeUnits asks systemd and its files what a plan has to know of units. Without an answer v.Systemd stays nil, and
// nothing but a release is planned.
func (c *Controller) observeUnits(ctx context.Context, v *View) {
	m, err := c.manager(ctx, v.Facts)
	if err != nil {
		v.unasked = err
		return
	}
	if m == nil {
		return
	}
	if v.releasing { // by the files alone it would not be seen that nobody is there to take what is asked
		if v.unasked = m.Ping(ctx); v.unasked != nil {
			return
		}
	}
	s := &plan.Systemd{
		Version: m.Version(), Governed: v.Names.Govern(v.Classified, v.Observed.Processes),
		Kept: map[string]plan.Kept{}, Adopted: map[string]string{},
		Keepers: v.Names.Keepers(v.Observed.Processes), Pinned: map[procfs.ID]bool{},
	}
	for _, p := range v.Classified.Placements {
		if p.By == classify.ByPin {
			s.Pinned[p.Process.ID] = true
		}
	}
	if c.Store != nil {
		kept, err := c.unitRecords()
		if err != nil {
			v.unasked = err
			return
		}
		s.Kept = kept.Prune(state.Moment{Boot: v.Facts.BootID}).Units
	}
	ask := askOnce(ctx, m)
	c.findStale(v, s, m, ask)
	dropIns, err := m.DropIns()
	if err != nil {
		v.unasked = err
		return
	}
	for _, d := range dropIns {
		for _, line := range d.Lines {
			if slice, ok := strings.CutPrefix(line, "Slice="); ok {
				s.Adopted[d.Unit] = slice
			}
		}
	}
	if s.Main, err = mainProcesses(v, s, ask); err != nil {
		v.unasked = err
		return
	}
	if s.Between, err = between(v, s, ask); err != nil {
		v.unasked = err
		return
	}
	s.Set = c.settingsOf(s, m)
	s.Later, s.Own = c.filesOf(v, s, m)
	v.Systemd = s
}

// unitFunc says what systemd knows of a unit.
type unitFunc func(unit string) (*systemd.Unit, error)

// askOnce asks systemd once for each unit, so that all of a look goes by one answer.
func askOnce(ctx context.Context, m *systemd.Manager) unitFunc {
	known := map[string]*systemd.Unit{}
	return func(unit string) (*systemd.Unit, error) {
		if u, asked := known[unit]; asked {
			return u, nil
		}
		u, err := m.Unit(ctx, unit)
		if err == nil {
			known[unit] = u
		}
		return u, err
	}
}

// findStale takes records of units out that are gone, with nothing of ours left in systemd's files: commands that ended, and
// other units without a file.
func (c *Controller) findStale(v *View, s *plan.Systemd, m *systemd.Manager, ask unitFunc) {
	for unit, k := range s.Kept {
		if slices.ContainsFunc(v.Facts.Hierarchies, func(h host.Hierarchy) bool {
			there, err := v.Tree.Exists(cgroup.Dir{Hierarchy: h.ID, Path: k.Dir})
			return there && err == nil && k.Dir != ""
		}) {
			continue
		}
		u, err := ask(unit)
		if err != nil || u.Active() || u.LoadState != systemd.LoadNotFound && (unitname.TypeOf(unit) != "slice" || u.FragmentPath != "") {
			continue
		}
		if left, err := m.Overrides(unit); err == nil && len(left) == 0 && len(k.Overrides) == 0 {
			delete(s.Kept, unit)
			v.stale = append(v.stale, unit)
		}
	}
}

// dropStale forgets them for good. It needs the lock.
func (c *Controller) dropStale(v *View) error {
	if len(v.stale) == 0 || c.scratch != nil {
		return nil
	}
	records, err := c.unitRecords()
	if err != nil {
		return err
	}
	kept := records.Units
	for _, unit := range v.stale {
		delete(kept, unit)
	}
	v.stale = nil
	return state.Save(c.Store, state.DocUnits, kept)
}

// filesOf reads what the files of the units say that carry limits: drop-ins that win over a property, and memory limits of
// their own.
func (c *Controller) filesOf(v *View, s *plan.Systemd, m *systemd.Manager) (later map[string][]systemd.FileSetting, own map[string]int64) {
	later, own = map[string][]systemd.FileSetting{}, map[string]int64{}
	units := map[string]bool{}
	for _, g := range s.Governed {
		units[g.Unit] = true
	}
	for _, g := range v.Classified.Groups {
		if g.Slice != "" {
			units[g.Slice] = true
		}
	}
	for unit := range units {
		found, err := m.Later(unit)
		if err != nil {
			c.Log.Warn("look at the files of a unit", "unit", unit, "err", err)
		}
		if len(found) > 0 {
			later[unit] = found
		}
	}
	for unit, k := range s.Kept {
		if !slices.Contains(k.Ours, "MemoryMax") {
			continue
		}
		all, err := m.FileSettings(unit, k.Overrides)
		if err != nil {
			c.Log.Warn("look at the files of a unit", "unit", unit, "err", err)
			continue
		}
		for _, name := range []string{"MemoryLimit", "MemoryMax"} { // the younger one wins where both are
			for _, f := range all {
				if f.Setting != name {
					continue
				}
				if n, limited := systemd.ParseBytes(f.Value, v.Facts.MemTotal); limited {
					own[unit] = n
				} else {
					delete(own, unit)
				}
			}
		}
	}
	return later, own
}

// executors are the programs of systemd's that a service is before it becomes its own; the second since 255.
var executors = []string{"systemd", "systemd-executor"}

// between asks, for each unit that carries limits of ours or is adopted and is claimed by nobody now, whether it is on its way
// up or down: then who is in it says nothing of whose it is (ExecStartPre=, a server that has not been started yet), and its
// group has its directories until it is there. Nor does
// it as long as a server in it does not listen, and so has no name yet, or when the policy does not fit the host.
func between(v *View, s *plan.Systemd, ask unitFunc) (map[string]bool, error) {
	claimed := map[string]bool{}
	for _, g := range s.Governed {
		claimed[g.Unit] = true
	}
	young := map[int]bool{}
	for i := range v.Instances {
		young[v.Instances[i].Main.PID] = !v.Instances[i].Listening() || len(v.Problems) > 0
	}
	exes := map[int]string{}
	runs, nameless := map[string]bool{}, map[string]bool{}
	for i := range v.Observed.Processes {
		p := &v.Observed.Processes[i]
		if _, unit, ok := v.Names.UnitDir(p); ok {
			runs[unit], exes[p.PID] = true, path.Base(p.Exe)
			nameless[unit] = nameless[unit] || young[p.PID]
		}
	}
	units := slices.Concat(slices.Collect(maps.Keys(s.Kept)), slices.Collect(maps.Keys(s.Adopted)))
	found := map[string]bool{}
	for _, unit := range units {
		if _, done := found[unit]; done || claimed[unit] || unitname.TypeOf(unit) != "service" {
			continue
		}
		u, err := ask(unit)
		if err != nil {
			return nil, err
		}
		found[unit] = nameless[unit] || isBetween(u, exes, runs[unit])
	}
	return found, nil
}

// isBetween says whether a unit is on its way up or down, or has a main process that the table of processes, by their
// executables, does not show as what it is to be. Runs says that the table shows a process in it; without one it has ended,
// unless it is about to start, again for instance.
func isBetween(u *systemd.Unit, exes map[int]string, runs bool) bool {
	if !runs {
		return u.Queued || u.ActiveState == "activating" || u.ActiveState == "deactivating"
	}
	exe, seen := exes[u.MainPID]
	return u.ActiveState != "active" && u.ActiveState != "reloading" || u.MainPID != 0 && (!seen || slices.Contains(executors, exe))
}

// muteUnits is what can be known without systemd: the record of the units that bulkhead has set properties of.
func (c *Controller) muteUnits() *plan.Systemd {
	s := &plan.Systemd{Mute: true, Kept: map[string]plan.Kept{}}
	kept, err := c.unitRecords()
	if err != nil {
		c.Log.Warn("releasing without the record of units", "err", err)
		return s
	}
	s.Kept = kept.Units
	return s
}

// mainProcesses asks for the main process of each service that a group which takes processes out of units claims in
// part.
func mainProcesses(v *View, s *plan.Systemd, ask unitFunc) (map[string]int, error) {
	mains := map[string]int{}
	takes := map[string]bool{}
	for _, g := range v.Classified.Groups {
		takes[g.Path] = g.FromUnit
	}
	for i := range v.Classified.Placements {
		p := &v.Classified.Placements[i]
		dir, unit, ok := v.Names.UnitDir(&p.Process)
		if _, done := mains[unit]; !ok || done || !takes[p.Group] && p.By != classify.ByPin || s.Governed[dir].Group == p.Group {
			continue
		}
		u, err := ask(unit)
		if err != nil {
			return nil, err
		}
		mains[unit] = u.MainPID
	}
	return mains, nil
}

// settingsOf lists, for each unit that bulkhead has set properties of, the names of those properties.
func (c *Controller) settingsOf(s *plan.Systemd, m *systemd.Manager) map[string][]string {
	set := map[string][]string{}
	for unit, k := range s.Kept {
		now, err := m.Overrides(unit)
		if err != nil {
			c.Log.Warn("look at what systemd holds of a unit", "unit", unit, "err", err)
			continue
		}
		for _, o := range now {
			same := func(was systemd.Override) bool { return was.Path == o.Path && string(was.Text) == string(o.Text) }
			if slices.Contains(k.Ours, o.Setting()) && !slices.ContainsFunc(k.Overrides, same) {
				set[unit] = append(set[unit], o.Setting())
			}
		}
	}
	return set
}

// settings are those that a plan sets, by unit, as unit files name them.
func settings(p plan.Plan) map[string][]string {
	all := map[string][]string{}
	for _, s := range p.Steps {
		if s.Op == plan.OpMakeDir && s.Unit != "" { // systemd makes it because it is told to count there
			for _, name := range systemd.AccountingSettings() {
				if !slices.Contains(all[s.Unit], name) {
					all[s.Unit] = append(all[s.Unit], name)
				}
			}
		}
		for _, a := range s.Set {
			if row, ok := systemd.RowOf(a.Name); ok && !slices.Contains(all[s.Unit], row.Setting) {
				all[s.Unit] = append(all[s.Unit], row.Setting)
			}
		}
	}
	return all
}

// unitRecords reads what systemd was told of units before bulkhead first set a property of them.
func (c *Controller) unitRecords() (*state.Documents, error) {
	d, err := state.Load(c.Store, state.DocUnits)
	if err == nil && d.Units == nil {
		d.Units = map[string]plan.Kept{}
	}
	return d, err
}

// keepUnits writes down what systemd has been told of the units that a plan is about to change first.
func (c *Controller) keepUnits(ctx context.Context, v *View) error {
	if v.Systemd == nil || v.Systemd.Mute || c.scratch != nil {
		return nil
	}
	records, err := c.unitRecords()
	if err != nil {
		return err
	}
	kept := records.Units
	m, err := c.manager(ctx, v.Facts)
	if err != nil {
		return err
	}
	changed := false
	ours := settings(v.Plan)
	for _, s := range v.Plan.Steps {
		if s.Op != plan.OpKeep {
			continue
		}
		k, known := kept[s.Unit]
		if !known {
			if k.Overrides, err = m.Overrides(s.Unit); err != nil {
				return err
			}
			k.Boot = v.Facts.BootID
		}
		more := slices.DeleteFunc(ours[s.Unit], func(name string) bool { return slices.Contains(k.Ours, name) })
		if !known || k.Group != s.Group || k.Dir != s.Dir.Path || len(more) > 0 {
			k.Group, k.Dir, k.Ours, changed = s.Group, s.Dir.Path, append(k.Ours, more...), true
			kept[s.Unit] = k
		}
	}
	if !changed {
		return nil
	}
	return state.Save(c.Store, state.DocUnits, kept)
}

// forgetUnits drops the records of units that a plan gave back what they had.
func (c *Controller) forgetUnits(v *View, leftOut []plan.Step) error {
	if v.Systemd == nil || c.scratch != nil || !slices.ContainsFunc(v.Plan.Steps, func(s plan.Step) bool { return s.Op == plan.OpRevert }) {
		return nil
	}
	records, err := c.unitRecords()
	if err != nil {
		return err
	}
	kept := records.Units
	for _, s := range v.Plan.Steps {
		failed := slices.ContainsFunc(leftOut, func(l plan.Step) bool { return l.Op == s.Op && l.Unit == s.Unit })
		again := slices.ContainsFunc(v.Plan.Steps, func(o plan.Step) bool { return o.Op == plan.OpKeep && o.Unit == s.Unit })
		if s.Op != plan.OpRevert || failed || again {
			continue
		}
		k := kept[s.Unit]
		k.Ours = slices.DeleteFunc(k.Ours, func(name string) bool { return len(s.Settings) == 0 || slices.Contains(s.Settings, name) })
		if kept[s.Unit] = k; len(k.Ours) == 0 {
			delete(kept, s.Unit)
		}
	}
	return state.Save(c.Store, state.DocUnits, kept)
}

// units is how plans reach systemd.
type units struct {
	*systemd.Manager
	tree  *cgroup.Tree
	facts *host.Facts
}

// keeperPrograms does nothing as long as it is let: the main process of a keeper.
var keeperPrograms = []string{"/usr/bin/sleep", "/bin/sleep"}

// Make starts a slice or a keeper; see apply.Units.
func (u units) Make(ctx context.Context, unit string, d cgroup.Dir) error {
	now, err := u.Unit(ctx, unit)
	if err != nil {
		return err
	}
	accounting, err := systemd.Encode(systemd.Accounting(u.Version(), unitname.TypeOf(unit)))
	if err != nil {
		return err
	}
	switch {
	case now.LoadState == systemd.LoadMasked || now.LoadState == systemd.LoadBadSetting:
		return now.Usable()
	case now.Active() && now.Transient:
		return nil // a directory in another hierarchy came with it
	case now.Active():
		return u.SetProperties(ctx, unit, systemd.Runtime, accounting...)
	case now.FragmentPath != "" && now.LoadState == systemd.LoadLoaded:
		return u.Start(ctx, unit) // an administrator's slice, or a keeper whose process has ended
	}
	t := systemd.Transient{Name: unit, Description: "bulkhead group", Properties: accounting}
	if unitname.TypeOf(unit) == "slice" {
		return u.StartSlice(ctx, t)
	}
	program := keeperPrograms[0]
	for _, p := range keeperPrograms {
		if _, err := os.Stat(p); err == nil {
			program = p
			break
		}
	}
	if row, ok := systemd.RowOf("TasksMax"); ok && row.Known(u.Version(), "service") {
		t.Properties = append(t.Properties, systemd.Property{Name: row.Name, Value: systemd.Infinity}) // DefaultTasksMax= would hold the group's processes
	}
	t.Description, t.Slice, t.Exec = "bulkhead: keeps the processes of a group that are in no unit", path.Base(path.Dir(d.Path)), []string{program, "infinity"}
	t.Controllers = u.delegated()
	return u.StartKeeper(ctx, t)
}

// delegated are the controllers that a keeper's directory gets on cgroup2: those that count. Its group's slice holds the limits; cpuset
// would come to every unit of the host with it.
func (u units) delegated() (names []string) {
	h, ok := u.facts.Hierarchy(plan.Tracker(u.facts))
	if !ok || h.Version != 2 || !u.Version().AtLeast(delegateListSince) {
		return nil
	}
	for _, c := range []string{"blkio", "cpu", "memory", "pids"} {
		if h.Has(c) {
			names = append(names, host.V2Name(c))
		}
	}
	return names
}

// delegateListSince is the release whose Delegate= takes a list of controllers (systemd.resource-control(5), NEWS of 236).
const delegateListSince = 236

// scopeWait is how long systemd may take to notice that a scope is empty. On cgroup v1 the kernel starts a program that
// tells it.
const scopeWait = 5 * time.Second

// endScope waits until a scope whose processes have left has ended. One that systemd does not let go of by itself is
// stopped, which would kill whoever is in it: so nobody may be.
func (u units) endScope(ctx context.Context, unit string) error {
	pause := time.Millisecond
	for end := time.Now().Add(scopeWait); ; pause = min(2*pause, 100*time.Millisecond) {
		now, err := u.Unit(ctx, unit)
		switch {
		case err != nil:
			return err
		case now.ActiveState == "failed":
			return u.ResetFailed(ctx, unit)
		case !now.Active():
			return nil
		}
		for _, h := range u.facts.Hierarchies {
			pids, err := u.tree.Procs(cgroup.Dir{Hierarchy: h.ID, Path: now.ControlGroup})
			if err == nil && len(pids) > 0 {
				return fmt.Errorf("end %s: process %d still runs in it", unit, pids[0])
			}
		}
		if time.Now().After(end) || sleep(ctx, pause) != nil {
			return u.Manager.Stop(ctx, unit)
		}
	}
}

// Stop ends a unit of ours; see apply.Units.
func (u units) Stop(ctx context.Context, unit string) error {
	if unitname.TypeOf(unit) == "scope" {
		return u.endScope(ctx, unit)
	}
	now, err := u.Unit(ctx, unit)
	if err != nil {
		return err
	}
	if now.Active() {
		err = u.Manager.Stop(ctx, unit)
	} else if now.ActiveState == "failed" {
		err = u.ResetFailed(ctx, unit)
	}
	if err == nil && !now.Transient && now.FragmentPath == "" {
		// A slice that systemd had made for a unit was given its limits in files.
		err = u.RestoreOverrides(ctx, unit, nil)
	}
	return err
}

// Set sets properties; see apply.Units. Those of a unit with a file of its own outlive the boot, so that they hold
// from its next start on; those of a slice of ours go with it.
func (u units) Set(ctx context.Context, unit string, set []systemd.Assignment) error {
	properties, err := systemd.Encode(set)
	if err != nil {
		return err
	}
	now, err := u.Unit(ctx, unit)
	if err != nil {
		return err
	}
	if err := now.Usable(); err != nil {
		return err
	}
	lifetime := systemd.Persistent
	if now.FragmentPath == "" {
		lifetime = systemd.Runtime
	}
	return u.SetProperties(ctx, unit, lifetime, properties...)
}

// unasked is why systemd could not be asked, as the error of a verb.
func errUnasked(cause error) error {
	if errors.Is(cause, journal.ErrDamaged) {
		return fail(CodeFailed, "`bulkhead apply` puts it aside and goes on with its copy", "%w", cause)
	}
	if cause == nil {
		cause = errors.New("no answer")
	}
	return fail(CodeFailed, "`systemctl status` tells whether it answers; `bulkhead release` works without", "ask systemd, which owns the groups of this host: %w", cause)
}

// rootOver reads the name of the root group back from a directory that bulkhead made: from the root group's own, or from a
// keeper's, which may be in a slice of an administrator's. Other directories tell nothing: with an empty slice beside a unit of
// system.slice that slice would count as ours.
func rootOver(d cgroup.Dir, kept map[string]plan.Kept) (root string, ok bool) {
	names := strings.Split(strings.TrimPrefix(d.Path, "/"), "/")
	if top := names[0]; len(names) == 1 || isOutermost(top) {
		for _, k := range kept {
			if k.Dir == d.Path {
				return "", false // an administrator's slice that was not there yet
			}
		}
		return rootOf(top), true
	}
	for _, name := range names {
		if isOutermost(name) && unitname.TypeOf(name) == "service" {
			return "", true
		}
		if prefix, _, keeper := strings.Cut(name, "-"); keeper && unitname.TypeOf(name) == "service" {
			root, err := unitname.Unescape(prefix)
			return root, err == nil
		}
	}
	return "", false
}

// isOutermost says whether a name at the top of a hierarchy is that of an outermost group. The slice of the root group of
// earlier versions begins as they do.
func isOutermost(name string) bool {
	return strings.HasPrefix(name, unitname.TopPrefix) && name != state.FormerRoot+".slice"
}

// rootOf reads the name of a root group back from its directory's; "" for an outermost group that has none above it.
func rootOf(top string) string {
	if isOutermost(top) {
		return ""
	}
	if root, ok := strings.CutSuffix(top, ".slice"); ok {
		if name, err := unitname.Unescape(root); err == nil {
			return name
		}
	}
	return top
}

// outsideSlice names the units of a group that are not in its slice, "" for none.
func outsideSlice(v *View, group string) string {
	if v.Systemd == nil {
		return ""
	}
	var names []string
	for _, g := range v.Systemd.Governed {
		if !g.Inside && covers([]string{group}, g.Group) {
			names = append(names, g.Unit)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// refuseOutside says that a group cannot be frozen as a whole.
func refuseOutside(v *View, group string) error {
	if names := outsideSlice(v, group); names != "" {
		return fail(CodeFailed, fmt.Sprintf("`systemctl freeze %s` stops them by themselves; `adopt: next-start` brings them into the group's slice", names),
			"freeze group %q: %s is not in its slice", group, names)
	}
	return nil
}
