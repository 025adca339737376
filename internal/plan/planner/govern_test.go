package planner

import (
	"path"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

func TestUnitDir(t *testing.T) {
	const (
		instance = "/system.slice/system-postgresql.slice/postgresql@15-main.service"
		inSlice  = "/bulkhead.slice/bulkhead-a.slice/mariadb.service"
	)
	for at, want := range map[string]string{
		"/system.slice/mariadb.service":     "/system.slice/mariadb.service",
		"/system.slice/mariadb.service/sub": "/system.slice/mariadb.service",
		instance:                            instance,
		"/system.slice/run-r1.scope":        "/system.slice/run-r1.scope",
		inSlice:                             inSlice,
		"/bulkhead.slice/bulkhead-a.slice/bulkhead-a.service/members":            "",
		"/bulkhead.slice/bulkhead-a.slice/bulkhead-a.service":                    "",
		"/user.slice/user-1000.slice/session-3.scope":                            "",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/mysqld.service": "",
		"/init.scope": "",
		"/":           "",
	} {
		p := inUnit(10, "x", at, systemdHosts["unified"]())
		if dir, _, ok := (layout.Names{Root: "bulkhead"}).UnitDir(&p); dir != want || ok != (want != "") {
			t.Errorf("%s: %q, %v; want %q", at, dir, ok, want)
		}
	}
}

func TestGovern(t *testing.T) {
	const dir = "/system.slice/db.service"
	for name, test := range map[string]struct {
		groups []string // of the processes of one service, "" for none
		want   string   // "" for not governed
	}{
		"all of one group":             {[]string{"a", "a"}, "a"},
		"a younger belongs to nobody":  {[]string{"a", ""}, "a"},
		"what it started itself":       {[]string{"a", "<"}, "a"},
		"another group's, started so":  {[]string{"a", "<b"}, "a"},
		"the first belongs to nobody":  {[]string{"", "a"}, ""},
		"a group and one below it":     {[]string{"a", "a/x"}, "a"},
		"two below one":                {[]string{"a/x", "a/y"}, "a"},
		"two that have nothing common": {[]string{"a", "b"}, ""},
		"names that only look alike":   {[]string{"a", "ab"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := systemdHosts["unified"]()
			in := input(f)
			for i, g := range test.groups {
				p := inUnit(10+i, "mysqld", dir, f)
				if under, ok := strings.CutPrefix(g, "<"); ok {
					p.PPID, g = 10, under
				}
				if g == "" {
					in.Observed.Processes = append(in.Observed.Processes, p)
				} else {
					member(&in, p, g)
				}
			}
			zombie := inUnit(99, "mysqld", dir, f)
			zombie.State = 'Z'
			in.Observed.Processes = append(in.Observed.Processes, zombie)
			got := (layout.Names{Root: "bulkhead"}).Govern(in.Classified, in.Observed.Processes)
			if g, ok := got[dir]; g.Group != test.want || ok != (test.want != "") {
				t.Errorf("%+v, want %q", got, test.want)
			}
		})
	}
}

// A database in system.slice gets its part of that slice's part, whatever its group's weight in our tree; in its
// group's slice it gets what bulkhead's root group gives.
func TestSharesOfUnits(t *testing.T) {
	f := systemdHosts["unified"]()
	at := func(path string) cgroup.Dir { return cgroup.Dir{Hierarchy: "unified", Path: path} }
	share := func(dir string) plan.Share {
		in := input(f, group("a", settings("group", "cpu.weight", policy.Weight(300))))
		member(&in, inUnit(10, "mysqld", dir, f), "a")
		answers(&in, 252)
		in.Observed.Siblings = []plan.Sibling{{Dir: at("/system.slice"), Weight: 100},
			{Dir: at("/user.slice"), Weight: 100}}
		in.Observed.Beside = map[cgroup.Dir][]plan.Sibling{
			at("/"): in.Observed.Siblings,
			at("/system.slice"): {{Dir: at("/system.slice/mariadb.service"), Weight: 100},
				{Dir: at("/system.slice/hog.service"), Weight: 100}},
		}
		for _, s := range Make(in).Shares {
			if s.Group == "a" {
				return s
			}
		}
		t.Fatal("no share")
		return plan.Share{}
	}
	// system.slice: 100 of 100+100+10000; in it 300 of 300+100, of four cores.
	outside, inside := share("/system.slice/mariadb.service"), share("/bulkhead.slice/bulkhead-a.slice/mariadb.service")
	if want := 4 * 100.0 / 10200 * 0.75; outside.Guaranteed < want*0.999 || outside.Guaranteed > want*1.001 ||
		!strings.Contains(outside.Against, "mariadb.service in /system.slice") {
		t.Errorf("outside: %+v, want %v cores", outside, want)
	}
	// Ours: 10000 of 10200; in it 300 beside what the group's keeper holds.
	if inside.Guaranteed < 3.8 || strings.Contains(inside.Against, "system.slice") {
		t.Errorf("inside: %+v", inside)
	}
}

// A group whose unit is elsewhere takes nothing from the others in bulkhead's root group.
func TestSharesBesideAGroupThatIsAway(t *testing.T) {
	f := systemdHosts["unified"]()
	for dir, want := range map[string]float64{"/system.slice/mariadb.service": 2,
		"/bulkhead.slice/bulkhead-a.slice/mariadb.service": 0.5} {
		in := input(f, group("a", settings("group", "cpu.weight", policy.Weight(300))),
			group("b", settings("group", "cpu.weight", policy.Weight(100))))
		in.Host.Weight = 100
		member(&in, inUnit(10, "mysqld", dir, f), "a")
		member(&in, inUnit(11, "backup", "/user.slice/user-0.slice/session-1.scope", f), "b")
		answers(&in, 252)
		in.Observed.Siblings = []plan.Sibling{{Dir: cgroup.Dir{Hierarchy: "unified", Path: "/user.slice"}, Weight: 100}}
		if got := shareOf(t, Make(in), "b"); !near(got.Guaranteed, want, 0.01) {
			t.Errorf("a in %s: b has %+v, want %v cores", dir, got, want)
		}
	}
}

// A group in a slice of an administrator's gets its part of what leads there, beside the slices that the plan gives
// weights to: none of bulkhead's root group.
func TestSharesOfAnAdministratorsSlices(t *testing.T) {
	f := systemdHosts["unified"]()
	at := func(path string) cgroup.Dir { return cgroup.Dir{Hierarchy: "unified", Path: path} }
	server := group("server", settings("group", "cpu.weight", policy.Weight(1000)))
	helper := group("helper", settings("group", "cpu.weight", policy.Weight(10)))
	server.Slice, helper.Slice = "scylla-server.slice", "scylla-helper.slice"
	in := input(f, server, helper, group("other", settings("group", "cpu.weight", policy.Weight(100))))
	in.Host.Weight = 100
	member(&in, inUnit(10, "scylla", "/scylla.slice/scylla-server.slice/scylla-server.service", f), "server")
	answers(&in, 252)
	if g := in.Systemd.Governed["/scylla.slice/scylla-server.slice/scylla-server.service"]; !g.Inside {
		t.Errorf("the server's unit is held by its slice: %+v", g)
	}
	in.Observed.Siblings = []plan.Sibling{{Dir: at("/"), Tasks: 1}, {Dir: at("/scylla.slice"), Weight: 100},
		{Dir: at("/user.slice"), Weight: 100}}
	in.Observed.Beside = map[cgroup.Dir][]plan.Sibling{
		at("/"): in.Observed.Siblings,
		// As it is now, before the plan's weights; the helpers' is not there yet.
		at("/scylla.slice"): {{Dir: at("/scylla.slice/scylla-server.slice"), Weight: 100},
			{Dir: at("/scylla.slice/theirs.service"), Weight: 490}},
	}
	p := Make(in)
	// At the top one of four: scylla.slice, user.slice, bulkhead's and the task of no unit.
	for group, want := range map[string]float64{"server": 1000.0 / 1500, "helper": 10.0 / 1500, "other": 1} {
		if got := shareOf(t, p, group); !near(got.Guaranteed, want, 2e-3*want) {
			t.Errorf("%s: %+v, want %v cores", group, got, want)
		}
	}
	if got := shareOf(t, p, "server").Against; !strings.Contains(got, "scylla-server.slice in /scylla.slice") {
		t.Errorf("against %q", got)
	}
	text := plan.Render(p, plan.RenderOptions{Facts: f})
	if !strings.Contains(text, "helper: against what runs beside scylla-helper.slice in /scylla.slice") {
		t.Errorf("it is not said against whom:\n%s", text)
	}
}

// A command of `run` stays in its scope wherever the limits of the slice that it lies in reach it.
func TestCommandsOfRun(t *testing.T) {
	const slice = "/bulkhead.slice/bulkhead-a.slice"
	scope := slice + `/bulkhead-a-run.11.11.scope`
	for name, facts := range systemdHosts {
		t.Run(name, func(t *testing.T) {
			f := facts()
			here := func(limits ...any) plan.Input {
				in := input(f, group("a", settings("group", limits...)),
					group("b", settings("group", "tasks", policy.Count(5))))
				member(&in, proc(10, 1, "backup", f), "a")
				answers(&in, 252)
				inPlaceUnderSystemd(&in)
				in.Observed.Processes = append(in.Observed.Processes, inUnit(11, "report", scope, f),
					inUnit(12, "child", scope, f))
				for _, h := range f.Hierarchies {
					if layout.Owned(f, h) {
						in.Observed.Dirs[cgroup.Dir{Hierarchy: h.ID, Path: scope}] = map[string]string{}
					}
				}
				return in
			}
			place := func(in *plan.Input, group string) {
				in.Classified.Placements = append(in.Classified.Placements,
					classify.Placement{Process: in.Observed.Processes[len(in.Observed.Processes)-2], Group: group,
						By: classify.ByPin})
			}
			in := here("memory.max", policy.Bytes(1<<30), "tasks", policy.Count(9))
			if got := (layout.Names{Root: "bulkhead"}).Govern(in.Classified, in.Observed.Processes); len(got) > 0 {
				t.Errorf("it counts as a unit of others: %+v", got)
			}
			place(&in, "a")
			wantSteps(t, Make(in))
			// A limit that holds only what is in the very directory.
			in = here("io.read.bandwidth@8:0", policy.Rate(1<<20))
			place(&in, "a")
			var want []string
			if name != "unified" {
				for _, comm := range []string{"report", "child"} {
					want = append(want, "move blkio:"+slice+"/bulkhead-a.service/members "+comm)
				}
			}
			wantSteps(t, Make(in), want...)
			// Another group, and none: out of the scope, which ends with that.
			in = here("tasks", policy.Count(9))
			place(&in, "b")
			for _, step := range Make(in).Steps {
				// Where b has no directory it goes home.
				if !step.Moves() || step.Name != "report" || step.Dir().Path != "/" &&
					step.Dir().Path != "/bulkhead.slice/bulkhead-b.slice/bulkhead-b.service/members" {
					t.Errorf("a step %+v", step)
				}
			}
			in = here("tasks", policy.Count(9))
			in.Release = []string{"a"}
			ends := map[string]bool{}
			for _, step := range Make(in).Steps {
				if step.Removes() && step.Dir().Path == scope {
					ends[step.Dir().Hierarchy] = step.Unit == path.Base(scope)
				}
				if step.Moves() && step.Dir().Path != "/" {
					t.Errorf("sent to %s", step.Dir())
				}
			}
			for _, h := range f.Hierarchies {
				if layout.Owned(f, h) && !ends[h.ID] {
					t.Errorf("its directory in %s is left", h.ID)
				}
			}
		})
	}
}
