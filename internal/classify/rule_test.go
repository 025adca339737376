package classify

import (
	"path"
	"strings"
	"testing"

	"bulkhead/internal/classify/pattern"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// The users and Unix groups of the test host.
var (
	uids = map[string]int{"root": 0, "oracle": 54321, "report": 1005, "mysql": 102, "postgres": 101, "42": 4242}
	gids = map[string]int{"dba": 54322, "oinstall": 54321, "report": 1005}
)

func lookupIn(m map[string]int) func(string) (int, bool) {
	return func(name string) (int, bool) { id, ok := m[name]; return id, ok }
}

func nameIn(m map[string]int) func(int) string {
	return func(id int) string {
		for name, n := range m {
			if n == id {
				return name
			}
		}
		return ""
	}
}

// proc makes a process of user report from its executable and its arguments.
func proc(pid int, exe string, args ...string) procfs.Process {
	return procfs.Process{
		ID: procfs.ID{PID: pid, Start: uint64(pid) * 10}, PPID: 1, State: 'S', Exe: exe,
		Comm: exe[strings.LastIndexByte(exe, '/')+1:], Args: args, UID: uids["report"], GID: gids["report"],
	}
}

// input is a look at the test host with these processes.
func input(procs ...procfs.Process) Input {
	return Input{
		Processes: procs, UserID: lookupIn(uids), GroupID: lookupIn(gids), UserName: nameIn(uids),
		GroupName: nameIn(gids),
		Self:      procfs.ID{PID: 999, Start: 1},
	}
}

// group makes a policy group whose matches stand on lines of their own.
func group(name string, line int, matches ...policy.Match) *policy.Group {
	for i := range matches {
		matches[i].Pos = policy.Pos{File: "p.yaml", Line: line + i + 1, Column: 5}
	}
	return &policy.Group{Name: name, Match: matches, Pos: policy.Pos{File: "p.yaml", Line: line, Column: 3}}
}

// mustExpand expands groups that have no problems.
func mustExpand(t testing.TB, instances []engine.Instance, groups ...*policy.Group) []Group {
	t.Helper()
	made, problems := Expand(&policy.Policy{Groups: groups}, instances)
	if len(problems) > 0 {
		t.Fatalf("expand: %v", problems)
	}
	return made
}

// The two patterns of the Oracle example, against the names that Oracle's processes have.
func TestOraclePatterns(t *testing.T) {
	groups := mustExpand(t, nil, &policy.Group{Name: "BX1", Groups: []*policy.Group{
		group("sessions", 10, policy.Match{Cmdline: `BXTST02.*LOCAL=NO`},
			policy.Match{Cmdline: `ora_p[[:digit:]].{2}_BXTST02`}),
	}})
	for line, want := range map[string]bool{
		"oracleBXTST02 (LOCAL=NO)":  true,
		"ora_p000_BXTST02":          true,
		"ora_p00f_BXTST02":          true,
		"ora_p1zz_BXTST02":          true,
		"ora_lgwr_BXTST02":          false, // the log writer keeps its speed
		"ora_dbw0_BXTST02":          false,
		"ora_pmon_BXTST02":          false, // p, but no digit
		"ora_p00_BXTST02":           false, // one character short
		"ora_p0000_BXTST02":         false,
		"oracleBXTST02 (LOCAL=YES)": false,
		"oracleBXTST03 (LOCAL=NO)":  false,
		"ora_p000_BXTST03":          false,
		"tnslsnr LISTENER -inherit": false,
		"oracleBXTST02 (DESCRIPTION=(LOCAL=YES)(ADDRESS=(PROTOCOL=beq)))": false,
	} {
		// Oracle writes its name over argv[0], padding what was there; a tool shows it as two arguments.
		for _, args := range [][]string{{line}, strings.Split(line, " "), {line, "", "", ""}, {line + "\x00\x00  "}} {
			p := proc(100, "/u01/app/oracle/product/19/bin/oracle", args...)
			result := Classify(groups, input(p))
			if got := len(result.Placements) == 1; got != want || len(result.Problems) != 0 {
				t.Errorf("%q placed: %t, want %t (problems %v)", args, got, want, result.Problems)
			}
			if want && result.Placements[0].Group != "BX1/sessions" {
				t.Errorf("%q is in %q", args, result.Placements[0].Group)
			}
		}
	}
}

var testInstance = engine.Instance{
	Engine: engine.PostgreSQL, Main: procfs.ID{PID: 100, Start: 1000}, Port: 5432, Ports: []int{5432}, DataDir: "/pg",
	Cluster: "15/main", User: "postgres",
	Members: []engine.Member{{ID: procfs.ID{PID: 100, Start: 1000}, Part: "main"},
		{ID: procfs.ID{PID: 101, Start: 1010}, Part: "walwriter"}},
}

// Every key, against processes that have it and that do not.
func TestMatchKeys(t *testing.T) {
	plain := proc(200, "/usr/bin/pg_dump", "pg_dump", "-h", "db 1", "shop")
	plain.Groups = []int{7, gids["dba"]}
	plain.Env = []string{"PGPORT=5432", "EMPTY=", "LANG=C"}
	plain.Cgroups = map[string]string{"name=systemd": "/system.slice/system-cron.slice/cron@main.service/sub",
		"cpu": "/", "unified": "/user.slice/session-3.scope"}
	plain.PPID = 199
	parent := proc(199, "/usr/sbin/cron", "cron", "-f")
	parent.PPID = 198
	grandparent := proc(198, "/usr/lib/systemd/systemd", "systemd")
	grandparent.PPID = 199 // pids are read one by one: a ring must not hang
	main, walwriter := proc(100, "/usr/lib/postgresql/15/bin/postgres", "postgres", "-D", "/pg"),
		proc(101, "/usr/lib/postgresql/15/bin/postgres", "postgres: walwriter ")
	reused := walwriter // the same pid, started later: no member
	reused.Start++
	kernel := procfs.Process{ID: procfs.ID{PID: 30, Start: 3}, Kernel: true, Comm: "kworker/0:1",
		Args: []string{"kworker"}}
	silent := proc(201, "/usr/bin/pg_dump")
	script := proc(203, "/usr/bin/dash", "/bin/sh", "/opt/jobs/night/backup.sh")
	script.Script = "/opt/jobs/night/backup.sh"
	control := proc(202, "/usr/bin/psql", "psql", "-c", "select\n1\t;\x7f")

	for _, test := range []struct {
		name  string
		p     procfs.Process
		match policy.Match
		want  bool
	}{
		{"exe base name", plain, policy.Match{Exe: "pg_dump"}, true},
		{"exe is not comm", control, policy.Match{Exe: "pg_dump"}, false},
		{"exe path", plain, policy.Match{Exe: "/usr/bin/pg_dump"}, true},
		{"exe glob", plain, policy.Match{Exe: "/usr/*/pg_*"}, true},
		{"exe glob stays in its element", plain, policy.Match{Exe: "/*/pg_dump"}, false},
		{"exe unreadable", procfs.Process{ID: procfs.ID{PID: 5}, Args: []string{"pg_dump"}},
			policy.Match{Exe: "pg_dump"}, false},
		{"program by base name", plain, policy.Match{Program: "pg_dump"}, true},
		{"program by path", plain, policy.Match{Program: "/usr/bin/pg_dump"}, true},
		{"program is a script", script, policy.Match{Program: "backup.sh"}, true},
		{"program is a script by path", script, policy.Match{Program: "/opt/jobs/night/backup.sh"}, true},
		{"program is not what runs the script", script, policy.Match{Program: "dash"}, false},
		{"program by the beginning of its path", script, policy.Match{Program: "/opt/jobs/*"}, true},
		{"program by another beginning", script, policy.Match{Program: "/opt/job/*"}, false},
		{"program is no glob", plain, policy.Match{Program: "pg_d?mp"}, false},
		{"program unreadable", procfs.Process{ID: procfs.ID{PID: 6}}, policy.Match{Program: "pg_dump"}, false},
		{"cmdline joined by single spaces", plain, policy.Match{Cmdline: `^pg_dump -h db 1 shop$`}, true},
		{"cmdline unanchored", plain, policy.Match{Cmdline: `db \d`}, true},
		{"cmdline without arguments", silent, policy.Match{Cmdline: `.*`}, false},
		{"cmdline of a kernel thread", kernel, policy.Match{Cmdline: `kworker`}, false},
		{"cmdline shows control characters as ps does", control, policy.Match{Cmdline: `select\?1\?;\?$`}, true},
		{"cmdline . crosses a line break", control, policy.Match{Cmdline: `select.1`}, true},
		{"cmdline of a title without padding", walwriter, policy.Match{Cmdline: `walwriter$`}, true},
		{"user by name", plain, policy.Match{User: "report"}, true},
		{"user by number", plain, policy.Match{User: "1005"}, true},
		{"another user", plain, policy.Match{User: "oracle"}, false},
		{"unknown user", plain, policy.Match{User: "nobody-here"}, false},
		{"a name of digits is a name first", plain, policy.Match{User: "42"}, false},
		{"unix_group effective", plain, policy.Match{UnixGroup: "report"}, true},
		{"unix_group supplementary", plain, policy.Match{UnixGroup: "dba"}, true},
		{"unix_group by number", plain, policy.Match{UnixGroup: "7"}, true},
		{"unix_group not his", plain, policy.Match{UnixGroup: "oinstall"}, false},
		{"unix_group unknown", plain, policy.Match{UnixGroup: "wheel"}, false},
		{"unit is the last one of systemd's own hierarchy", plain, policy.Match{Unit: "cron@main.service"}, true},
		{"unit glob", plain, policy.Match{Unit: "cron@*.service"}, true},
		{"unit without a type is a service", plain, policy.Match{Unit: "cron@main"}, true},
		{"unit above", plain, policy.Match{Unit: "system-cron.slice"}, false},
		{"unit in another hierarchy", plain, policy.Match{Unit: "session-3.scope"}, false},
		{"cgroup in any hierarchy", plain, policy.Match{Cgroup: "/user.slice/session-3.scope"}, true},
		{"cgroup glob", plain, policy.Match{Cgroup: "/user.slice/session-*.scope"}, true},
		{"cgroup glob is whole", plain, policy.Match{Cgroup: "/user.slice/*n-3"}, false},
		{"cgroup prefix", plain, policy.Match{Cgroup: "/system.slice/"}, true},
		{"cgroup prefix is of elements", plain, policy.Match{Cgroup: "/system.sli/"}, false},
		{"cgroup prefix glob", plain, policy.Match{Cgroup: "/system.slice/*/cron@*/"}, true},
		{"cgroup prefix is itself in", plain, policy.Match{Cgroup: "/user.slice/session-3.scope/"}, true},
		{"cgroup prefix longer than the path", plain, policy.Match{Cgroup: "/user.slice/session-3.scope/x/"}, false},
		{"ancestor parent", plain, policy.Match{Ancestor: "cron"}, true},
		{"ancestor grandparent by path", plain, policy.Match{Ancestor: "/usr/lib/systemd/*"}, true},
		{"ancestor is not the process itself", plain, policy.Match{Ancestor: "pg_dump"}, false},
		{"env name", plain, policy.Match{Env: "EMPTY"}, true},
		{"env value", plain, policy.Match{Env: "PGPORT=5432"}, true},
		{"env other value", plain, policy.Match{Env: "PGPORT=543"}, false},
		{"env name is whole", plain, policy.Match{Env: "PGPO"}, false},
		{"env not read", silent, policy.Match{Env: "PGPORT"}, false},
		{"engine", walwriter, policy.Match{Engine: "postgresql"}, true},
		{"engine of no instance", plain, policy.Match{Engine: "postgresql"}, false},
		{"engine of a reused pid", reused, policy.Match{Engine: "postgresql"}, false},
		{"another engine", main, policy.Match{Engine: "mysql"}, false},
		{"port", main, policy.Match{Engine: "postgresql", Port: "5432"}, true},
		{"another port", main, policy.Match{Engine: "postgresql", Port: "5433"}, false},
		{"part", walwriter, policy.Match{Engine: "postgresql", Part: "walwriter"}, true},
		{"another part", main, policy.Match{Engine: "postgresql", Part: "walwriter"}, false},
		{"part alone, of no instance", plain, policy.Match{Part: "main"}, false},
		{"instance by cluster name", main, policy.Match{Instance: "15/main"}, true},
		{"keys are AND", plain, policy.Match{Exe: "pg_dump", User: "oracle"}, false},
		{"except takes out", plain, policy.Match{User: "report",
			Except: []policy.Match{{Exe: "psql"}, {Exe: "pg_dump"}}}, false},
		{"except of something else", plain, policy.Match{User: "report",
			Except: []policy.Match{{Exe: "pg_dump", User: "oracle"}}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			groups := mustExpand(t, nil, group("g", 1, test.match))
			in := input(test.p, parent, grandparent)
			in.Instances = []engine.Instance{testInstance}
			attempts, err := Explain(groups, in, test.p.PID)
			if err != nil {
				t.Fatal(err)
			}
			last := attempts[len(attempts)-1]
			if last.Matched != test.want {
				t.Errorf("{%s}: matched %t, want %t: %s", last.Rule.Text, last.Matched, test.want, last.Why)
			}
			// The index of Classify must come to the same answer.
			result := Classify(groups, in)
			found := false
			for _, p := range result.Placements {
				found = found || p.Process.ID == test.p.ID
			}
			for _, s := range result.Skips {
				found = found || s.Process.ID == test.p.ID
			}
			if found != test.want {
				t.Errorf("{%s}: Classify says %t and Explain %t", last.Rule.Text, found, last.Matched)
			}
		})
	}
}

// A required literal only ever spares work: it stands in whatever the expression matches.
func TestRequiredLiteral(t *testing.T) {
	for expr, want := range map[string]string{
		`BXTST02.*LOCAL=NO`:            "LOCAL=NO",
		`ora_p[[:digit:]].{2}_BXTST02`: "_BXTST02",
		`(?i)mysqld`:                   "",
		`foo|bar`:                      "",
		`(abc)+x?`:                     "abc",
		`(abc){0,2}d`:                  "d",
		`(abcd){2,}`:                   "abcd",
		`a(?:b|c)d*`:                   "a",
		`^$`:                           "",
		`\Qa.b\E`:                      "a.b",
		`(`:                            "",
	} {
		if got := pattern.RequiredLiteral(expr); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

func FuzzRequiredLiteral(f *testing.F) {
	f.Add(`ora_p[[:digit:]].{2}_BXTST02`, "ora_p000_BXTST02")
	f.Add(`(?i)ab(c|d)+e{2,3}`, "ABcdee")
	f.Fuzz(func(t *testing.T, expr, line string) {
		c, err := compile(policy.Match{Cmdline: expr}, nil)
		if err != nil || expr == "" {
			return
		}
		if c.cmdline.MatchString(line) && !strings.Contains(line, c.literal) {
			t.Errorf("%q matches %q, which lacks %q", expr, line, c.literal)
		}
	})
}

func FuzzCgroupPattern(f *testing.F) {
	f.Add("/system.slice/", "/system.slice/mysql.service")
	f.Add("/a/*/", "/")
	f.Add("/", "/a")
	f.Add("//", "/")
	f.Fuzz(func(t *testing.T, text, name string) {
		p, err := pattern.NewCgroup(text)
		if err != nil {
			return
		}
		got := p.Matches(name)
		prefix, below := strings.CutSuffix(text, "/")
		// The policy and the kernel only ever give paths like these.
		clean := path.IsAbs(prefix) && path.Clean(prefix) == prefix && prefix != "/" && path.IsAbs(name) &&
			path.Clean(name) == name
		if below && !p.Glob && clean {
			if want := name == prefix || strings.HasPrefix(name, text); got != want {
				t.Errorf("%q on %q: %t", text, name, got)
			}
		}
	})
}
