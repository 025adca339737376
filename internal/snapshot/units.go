package snapshot

import (
	"context"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// observeUnits asks systemd and its files what a plan has to know of units. Without an answer v.Systemd stays nil, and
// nothing but a release is planned.
func (r *Reader) observeUnits(ctx context.Context, v *Snapshot, releasing bool) {
	m, err := r.Manager(ctx, v.Facts)
	if err != nil {
		v.Unasked = err
		return
	}
	if m == nil {
		return
	}
	if releasing { // by the files alone it would not be seen that nobody is there to take what is asked
		if v.Unasked = m.Ping(ctx); v.Unasked != nil {
			return
		}
	}
	s := &layout.Systemd{
		Version: m.Version(), Governed: v.Names.Govern(v.Classified, v.Observed.Processes),
		Kept: map[string]layout.Kept{}, Adopted: map[string]string{},
		Keepers: v.Names.Keepers(v.Observed.Processes), Pinned: map[procfs.ID]bool{},
	}
	for _, p := range v.Classified.Placements {
		if p.By == classify.ByPin {
			s.Pinned[p.Process.ID] = true
		}
	}
	if v.records.wrong != nil {
		v.Unasked = v.records.wrong
		return
	}
	known := &state.Documents{Units: maps.Clone(v.records.units)}
	maps.Copy(s.Kept, known.Prune(state.Moment{Boot: v.Facts.BootID}).Units)
	ask := askOnce(ctx, m)
	findStale(v, s, m, ask)
	dropIns, err := m.DropIns()
	if err != nil {
		v.Unasked = err
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
		v.Unasked = err
		return
	}
	if s.Between, err = between(v, s, ask); err != nil {
		v.Unasked = err
		return
	}
	s.Set = settingsOf(r.Log, s, m)
	s.Later, s.Own = filesOf(r.Log, v, s, m)
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

// findStale takes records of units out that are gone, with nothing of ours left in systemd's files: commands that
// ended, and other units without a file.
func findStale(v *Snapshot, s *layout.Systemd, m *systemd.Manager, ask unitFunc) {
	for unit, k := range s.Kept {
		if slices.ContainsFunc(v.Facts.Hierarchies, func(h host.Hierarchy) bool {
			there, err := v.Tree.Exists(cgroup.Dir{Hierarchy: h.ID, Path: k.Dir})
			return there && err == nil && k.Dir != ""
		}) {
			continue
		}
		u, err := ask(unit)
		if err != nil || u.Active() ||
			u.LoadState != systemd.LoadNotFound && (unitname.TypeOf(unit) != "slice" || u.FragmentPath != "") {
			continue
		}
		if left, err := m.Overrides(unit); err == nil && len(left) == 0 && len(k.Overrides) == 0 {
			delete(s.Kept, unit)
			v.Stale = append(v.Stale, unit)
		}
	}
}

// filesOf reads what the files of the units say that carry limits: drop-ins that win over a property, and memory limits
// of their own.
func filesOf(
	log *slog.Logger, v *Snapshot, s *layout.Systemd, m *systemd.Manager,
) (later map[string][]systemd.FileSetting, own map[string]int64) {
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
			log.Warn("look at the files of a unit", "unit", unit, "err", err)
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
			log.Warn("look at the files of a unit", "unit", unit, "err", err)
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

// between asks, for each unit that carries limits of ours or is adopted and is claimed by nobody now, whether it is on
// its way up or down: then who is in it says nothing of whose it is (ExecStartPre=, a server that has not been started
// yet), and its group has its directories until it is there. Nor does it as long as a server in it does not listen, and
// so has no name yet, or when the policy does not fit the host.
func between(v *Snapshot, s *layout.Systemd, ask unitFunc) (map[string]bool, error) {
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
// executables, does not show as what it is to be. Runs says that the table shows a process in it; without one it has
// ended, unless it is about to start, again for instance.
func isBetween(u *systemd.Unit, exes map[int]string, runs bool) bool {
	if !runs {
		return u.Queued || u.ActiveState == "activating" || u.ActiveState == "deactivating"
	}
	exe, seen := exes[u.MainPID]
	return u.ActiveState != "active" && u.ActiveState != "reloading" ||
		u.MainPID != 0 && (!seen || slices.Contains(executors, exe))
}

// mainProcesses asks for the main process of each service that a group which takes processes out of units claims in
// part.
func mainProcesses(v *Snapshot, s *layout.Systemd, ask unitFunc) (map[string]int, error) {
	mains := map[string]int{}
	takes := map[string]bool{}
	for _, g := range v.Classified.Groups {
		takes[g.Path] = g.FromUnit
	}
	for i := range v.Classified.Placements {
		p := &v.Classified.Placements[i]
		dir, unit, ok := v.Names.UnitDir(&p.Process)
		if _, done := mains[unit]; !ok || done || !takes[p.Group] && p.By != classify.ByPin ||
			s.Governed[dir].Group == p.Group {
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
func settingsOf(log *slog.Logger, s *layout.Systemd, m *systemd.Manager) map[string][]string {
	set := map[string][]string{}
	for unit, k := range s.Kept {
		now, err := m.Overrides(unit)
		if err != nil {
			log.Warn("look at what systemd holds of a unit", "unit", unit, "err", err)
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

// muteUnits is what can be known without systemd: the record of the units that bulkhead has set properties of.
func (r *Reader) muteUnits(known records) *layout.Systemd {
	if known.wrong != nil {
		r.Log.Warn("releasing without the record of units", "err", known.wrong)
	}
	s := &layout.Systemd{Mute: true, Kept: map[string]layout.Kept{}}
	maps.Copy(s.Kept, known.units)
	return s
}
