package classify

import (
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// A process whose arguments do not matter, as the prefilter has it, is placed without them as Classify places it with
// them; whatever the rules and the process.
func TestClassifierPlacesAsClassifyDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(name string, from ...string) string { return rapid.SampledFrom(from).Draw(t, name) }
		match := func(of string) policy.Match {
			return policy.Match{
				Exe:     pick(of+" exe", "x", "x", "/opt/*", "bash", "/usr/bin/perl"),
				Cmdline: pick(of+" cmdline", "", "", "all"), User: pick(of+" user", "", "", "report"),
				Ancestor: pick(of+" ancestor", "", "", "cron"),
			}
		}
		var groups []*policy.Group
		for _, name := range []string{"one", "two"} {
			m := match(name)
			if pick(name+" except", "no", "yes") == "yes" {
				m.Except = []policy.Match{{Cmdline: "data"}}
			}
			groups = append(groups, group(name, 10, m))
		}
		made, problems := Expand(&policy.Policy{Groups: groups}, nil)
		if len(problems) > 0 {
			t.Skip("no sound policy")
		}
		runs, title := pick("runs", "/opt/x", "/usr/bin/bash", "/usr/bin/perl"), pick("title", "-x", "x")
		p := proc(20, runs, title, "--all-databases")
		p.UID, p.PPID = rapid.SampledFrom([]int{0, uids["report"]}).Draw(t, "uid"), 10
		cron := proc(10, "/usr/sbin/cron", "cron")
		in := input(cron, p)
		if pick("pinned", "no", "yes") == "yes" {
			in.Pins = map[procfs.ID]string{cron.ID: "one"}
		}
		var want []Placement
		for _, placed := range Classify(made, in).Placements {
			if placed.Process.PID == p.PID {
				want = append(want, placed)
			}
		}
		if !NewPrefilter(made, in).Arguments(p.Exe) {
			p.Args = nil
		}
		again := NewClassifier(made, in)
		for range 2 {
			got := again.Placements([]procfs.Process{cron, p}, func(pid int) bool { return pid == p.PID })
			if len(got) != len(want) || len(got) > 0 && (got[0].Group != want[0].Group || got[0].By != want[0].By) {
				t.Fatalf("%+v, want %+v", got, want)
			}
		}
	})
}

// What a rule matches passes the prefilter, at each step; whatever the rules and the process.
func TestPrefilterRejectsNothingThatARuleMatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(name string, from ...string) string { return rapid.SampledFrom(from).Draw(t, name) }
		match := func(of string) policy.Match {
			return policy.Match{
				Exe:       pick(of+" exe", "", "", "mysqldump", "/usr/bin/*", "/opt/x"),
				Program:   pick(of+" program", "", "", "backup.sh", "mysqldump", "/srv/*", "/opt/x"),
				Cmdline:   pick(of+" cmdline", "", "", "^mysqldump", "all"),
				User:      pick(of+" user", "", "", "report", "oracle", "nobody-knows", "1234"),
				UnixGroup: pick(of+" group", "", "", "dba"),
				Cgroup:    pick(of+" cgroup", "", "", "/a/", "/b"), Unit: pick(of+" unit", "", "", "x.service"),
				Env:      pick(of+" env", "", "", "", "A=1"),
				Ancestor: pick(of+" ancestor", "", "", "", "cron"), Helper: pick(of+" helper", "", "", "", "backup"),
			}
		}
		var groups []*policy.Group
		for _, name := range []string{"one", "two"} {
			m := match(name)
			if pick(name+" except", "no", "yes") == "yes" {
				m.Except = []policy.Match{match(name + "'s except")}
			}
			if m.Exe+m.Program+m.Cmdline+m.User+m.UnixGroup+m.Cgroup+m.Unit+m.Env+m.Ancestor+m.Helper != "" {
				groups = append(groups, group(name, 10, m))
			}
		}
		made, problems := Expand(&policy.Policy{Groups: groups}, nil)
		if len(problems) > 0 {
			t.Skip("no sound policy")
		}
		p := proc(20, pick("runs", "", "/usr/bin/mysqldump", "/opt/x", "/usr/bin/perl"), "mysqldump", "--all-databases")
		switch pick("script", "", "", "/srv/jobs/backup.sh", "jobs/backup.sh") {
		case "/srv/jobs/backup.sh":
			p.Script, p.Args = "/srv/jobs/backup.sh", []string{"/bin/sh", "/srv/jobs/backup.sh", "all"}
		case "jobs/backup.sh":
			p.Script, p.Args = "/srv/jobs/backup.sh", []string{"/bin/sh", "jobs/backup.sh", "all"}
		}
		p.UID, p.Cgroups = rapid.SampledFrom([]int{0, 1234, uids["report"], uids["oracle"]}).Draw(t, "uid"),
			map[string]string{"unified": pick("in", "/", "/a/c", "/b", "/x.service")}
		p.PPID, p.Env = 10, []string{"A=1"}
		in := input(proc(10, "/usr/sbin/cron", "cron"), p)
		matched := false
		attempts, err := Explain(made, in, p.PID)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range attempts {
			matched = matched || a.Matched
		}
		s := NewPrefilter(made, in)
		if known := (procfs.Process{ID: procfs.ID{PID: p.PID}, Exe: p.Exe, Args: p.Args}); matched &&
			(s.Executable(p.Exe) == No || s.Program(&known) == No || s.Owner(&p) == No) {
			t.Errorf("a rule matches, and it is rejected: executable %v, program %v, owner %v", s.Executable(p.Exe),
				s.Program(&known), s.Owner(&p))
		}
	})
}

func TestPrefilter(t *testing.T) {
	groups := mustExpand(t, nil,
		group("a", 10, policy.Match{Exe: "mysqldump"}),
		group("b", 20, policy.Match{User: "report", Except: []policy.Match{{Exe: "psql"}}, Exe: "/opt/*"}),
		group("c", 30, policy.Match{Engine: "mysql", Part: "main"}))
	s := NewPrefilter(groups, input())
	other := proc(20, "/opt/x", "x")
	other.UID = 1
	for _, test := range []struct {
		p                          procfs.Process
		executable, program, owner Verdict
	}{
		{proc(20, "/usr/bin/true", "true"), No, No, No},
		{proc(20, "/usr/bin/mysqldump", "mysqldump"), Yes, Yes, Yes},
		{proc(20, "/opt/x", "x"), Maybe, Maybe, Yes},
		{proc(20, "/opt/psql", "psql"), Maybe, Maybe, Yes}, // except takes it out, which a prefilter does not look at
		{other, Maybe, Maybe, No},
		{proc(20, "", "x"), Maybe, Yes, Yes},
	} {
		if got := s.Executable(test.p.Exe); got != test.executable {
			t.Errorf("%s: by its executable %v", test.p.Exe, got)
		}
		if got := s.Program(&test.p); got != test.program {
			t.Errorf("%s: by its program %v", test.p.Exe, got)
		}
		if got := s.Owner(&test.p); got != test.owner {
			t.Errorf("%s: by its owner %v", test.p.Exe, got)
		}
	}
}
