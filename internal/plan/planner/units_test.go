package planner

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
)

// systemdHosts are hosts whose tree systemd owns, as Debian 12 mounts it.
var systemdHosts = map[string]func() *host.Facts{
	"unified": func() *host.Facts { return ofSystemd(v2("blkio", "cpu", "cpuset", "hugetlb", "memory", "pids")) },
	"hybrid": func() *host.Facts {
		return ofSystemd(v1("blkio"), v1("cpu", "cpuacct"), v1("cpuset"), v1("memory"), v1("pids"), namedSystemd(),
			v2())
	},
	"legacy": func() *host.Facts {
		return ofSystemd(v1("blkio"), v1("cpu", "cpuacct"), v1("cpuset"), v1("memory"), v1("pids"), namedSystemd())
	},
}

func namedSystemd() host.Hierarchy {
	return host.Hierarchy{ID: "name=systemd", Version: 1, Mount: "/sys/fs/cgroup/systemd", Root: "/"}
}

func ofSystemd(hierarchies ...host.Hierarchy) *host.Facts {
	f := factsWith(hierarchies...)
	f.Systemd = true
	return f
}

// inUnit is a process of a unit: in systemd's own hierarchies in its directory, elsewhere at the top.
func inUnit(pid int, comm, dir string, f *host.Facts) procfs.Process {
	p := proc(pid, 1, comm, f)
	for _, h := range f.Hierarchies {
		if layout.Owned(f, h) {
			p.Cgroups[h.ID] = dir
		}
	}
	return p
}

// answers puts into an input what systemd says of it: the units that are governed, and a process for each keeper.
func answers(in *plan.Input, version int) {
	in.Systemd = &layout.Systemd{Version: systemd.Version{Number: version},
		Governed: (layout.Names{Root: "bulkhead"}).Govern(in.Classified, in.Observed.Processes)}
	l := layout.New(in.Facts, layout.Names{Root: in.Host.Root},
		layout.NewForest(in.Facts, in.Host, in.Classified.Groups), in.Systemd)
	pid := 9000
	for _, d := range l.Dirs() {
		if path.Base(d.Path) == layout.Members && d.Hierarchy == layout.Tracker(in.Facts) {
			pid++
			in.Observed.Processes = append(in.Observed.Processes, inUnit(pid, "sleep", path.Dir(d.Path), in.Facts))
		}
	}
	in.Systemd.Keepers = (layout.Names{Root: "bulkhead"}).Keepers(in.Observed.Processes)
}

// A host on which everything is as wanted has nothing to do, a unit beside its group's slice and one in it included.
func TestNothingToDoUnderSystemd(t *testing.T) {
	for name, facts := range systemdHosts {
		for _, version := range []int{219, 247, 252, 257} {
			t.Run(name, func(t *testing.T) {
				f := facts()
				in := input(f,
					group("a", settings("group", "cpu.weight", policy.Weight(10), "cpu.limit", policy.Cores(1333333),
						"memory.max", policy.Bytes(1<<30), "tasks", policy.Count(9))),
					group("a/x", settings("group", "io.read.bandwidth@8:0", policy.Rate(1<<20))),
					group("b", settings("group", "cpu.cpus", policy.IDs{Set: idset.New(1, 2)})))
				member(&in, inUnit(10, "mysqld", "/system.slice/mariadb.service", f), "a")
				member(&in, inUnit(11, "postgres", "/bulkhead.slice/bulkhead-b.slice/postgresql.service", f), "b")
				member(&in, proc(12, 1, "backup", f), "a/x")
				answers(&in, version)
				inPlaceUnderSystemd(&in)
				wantSteps(t, Make(in))
			})
		}
	}
}

// inPlaceUnderSystemd is inPlace, with processes that stay in their units left there.
func inPlaceUnderSystemd(in *plan.Input) {
	at := map[procfs.ID]map[string]string{}
	for _, p := range in.Observed.Processes {
		at[p.ID] = maps.Clone(p.Cgroups)
	}
	inPlace(in)
	l := layout.New(in.Facts, layout.Names{Root: in.Host.Root},
		layout.NewForest(in.Facts, in.Host, in.Classified.Groups), in.Systemd)
	settle := func(p *procfs.Process, group string) {
		placed := procfs.Process{Cgroups: at[p.ID]}
		for h := range p.Cgroups {
			if d, moves := l.Place(&placed, group)[h]; moves {
				p.Cgroups[h] = d.Path
			} else {
				p.Cgroups[h] = at[p.ID][h]
			}
		}
	}
	for i := range in.Classified.Placements {
		pl := &in.Classified.Placements[i]
		pl.Process.Cgroups = maps.Clone(pl.Process.Cgroups)
		settle(&pl.Process, pl.Group)
		for j := range in.Observed.Processes {
			if in.Observed.Processes[j].ID == pl.Process.ID {
				in.Observed.Processes[j].Cgroups = pl.Process.Cgroups
			}
		}
	}
}

// From nothing on cgroup v2: slices from the top, a keeper and its sub-group for each group, the unit's own properties
// after what it had was recorded, and only the loose process moves.
func TestFirstPlanUnderSystemd(t *testing.T) {
	f := systemdHosts["unified"]()
	in := input(f, group("a", settings("group", "memory.max", policy.Bytes(1<<30))))
	in.Host.Weight = 100
	member(&in, inUnit(10, "mysqld", "/system.slice/mariadb.service", f), "a")
	member(&in, inUnit(11, "backup", "/user.slice/user-0.slice/session-1.scope", f), "a")
	in.Observed.Dirs[cgroup.Dir{Hierarchy: "unified",
		Path: "/system.slice/mariadb.service"}] = map[string]string{"memory.max": "max", "pids.max": "4915"}
	in.Systemd = &layout.Systemd{Version: systemd.Version{Number: 252},
		Governed: (layout.Names{Root: "bulkhead"}).Govern(in.Classified, in.Observed.Processes)}
	const slice = "unified:/bulkhead.slice/bulkhead-a.slice"
	p := Make(in)
	wantSteps(t, p,
		"mkdir unified:/bulkhead.slice", "mkdir "+slice, "mkdir "+slice+"/bulkhead-a.service",
		"mkdir "+slice+"/bulkhead-a.service/members",
		"keep mariadb.service",
		"write unified:/system.slice/mariadb.service/memory.max 1073741824", "write "+slice+"/memory.max 1073741824",
		"move "+slice+"/bulkhead-a.service/members backup")
	units := map[string]string{}
	for _, s := range p.Steps {
		if s.Kind == cgroup.KindFile {
			var set []string
			for _, value := range []string{s.Do, s.Undo} {
				for _, a := range must(systemd.Assignments(value)) {
					set = append(set, a.String())
				}
			}
			units[s.Unit] = strings.Join(set, " ")
		}
	}
	want := map[string]string{"bulkhead-a.slice": "MemoryMax=1073741824",
		"mariadb.service": "MemoryMax=1073741824 MemoryMax=max"}
	if !maps.Equal(units, want) {
		t.Errorf("properties %q, want %q", units, want)
	}
	if !slices.ContainsFunc(p.Notes, func(n plan.Note) bool {
		return n.NotEnforced && strings.Contains(n.Text, "mariadb.service and the rest of the group")
	}) {
		t.Errorf("nothing says that the limit does not hold both together: %+v", p.Notes)
	}
	if strings.Contains(plan.Render(p, plan.RenderOptions{Facts: f}), "%!") {
		t.Error(plan.Render(p, plan.RenderOptions{Facts: f}))
	}
}

// A part of a service stays where it is unless the group says otherwise; the service's main process always does.
func TestFromUnit(t *testing.T) {
	const dir = "/system.slice/cron.service"
	for name, test := range map[string]struct {
		from  bool
		moved []string
	}{
		"not asked": {false, nil},
		"asked":     {true, []string{"mysqldump"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := systemdHosts["unified"]()
			g := group("a", settings("group", "cpu.limit", policy.Cores(policy.One)))
			g.FromUnit = test.from
			in := input(f, g)
			member(&in, inUnit(10, "cron", dir, f), "a")
			member(&in, inUnit(11, "mysqldump", dir, f), "a")
			in.Observed.Processes = append(in.Observed.Processes, inUnit(5, "other", dir, f))
			in.Systemd = &layout.Systemd{Version: systemd.Version{Number: 252},
				Main:     map[string]int{"cron.service": 10},
				Governed: (layout.Names{Root: "bulkhead"}).Govern(in.Classified, in.Observed.Processes)}
			var moved []string
			p := Make(in)
			for _, s := range p.Steps {
				if s.Moves() {
					moved = append(moved, s.Name)
				}
			}
			if !slices.Equal(moved, test.moved) {
				t.Errorf("moved %v, want %v", moved, test.moved)
			}
			if !slices.ContainsFunc(p.Notes, func(n plan.Note) bool {
				return n.NotEnforced &&
					strings.Contains(n.Text, "cron.service")
			}) {
				t.Errorf("nothing says what is not held: %+v", p.Notes)
			}
		})
	}
}

// Adoption is a drop-in, taken away again when it is asked for no more, and kept for a unit that does not run now.
func TestAdopt(t *testing.T) {
	f := systemdHosts["unified"]()
	planned := func(adopt string, running bool, now map[string]string) plan.Plan {
		g := group("a", settings("group", "cpu.limit", policy.Cores(policy.One)))
		g.Adopt = adopt
		in := input(f, g)
		if running {
			member(&in, inUnit(10, "mysqld", "/system.slice/mariadb.service", f), "a")
		}
		in.Systemd = &layout.Systemd{Version: systemd.Version{Number: 252}, Adopted: now,
			Governed: (layout.Names{Root: "bulkhead"}).Govern(in.Classified, in.Observed.Processes)}
		return Make(in)
	}
	ours := map[string]string{"mariadb.service": "bulkhead-a.slice"}
	for name, test := range map[string]struct {
		plan plan.Plan
		want string // new line of the drop-in; "-" for no step
	}{
		"adopted":         {planned(policy.AdoptNextStart, true, nil), "Slice=bulkhead-a.slice"},
		"adopted already": {planned(policy.AdoptNextStart, true, ours), "-"},
		"not running now": {planned(policy.AdoptNextStart, false, ours), "-"},
		"adopted no more": {planned("", true, ours), ""},
		"never asked":     {planned("", true, nil), "-"},
	} {
		got := "-"
		for _, s := range test.plan.Steps {
			if s.Kind == unitfiles.KindDropIn {
				got = s.New
			}
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// What somebody else runs in a unit that carries limits of ours gives them back; what a service runs before its server
// does not.
func TestUnitThatStartsKeepsItsLimits(t *testing.T) {
	const unit = "mariadb.service"
	f := systemdHosts["unified"]()
	in := input(f, group("b", settings("group", "tasks", policy.Count(9))))
	in.Observed.Processes = append(in.Observed.Processes, inUnit(10, "sh", "/system.slice/"+unit, f))
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	in.Systemd.Kept = map[string]layout.Kept{unit: {Group: "mysql3306", Dir: "/system.slice/" + unit,
		Ours: []string{"MemoryMax"}}}
	in.Systemd.Adopted = map[string]string{unit: "bulkhead-mysql3306.slice"}
	wantSteps(t, Make(in), "drop-in mariadb.service", "revert mariadb.service")
	in.Systemd.Between = map[string]bool{unit: true}
	wantSteps(t, Make(in))
}

// A group keeps its directories while its unit is restarted: its instance is not there for a moment.
func TestGroupOfAUnitThatIsRestarted(t *testing.T) {
	const unit = "mariadb.service"
	f := systemdHosts["unified"]()
	in := input(f, group("mysql3306", settings("group", "tasks", policy.Count(9))),
		group("b", settings("group", "tasks", policy.Count(9))))
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	in.Classified.Groups = in.Classified.Groups[1:]
	in.Systemd.Kept = map[string]layout.Kept{unit: {Group: "mysql3306", Dir: "/system.slice/" + unit,
		Ours: []string{"TasksMax"}}}
	removes := func() bool {
		return slices.ContainsFunc(Make(in).Steps,
			func(s plan.Step) bool { return s.Removes() && s.Group == "mysql3306" })
	}
	if !removes() {
		t.Error("the directories of a group that is gone stay")
	}
	in.Systemd.Between = map[string]bool{unit: true}
	wantSteps(t, Make(in))
}

// At boot a slice that a unit starts in has no limits before the agent has seen the server, so the unit has them, too.
func TestUnitInItsSliceCarriesTheLimitsToo(t *testing.T) {
	const dir = "/bulkhead.slice/bulkhead-a.slice/db.service"
	for name, facts := range systemdHosts {
		t.Run(name, func(t *testing.T) {
			f := facts()
			in := input(f, group("a", settings("group", "cpu.limit", policy.Cores(2*policy.One), "memory.max",
				policy.Bytes(1<<30), "tasks", policy.Count(9))))
			member(&in, inUnit(10, "mysqld", dir, f), "a")
			answers(&in, 252)
			written := map[string]bool{}
			for _, s := range Make(in).Steps {
				if s.File().Dir.Path == dir && s.Unit == "db.service" {
					written[strings.Split(s.File().Name, ".")[0]] = true
				}
			}
			if !maps.Equal(written, map[string]bool{"cpu": true, "memory": true, "pids": true}) {
				t.Errorf("of the unit's own are written %v", written)
			}
		})
	}
}

// A slice of an administrator's is there before the agent, with the limits: what runs in it is held by it, not one by
// one.
func TestUnitInAnAdministratorsSliceIsHeldByThat(t *testing.T) {
	const dir = "/scylla.slice/scylla-helper.slice/agent.service"
	for name, facts := range systemdHosts {
		t.Run(name, func(t *testing.T) {
			f := facts()
			g := group("h", settings("group", "cpu.limit", policy.Cores(2*policy.One), "memory.max",
				policy.Bytes(1<<30), "tasks", policy.Count(9)))
			g.Slice = "scylla-helper.slice"
			in := input(f, g)
			member(&in, inUnit(10, "agent", dir, f), "h")
			answers(&in, 252)
			slice := 0
			for _, s := range Make(in).Steps {
				if f := s.File(); f.Path == dir {
					t.Errorf("%s is written", f)
				}
				if s.Kind == cgroup.KindFile && s.Unit == g.Slice {
					slice++
				}
			}
			if slice == 0 {
				t.Error("the slice gets no limits")
			}
		})
	}
}

// A slice in which an adopted unit is about to start is not taken from under it, though its group's instance is not
// there yet.
func TestSliceOfAWaitingUnitStays(t *testing.T) {
	f := systemdHosts["unified"]()
	in := input(f, group("b", settings("group", "tasks", policy.Count(9))))
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	in.Observed.Dirs[cgroup.Dir{Hierarchy: "unified",
		Path: "/bulkhead.slice/bulkhead-mysql3306.slice"}] = map[string]string{}
	in.Systemd.Adopted = map[string]string{"mariadb.service": "bulkhead-mysql3306.slice"}
	wantSteps(t, Make(in))
}

// What a unit carries is recorded under the group that it carries it for now.
func TestUnitThatChangesItsGroup(t *testing.T) {
	f := systemdHosts["unified"]()
	in := input(f, group("new", settings("group", "tasks", policy.Count(9))))
	member(&in, inUnit(10, "mysqld", "/system.slice/mariadb.service", f), "new")
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	in.Systemd.Kept = map[string]layout.Kept{"mariadb.service": {Group: "old", Dir: "/system.slice/mariadb.service"}}
	wantSteps(t, Make(in), "keep mariadb.service")
	in.Systemd.Kept = map[string]layout.Kept{"mariadb.service": {Group: "new", Dir: "/system.slice/mariadb.service"}}
	wantSteps(t, Make(in))
}

// Until an adopted unit starts again an empty slice beside it keeps the controllers there that its limits need.
func TestAnchorOfAnAdoptedUnit(t *testing.T) {
	for name, anchored := range map[string]bool{"unified": true, "hybrid": false, "legacy": false} {
		f := systemdHosts[name]()
		g := group("a", settings("group", "cpu.weight", policy.Weight(300)))
		g.Adopt = policy.AdoptNextStart
		in := input(f, g)
		member(&in, inUnit(10, "mysqld", "/system.slice/mariadb.service", f), "a")
		answers(&in, 252)
		got := brief(Make(in))
		for _, want := range []string{"mkdir unified:/system.slice/system-bulkhead.slice",
			"write unified:/system.slice/system-bulkhead.slice/cpu.weight 99"} {
			if slices.Contains(got, want) != anchored {
				t.Errorf("%s: %q is not as wanted in\n%s", name, want, strings.Join(got, "\n"))
			}
		}
	}
	if (layout.Names{Root: "bulkhead"}).IsAnchor("/system-bulkhead.slice") ||
		(layout.Names{Root: "bulkhead"}).IsAnchor("/system.slice/system-other.slice") ||
		!(layout.Names{Root: "bulkhead"}).IsAnchor("/system.slice/system-bulkhead.slice") {
		t.Error("an anchor is known by its name in its place")
	}
}

// A slice of an administrator's gets a group's limits, and neither the end of the group nor a release ends it.
func TestSliceOfAnAdministratorStays(t *testing.T) {
	f := systemdHosts["unified"]()
	g := group("h", settings("group", "tasks", policy.Count(9)))
	g.Slice = "scylla-helper.slice"
	in := input(f, g)
	member(&in, proc(10, 1, "backup", f), "h")
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	wantSteps(t, Make(in))
	const slice = "unified:/scylla.slice/scylla-helper.slice"
	in.Systemd.Kept = map[string]layout.Kept{"scylla-helper.slice": {Group: "h",
		Dir: "/scylla.slice/scylla-helper.slice"}}
	home := "move unified:/ backup"
	gone := in
	gone.Classified = groupsOf()
	wantSteps(t, Make(gone), home, "rmdir "+slice+"/bulkhead-h.service/members", "rmdir "+slice+"/bulkhead-h.service",
		"rmdir unified:/bulkhead.slice", "revert scylla-helper.slice")
	in.Release = []string{""}
	p := Make(in)
	for _, s := range p.Steps {
		if s.Unit == "scylla-helper.slice" {
			t.Errorf("a step on the slice: %+v", s)
		}
	}
	if got := brief(p); !slices.Contains(got, home) || !slices.Contains(got, "revert scylla-helper.slice") ||
		!slices.Contains(got, "rmdir "+slice+"/bulkhead-h.service") {
		t.Errorf("%q", got)
	}
}

// A property that was set and is asked for no more goes back to what it was, and no other.
func TestSettingsThatAreAskedNoMore(t *testing.T) {
	f := systemdHosts["unified"]()
	in := input(f, group("a", settings("group", "memory.max", policy.Bytes(1<<30))))
	member(&in, inUnit(10, "mysqld", "/system.slice/mariadb.service", f), "a")
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	in.Systemd.Kept = map[string]layout.Kept{"mariadb.service": {Group: "a", Dir: "/system.slice/mariadb.service"}}
	in.Systemd.Set = map[string][]string{"mariadb.service": {"MemoryMax", "TasksMax"}}
	p := Make(in)
	wantSteps(t, p, "revert mariadb.service")
	if got := must(unitfiles.Held(p.Steps[0].New)).Settings; !slices.Equal(got, []string{"TasksMax"}) {
		t.Errorf("reverts %v", got)
	}
	in.Systemd.Set = map[string][]string{"mariadb.service": {"MemoryMax"}}
	wantSteps(t, Make(in))
}

// A keeper whose process has ended is started again.
func TestKeeperIsWoken(t *testing.T) {
	f := systemdHosts["hybrid"]()
	in := input(f, group("a", settings("group", "memory.max", policy.Bytes(1<<30))))
	member(&in, proc(10, 1, "backup", f), "a")
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	wantSteps(t, Make(in))
	in.Systemd.Keepers = (layout.Names{Root: "bulkhead"}).Keepers(slices.DeleteFunc(slices.Clone(in.Observed.Processes),
		func(p procfs.Process) bool { return p.Comm == "sleep" }))
	wantSteps(t, Make(in), "mkdir name=systemd:/bulkhead.slice/bulkhead-a.slice/bulkhead-a.service")
}

// Release has systemd forget what it was told, takes drop-ins away, ends what is ours, and leaves what runs in our
// slice.
func TestReleaseUnderSystemd(t *testing.T) {
	f := systemdHosts["unified"]()
	g := group("a", settings("group", "memory.max", policy.Bytes(1<<30)))
	g.Adopt = policy.AdoptNextStart
	in := input(f, g)
	member(&in, inUnit(10, "mysqld", "/bulkhead.slice/bulkhead-a.slice/mariadb.service", f), "a")
	member(&in, proc(11, 1, "backup", f), "a")
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	theirs := cgroup.Dir{Hierarchy: "unified", Path: "/bulkhead.slice/bulkhead-a.slice/mariadb.service"}
	in.Observed.Dirs[theirs] = map[string]string{"memory.max": "max"}
	in.Observed.Foreign = map[cgroup.Dir]bool{theirs: true}
	in.Systemd.Adopted = map[string]string{"mariadb.service": "bulkhead-a.slice"}
	in.Systemd.Kept = map[string]layout.Kept{"mariadb.service": {Group: "a", Dir: theirs.Path}}
	in.Release = []string{""}
	p := Make(in)
	const slice = "unified:/bulkhead.slice/bulkhead-a.slice"
	wantSteps(t, p,
		"write "+slice+"/memory.max max",
		"revert mariadb.service", "drop-in mariadb.service",
		"move unified:/ backup",
		"write unified:/bulkhead.slice/cpu.weight 100",
		"rmdir "+slice+"/bulkhead-a.service/members", "rmdir "+slice+"/bulkhead-a.service")
	if !slices.ContainsFunc(p.Notes, func(n plan.Note) bool {
		return strings.Contains(n.Text,
			"mariadb.service runs in the group's slice")
	}) {
		t.Errorf("nothing says what stays: %+v", p.Notes)
	}
	// systemd does not answer: the kernel's files are lifted all the same, those of a unit outside our tree included.
	const db = "/system.slice/mariadb.service"
	in.Systemd = &layout.Systemd{Mute: true, Kept: map[string]layout.Kept{"mariadb.service": {Group: "a", Dir: db}}}
	in.Observed.Dirs[cgroup.Dir{Hierarchy: "unified", Path: db}] = map[string]string{"memory.max": "1073741824"}
	p = Make(in)
	for _, s := range p.Steps {
		if s.Unit != "" {
			t.Errorf("a step through systemd: %+v", s)
		}
	}
	if got := brief(p); !slices.Contains(got, "write unified:"+db+"/memory.max max") ||
		!slices.Contains(got, "write "+slice+"/memory.max max") {
		t.Errorf("%q", got)
	}
}
