package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/convert/inforce"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/transaction"
)

// InForce gives the limits that hold on the host now and that bulkhead has not set: those of control groups, and those
// of systemd's units by their properties, which systemd writes to the groups of units.
func InForce(ctx context.Context, c *transaction.Controller) (groups []inforce.Group, units []unitfile.LiveUnit,
	err error) {
	facts, err := c.Host.Facts()
	if err != nil {
		return nil, nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
	}
	made := map[cgroup.Dir]bool{}
	if c.Store != nil {
		made = c.Store.InBoot(facts.BootID).Made()
	}
	procs, err := c.Host.Proc.Processes(procfs.Options{})
	if err != nil {
		return nil, nil, api.Errorf(api.CodeFailed, "", "read the process table: %w", err)
	}
	l := liveLook{c: c, facts: facts, tree: c.TreeOf(facts), made: made, byPath: map[string]*inforce.Group{}}
	for _, h := range facts.Hierarchies {
		if err := l.hierarchy(h); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.byPath)) {
		live := l.byPath[name]
		live.Processes = whoIsIn(procs, name)
		groups = append(groups, *live)
	}
	m, err := c.Manager(ctx, facts)
	if err != nil || m == nil {
		return groups, nil, err
	}
	units, err = liveUnits(ctx, m)
	return groups, units, err
}

// whoIsIn names the programs in a group: "2 processes now: mysqld, mysqldump".
func whoIsIn(procs []procfs.Process, path string) string {
	count, names := 0, []string(nil)
	for _, p := range procs {
		for _, at := range p.Cgroups {
			if at == path {
				count++
				if !slices.Contains(names, p.Comm) {
					names = append(names, p.Comm)
				}
				break
			}
		}
	}
	switch slices.Sort(names); count {
	case 0:
		return "no process now"
	case 1:
		return "1 process now: " + names[0]
	}
	return fmt.Sprintf("%d processes now: %s", count, strings.Join(names[:min(len(names), 5)], ", "))
}

// liveLook gathers the groups of all hierarchies by their paths.
type liveLook struct {
	c      *transaction.Controller
	facts  *host.Facts
	tree   *cgroup.Tree
	made   map[cgroup.Dir]bool
	byPath map[string]*inforce.Group
}

func (l *liveLook) hierarchy(h host.Hierarchy) error {
	var rows []*knob.Row
	for _, r := range knob.RowsFor(l.facts) {
		if r.HierarchyID(l.facts) == h.ID {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	dirs, err := l.tree.Walk(cgroup.Dir{Hierarchy: h.ID, Path: "/"})
	if err != nil {
		return api.Errorf(api.CodeFailed, "", "look at the groups of %s: %w", h.ID, err)
	}
	for _, d := range dirs {
		if d.Path == "/" || l.made[d] || l.facts.Systemd && ofUnit(d.Path) {
			continue
		}
		if err := l.dir(h, d, rows); err != nil {
			return err
		}
	}
	return nil
}

// ofUnit says whether systemd owns a directory: it is a unit's, or lies in one.
func ofUnit(path string) bool {
	for element := range strings.SplitSeq(path, "/") {
		if unitname.TypeOf(element) != "" {
			return true
		}
	}
	return false
}

// dir adds the values of a directory that are not what every new one has.
func (l *liveLook) dir(h host.Hierarchy, d cgroup.Dir, rows []*knob.Row) error {
	var names []string
	byName := map[string]*knob.Row{}
	add := func(name string, r *knob.Row) { names, byName[name] = append(names, name), r }
	for _, r := range rows {
		if !r.PerSize {
			add(r.File, r)
			continue
		}
		for _, size := range l.facts.HugePageSizes {
			add(r.Name(policy.HugePageName(size)), r)
		}
	}
	values, err := l.tree.ReadMany(d, names)
	if errors.Is(err, cgroup.ErrGone) {
		return nil
	}
	if err != nil {
		return api.Errorf(api.CodeFailed, "", "look at %s: %w", d, err)
	}
	above, err := l.tree.ReadMany(d.Parent(), names)
	if err != nil {
		above = nil
	}
	live := cmp.Or(l.byPath[d.Path], &inforce.Group{Path: d.Path})
	for _, name := range names {
		if text := values[name]; limits(byName[name], text, above[name]) {
			live.Files = append(live.Files, inforce.File{Path: l.tree.Abs(d) + "/" + name, Name: name, Text: text})
		}
	}
	if len(live.Owners) == 0 {
		live.Owners = l.owners(h, cgroup.Owners{Tree: l.tree}.Of(d, h.Version))
	}
	if len(live.Files) > 0 || len(live.Owners) > 0 {
		l.byPath[d.Path] = live
	}
	return nil
}

// limits says whether a file holds something else than in every new directory.
func limits(row *knob.Row, text, above string) bool {
	switch {
	case text == "":
		return false
	case row.PerDevice:
		return len(row.Devices(text)) > 0
	case (row.Seed || row.Inherits) && row.Same(above, text):
		return false
	}
	return !row.Same(row.Default, text)
}

// owners gives who beside root owns the files of a group.
func (l *liveLook) owners(h host.Hierarchy, values map[string]string) (owners []policy.Owner) {
	read := func(name string, may ...policy.Right) {
		var uid, gid int
		if _, err := fmt.Sscanf(values[name], "%d:%d", &uid, &gid); err != nil || uid == 0 && gid == 0 {
			return
		}
		owners = append(owners, policy.Owner{User: l.c.Host.Users.UserName(uid),
			UnixGroup: l.c.Host.Users.GroupName(gid), May: may})
	}
	read(cgroup.OwnerOf(cgroup.MemberFiles(h.Version)[0]), policy.MayRun, policy.MayMove)
	read(cgroup.OwnedDir, policy.MaySet)
	return owners
}

// liveUnits asks systemd for the limits of its slices and services.
func liveUnits(ctx context.Context, m *systemd.Manager) (units []unitfile.LiveUnit, err error) {
	all, err := m.Units(ctx)
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "ask systemd for its units: %w", err)
	}
	for _, s := range all {
		kind := unitname.TypeOf(s.Name)
		if s.LoadState != "loaded" || s.ActiveState != "active" || kind != "slice" && kind != "service" ||
			s.Name == "-.slice" {
			continue
		}
		u, err := m.Unit(ctx, s.Name)
		if errors.Is(err, systemd.ErrNoUnit) {
			continue
		}
		if err != nil {
			return nil, api.Errorf(api.CodeFailed, "", "ask systemd for %s: %w", s.Name, err)
		}
		overrides, err := m.Overrides(s.Name)
		if err != nil {
			return nil, api.Errorf(api.CodeFailed, "", "read what systemd was told of %s: %w", s.Name, err)
		}
		said, err := m.FileSettings(s.Name, overrides)
		if err != nil {
			return nil, api.Errorf(api.CodeFailed, "", "read the files of %s: %w", s.Name, err)
		}
		if lines := unitLines(u, said); len(lines) > 0 {
			units = append(units, unitfile.LiveUnit{Name: s.Name, Lines: lines})
		}
	}
	return units, nil
}

// unitLines gives the properties of a unit as its file would have them. A limit of tasks and a policy for the OOM
// killer count where the unit itself asks for them: systemd has a default for both.
func unitLines(u *systemd.Unit, said []systemd.FileSetting) (lines []string) {
	asked := func(setting string) bool {
		return slices.ContainsFunc(said, func(s systemd.FileSetting) bool { return s.Setting == setting })
	}
	for _, row := range systemd.Table() {
		value, there := u.Properties[row.Name]
		if !there || row.Form == systemd.FormFlag || (row.Setting == "TasksMax" || row.Setting == "OOMPolicy") &&
			!asked(row.Setting) {
			continue
		}
		text, err := row.Decode(value)
		if err != nil || text == "max" || text == "" {
			continue
		}
		more, err := row.Lines(text)
		if err != nil {
			continue
		}
		for _, line := range more {
			if !strings.HasSuffix(line, "=") && !strings.HasSuffix(line, "=infinity") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
