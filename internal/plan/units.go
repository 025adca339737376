package plan

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/terminal"
)

// Systemd is what a plan has to know of the systemd that owns the host's cgroup tree.
type Systemd struct {
	Version systemd.Version
	// Mute: it does not answer. Then there are only its files and the kernel's, and nothing but a release is planned.
	Mute bool
	// Governed are the units whose own properties carry a group's limits, by their directory.
	Governed map[string]Governed
	// Main is the main process of each service that a group claims a part of, by unit; it is never moved. As long as it
	// is not known, while the service starts, nobody is taken out.
	Main map[string]int
	// Keepers are the directories of keepers whose process lives.
	Keepers map[string]bool
	// Pinned are the processes that somebody placed by hand: these are taken out of their units without further asking.
	Pinned map[procfs.ID]bool
	// Kept are the units that bulkhead has set properties of, and what systemd was told of them before.
	Kept map[string]Kept
	// Set are the settings that systemd holds of a unit because of bulkhead, by unit: "MemoryMax".
	Set map[string][]string
	// Adopted are the slices that our drop-ins give units, by unit.
	Adopted map[string]string
	// Later are the settings of drop-ins that win over a property of the same name at each daemon-reload, by unit.
	Later map[string][]systemd.FileSetting
	// Own is the memory limit, in bytes, of the files of units that bulkhead has set one of: what they go back to.
	Own map[string]int64
	// Between are the units on their way up or down: who runs in them now says nothing of whose they are.
	Between map[string]bool
}

// unitControllers are the controllers of cgroup v2 that systemd hands down by itself, as the properties of units ask
// for them (cgroup-util.h, CGROUP_MASK_V2; cpuset since 244).
var unitControllers = []string{"blkio", "cpu", "cpuset", "memory", "pids"}

// Governed is a unit that one group claims.
type Governed struct {
	Unit  string
	Group string
	// Inside: it lies in the slice of its group, ours or an administrator's, which holds it; only limits that do not
	// descend are its own.
	Inside bool
}

// Kept is what systemd was told of a unit before bulkhead, for the way back.
type Kept struct {
	Group     string             `json:"group"` // whose limits it carries
	Dir       string             `json:"dir"`   // its directory below a hierarchy's mount
	Boot      string             `json:"boot"`  // in which it was written down
	Overrides []systemd.Override `json:"overrides,omitempty"`
	Ours      []string           `json:"ours,omitempty"` // the settings that bulkhead has ever set of it: "MemoryMax"
}

// Members is the sub-group of a group's keeper in which its loose processes sit. systemd leaves it to us.
const Members = "members"

// tracker is the v1 hierarchy by which systemd itself knows who belongs to which unit.
const tracker = "name=systemd"

// ownedControllers are the v1 controllers in whose hierarchies systemd makes directories for units
// (cgroup-util.h, CGROUP_MASK_V1).
var ownedControllers = []string{"cpu", "cpuacct", "blkio", "memory", "pids", "devices"}

// owned says whether systemd makes the directories of a hierarchy.
func owned(f *host.Facts, h host.Hierarchy) bool {
	return f.Systemd && (h.Version == 2 || h.ID == tracker || slices.ContainsFunc(ownedControllers, h.Has))
}

// Tracks says whether a hierarchy holds no limit and tells systemd who belongs to a unit.
func Tracks(f *host.Facts, h host.Hierarchy) bool {
	return owned(f, h) && len(h.Controllers) == 0
}

// UnitPath is where systemd has a process: its path in the hierarchy by which it knows units.
func UnitPath(p *procfs.Process) string {
	return cmp.Or(p.Cgroups[tracker], p.Cgroups[procfs.UnifiedID])
}

// Govern finds the units that one group claims: their oldest process belongs to it, and so does, or to groups below it,
// whatever else is claimed there that no process of the unit has started. What these start is the unit's, whoever
// claims it, and so is what nobody claims and came later: a database runs commands of its own, and systemd some beside
// it (ExecStartPost=). Of a unit that several claim, or one claims in part, only those processes are moved whose group
// says from_unit.
func (n Names) Govern(classified classify.Result, processes []procfs.Process) map[string]Governed {
	group := make(map[procfs.ID]string, len(classified.Placements))
	for i := range classified.Placements {
		p := &classified.Placements[i]
		group[p.Process.ID] = p.Group
	}
	dirs := make(map[int]string, len(processes))
	for i := range processes {
		if dir, _, ok := n.UnitDir(&processes[i]); ok && !gone(&processes[i]) {
			dirs[processes[i].PID] = dir
		}
	}
	claims := map[string]*claim{}
	for i := range processes {
		p := &processes[i]
		dir := dirs[p.PID]
		if dir == "" || dirs[p.PPID] == dir && p.PPID != p.PID {
			continue // in none, or started by one in it
		}
		if claims[dir] == nil {
			claims[dir] = &claim{oldest: p.ID}
		}
		claims[dir].add(p.ID, group[p.ID])
	}
	theirs := map[string]string{}
	for _, g := range classified.Groups {
		theirs[g.Path] = g.Slice
	}
	governed := map[string]Governed{}
	for dir, c := range claims {
		if c.torn || group[c.oldest] == "" {
			continue
		}
		slice, err := n.slice(c.group)
		if name := theirs[c.group]; name != "" {
			slice, err = unitname.SliceDir(name)
		}
		_, inside := below(slice, dir)
		governed[dir] = Governed{Unit: path.Base(dir), Group: c.group, Inside: err == nil && inside}
	}
	return governed
}

// claim is what the processes of a unit tell that no other of its processes has started.
type claim struct {
	group  string // that holds all that are claimed
	oldest procfs.ID
	torn   bool // no group but the root does
}

func (c *claim) add(id procfs.ID, group string) {
	if id.Start < c.oldest.Start || id.Start == c.oldest.Start && id.PID < c.oldest.PID {
		c.oldest = id
	}
	switch {
	case group == "" || c.torn:
	case c.group == "":
		c.group = group
	default:
		c.group = common(c.group, group)
		c.torn = c.group == RootGroup
	}
}

// common is the innermost group that holds both, "" for the root.
func common(a, b string) string {
	for {
		if _, ok := below(a, b); ok || a == RootGroup {
			return a
		}
		a = parentGroup(a)
	}
}

// layUnits lays a hierarchy that systemd owns: a slice for each group, and in it a service whose sub-group holds the
// group's loose processes. In a flat one, where a limit holds nothing below its directory, that sub-group carries the
// limits.
// Without members nobody is moved in this hierarchy, and systemd makes the rest by itself.
func (l *Layout) layUnits(h host.Hierarchy, t *forest, members bool) error {
	for _, n := range t.nodes {
		if !l.has(n.path) {
			continue
		}
		slice, err := l.names.slice(n.path)
		if theirs, ok := t.slices[n.path]; ok {
			slice, err = unitname.SliceDir(theirs)
			l.slices[slice] = n.path
		}
		if err != nil {
			return err
		}
		l.own[n.path][h.ID] = l.put(h.ID, n.path, slice)
		if n.path == RootGroup || classify.IsOthers(n.path) { // nobody is brought there
			continue
		}
		keeper, err := unitname.KeeperName(l.names.Root, n.path)
		if err != nil {
			return err
		}
		l.put(h.ID, n.path, path.Join(slice, keeper))
		if members {
			l.member[n.path][h.ID] = l.put(h.ID, n.path, path.Join(slice, keeper, Members))
		}
	}
	return nil
}

// shareMembers settles where processes sit in a flat hierarchy: with the nearest group, itself or above it, that has
// a limit there; nobody else is in it at all.
func (l *Layout) shareMembers(hierarchy string, t *forest, asked map[string]asking) {
	own := make(map[string]cgroup.Dir, len(t.nodes))
	for _, n := range t.nodes {
		own[n.path] = l.member[n.path][hierarchy]
		delete(l.member[n.path], hierarchy)
	}
	for _, n := range t.nodes {
		for m := n; m != nil && m.path != RootGroup; m = m.parent {
			if asked[m.path].any {
				l.member[n.path][hierarchy] = own[m.path]
				break
			}
		}
	}
}

func (l *Layout) put(hierarchy, group, at string) cgroup.Dir {
	d := cgroup.Dir{Hierarchy: hierarchy, Path: at}
	l.dirs = append(l.dirs, d)
	l.owner[d] = group
	return d
}

// layGoverned adds the directories of governed units. They are never made or removed.
//
// systemd reckons a unit that is to start in another slice among that slice's as soon as it has read the drop-in, and
// hands controllers down for it there, although the unit runs on where it is: there they would go, and its limits with
// them (measured on 252: cpu.weight of the running unit is no more). So on cgroup v2 an empty slice beside the unit
// holds them until it starts again.
func (l *Layout) layGoverned(h host.Hierarchy) {
	hierarchy := h.ID
	var dirs []string
	for dir := range l.systemd.Governed {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		g := l.systemd.Governed[dir]
		if _, there := l.own[g.Group]; !there {
			continue
		}
		if at := l.names.anchor(dir); h.Version == 2 && !g.Inside && at != "" &&
			(l.adopts[g.Group] || l.systemd.Adopted[g.Unit] != "") {
			if d := (cgroup.Dir{Hierarchy: hierarchy, Path: at}); !l.anchors[d] {
				l.anchors[l.put(hierarchy, RootGroup, at)] = true
			}
		}
		l.governed[l.put(hierarchy, g.Group, dir)] = g
	}
}

// Unit names the unit that systemd makes a directory for, "" for one that is ours alone.
func (l Layout) Unit(d cgroup.Dir) string {
	if !l.owned[d.Hierarchy] || !l.answers {
		return ""
	}
	if name := path.Base(d.Path); slices.Contains([]string{"slice", "service", "scope"}, unitname.TypeOf(name)) {
		return name
	}
	return ""
}

// unit describes the unit of a directory to the knob table.
func (l Layout) unit(d cgroup.Dir) (knob.Unit, bool) {
	name := l.Unit(d)
	return knob.Unit{Name: name, Version: l.systemd.Version}, name != ""
}

// Theirs says whether a directory is that of a unit which bulkhead did not make, so that only what the group asks for
// is written there.
func (l Layout) Theirs(d cgroup.Dir) bool {
	if !l.owned[d.Hierarchy] {
		return false
	}
	_, slice := l.slices[d.Path]
	return slice || l.governed[d].Unit != ""
}

// Outside gives the directories of a group's units that are not in its slice and carry its limits by themselves.
func (l Layout) Outside(group, hierarchy string) []cgroup.Dir {
	var dirs []cgroup.Dir
	for d, g := range l.governed {
		if d.Hierarchy == hierarchy && g.Group == group && !g.Inside {
			dirs = append(dirs, d)
		}
	}
	slices.SortFunc(dirs, byPath)
	return dirs
}

// Place gives the directories in which a process of a group is to sit: the group's own, without those of hierarchies
// in which it stays in its unit, because that carries the limits or because it is not to be taken out of it.
//
// A command of `run` stays in its scope, in the group's slice, wherever the slice's limits reach it. Where a limit
// holds only what sits in the very directory (v1's blkio.throttle) it is with the group's others; systemd has it in the
// scope by another hierarchy.
func (l Layout) Place(p *procfs.Process, group string) map[string]cgroup.Dir {
	member := l.member[group]
	if len(l.owned) == 0 || len(member) == 0 {
		return member
	}
	stays, runs := l.staysInUnit(p, group), l.InRun(p, group)
	if !stays && !runs {
		return member
	}
	rest := make(map[string]cgroup.Dir, len(member))
	for hierarchy, d := range member {
		if !l.owned[hierarchy] || runs && !l.reaches(group, hierarchy, p.Cgroups[hierarchy]) {
			rest[hierarchy] = d
		}
	}
	return rest
}

// InRun says whether a process is in the scope of a command of `run` in the slice of its group.
func (l Layout) InRun(p *procfs.Process, group string) bool {
	dir := l.names.RunDir(UnitPath(p))
	return dir != "" && l.inSlice(group, dir)
}

// inSlice says whether a directory is the group's, and not that of a group below it, by its path in any hierarchy of
// systemd's.
func (l Layout) inSlice(group, dir string) bool {
	for hierarchy := range l.owned {
		owner, ours := l.Group(cgroup.Dir{Hierarchy: hierarchy, Path: dir})
		return ours && owner == group
	}
	return false
}

// reaches says whether the limits of a group's slice hold what sits in a directory.
func (l Layout) reaches(group, hierarchy, dir string) bool {
	return !l.budgets[hierarchy] && l.inSlice(group, dir)
}

// holdsRun says whether a directory is that of a command of `run` whose group is there: it comes with the command and
// goes with it.
func (l Layout) holdsRun(d cgroup.Dir) bool {
	if !l.owned[d.Hierarchy] || !l.names.IsRun(path.Base(d.Path)) {
		return false
	}
	group, ours := l.Group(d)
	_, there := l.own[group]
	return ours && there && group != RootGroup
}

// staysInUnit says whether a process of a group is left in the unit that it is in.
func (l Layout) staysInUnit(p *procfs.Process, group string) bool {
	dir, unit, ok := l.names.UnitDir(p)
	if !ok {
		return false
	}
	g, governed := l.systemd.Governed[dir]
	if _, within := below(g.Group, group); governed && (g.Group == group || !within) {
		return true
	}
	if unitname.TypeOf(unit) == "scope" {
		return false // nobody but its processes holds a scope together
	}
	main := l.systemd.Main[unit]
	return !l.fromUnit[group] && !l.systemd.Pinned[p.ID] || main == 0 || main == p.PID
}

// Stuck says which unit keeps a process out of its group, "" for none: it is its main process, or a part of a service
// out of which the group takes nobody.
func (l Layout) Stuck(p *procfs.Process, group string) string {
	dir, unit, ok := l.names.UnitDir(p)
	if g := l.systemd.Governed[dir]; len(l.owned) == 0 || !ok || g.Group == group && g.Unit != "" ||
		!l.staysInUnit(p, group) {
		return ""
	}
	return unit
}

// noteUnits says what the limits of a group do not hold because its processes sit in several units.
func (d *desired) noteUnits(in *Input) {
	if in.Systemd == nil {
		return
	}
	outside := map[string][]string{} // group → units that carry its limits by themselves
	for _, g := range in.Systemd.Governed {
		if !g.Inside && d.forest.byPath[g.Group] != nil && g.Group != RootGroup {
			outside[g.Group] = append(outside[g.Group], g.Unit)
		}
	}
	loose := d.noteStuck(in)
	d.loose = loose
	for _, n := range d.forest.nodes {
		units := outside[n.path]
		if len(units) == 0 {
			continue
		}
		slices.Sort(units)
		if hasTotal(n.settings) && apart(n.path, outside, loose) > 1 {
			d.notes = append(d.notes, Note{Group: n.path, NotEnforced: true, Text: fmt.Sprintf(
				"its limits hold %s and the rest of the group each for itself, not together: %s",
				strings.Join(units, ", "), d.whenTogether(n.path, in, units))})
		}
		if n.parent != nil && n.parent.path != RootGroup && hasTotal(n.parent.settings) {
			d.notes = append(d.notes, Note{Group: n.parent.path, NotEnforced: true, Text: fmt.Sprintf(
				"its limits do not cover %s, which is not in its slice: %s", strings.Join(units, ", "),
				d.whenTogether(n.path, in, units))})
		}
		for _, key := range []policy.Key{policy.KeyMemoryMin, policy.KeyMemoryLow} {
			if s, ok := n.settings.Get(key, ""); ok && !isRoleDefault(s) {
				d.notes = append(d.notes, Note{Group: n.path, Key: key, NotEnforced: true, Text: fmt.Sprintf(
					"%s protects %s only as far as the slice that it is in is protected: `adopt: next-start` brings "+
						"it into the group's", key, strings.Join(units, ", "))})
			}
		}
	}
}

// noteLater names the files that take limits of ours away at each daemon-reload.
func (p *planner) noteLater() {
	if p.in.Systemd == nil {
		return
	}
	told := map[string]bool{}
	for _, dir := range p.d.layout.dirs {
		unit := p.d.layout.Unit(dir)
		later := p.in.Systemd.Later[unit]
		if len(later) == 0 || !p.d.layout.Theirs(dir) {
			continue
		}
		for _, v := range p.d.values[dir] {
			s := Step{Dir: dir, File: v.file, Key: v.key, New: v.text}
			p.setUnit(&s, v.row)
			for _, a := range s.Set {
				row, known := systemd.RowOf(a.Name)
				for _, l := range later {
					if text := unit + l.Setting + l.File; known && l.Setting == row.Setting && !told[text] {
						told[text] = true
						p.notes = append(p.notes, Note{Group: p.d.layout.owner[dir], Key: v.setting.Key, Fragile: true,
							Text: fmt.Sprintf(
								"at each daemon-reload %s gives %s its own %s=%s, until the agent sets the group's "+
									"again: take that line out, or give the file a name that sorts before 50-%s.conf",
								l.File, unit, l.Setting, l.Value, l.Setting)})
					}
				}
			}
		}
	}
}

// noteStuck names the processes that are left in a unit which does not carry their group's limits, and counts by group
// those that are in none.
func (d *desired) noteStuck(in *Input) (loose map[string]int) {
	loose = map[string]int{}
	stuck := map[string][]string{}
	for i := range in.Classified.Placements {
		p := &in.Classified.Placements[i]
		switch unit := d.layout.Stuck(&p.Process, p.Group); {
		case unit != "":
			stuck[p.Group] = append(stuck[p.Group],
				fmt.Sprintf("process %d (%s) of %s", p.Process.PID, terminal.Printable(p.Process.Comm), unit))
		case !d.layout.staysInUnit(&p.Process, p.Group):
			loose[p.Group]++
		}
	}
	for _, n := range d.forest.nodes {
		if all := stuck[n.path]; len(all) > 0 {
			d.notes = append(d.notes, Note{Group: n.path, NotEnforced: true, Text: fmt.Sprintf(
				"no limit of the group holds %s: it is a part of a unit; `from_unit: true` takes it out of there, "+
					"and out of the unit's limits and its stop", some(all))})
		}
	}
	return loose
}

// apart counts the places in which a group's processes sit apart from each other.
func apart(group string, outside map[string][]string, loose map[string]int) int {
	n := 0
	for g, units := range outside {
		if _, in := below(group, g); in {
			n += len(units)
		}
	}
	for g := range loose {
		if _, in := below(group, g); in {
			n++
		}
	}
	return n
}

// whenTogether says when a unit comes under its group's slice.
func (d *desired) whenTogether(group string, in *Input, units []string) string {
	for _, u := range units {
		if in.Systemd.Adopted[u] == "" && !d.layout.adopts[group] {
			return "`adopt: next-start` brings it there at its next start"
		}
	}
	return "that waits for its next start"
}

// hasTotal says whether a group asks for a limit that counts over all of its processes.
func hasTotal(s policy.Settings) bool {
	return slices.ContainsFunc(s, func(s policy.Setting) bool {
		return !isRoleDefault(s) && s.Key != policy.KeyOOMScoreAdj && s.Key != policy.KeyMemoryMin &&
			s.Key != policy.KeyMemoryLow
	})
}

// some names the first of many.
func some(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}
