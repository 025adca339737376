package classify

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files")

// placed returns the groups by pid.
func placed(r Result) map[int]string {
	groups := make(map[int]string)
	for _, p := range r.Placements {
		groups[p.Process.PID] = p.Group
	}
	return groups
}

// subjectOfAll has a value for every key.
func subjectOfAll() (procfs.Process, procfs.Process) {
	p := proc(100, "/usr/lib/postgresql/15/bin/postgres", "postgres:", "app")
	p.ID = testInstance.Main
	p.PPID = 50
	p.Cgroups = map[string]string{"name=systemd": "/system.slice/pg.service"}
	p.Env = []string{"A=1"}
	return p, proc(50, "/usr/bin/sh", "sh")
}

// singles are rules with one key that hold for subjectOfAll, most specific first.
var singles = []policy.Match{
	{Port: "5432"},
	{Cmdline: "postgres"},
	{Helper: "backup"},
	{Part: "main"},
	{Exe: "/usr/lib/postgresql/*/bin/postgres"},
	{Exe: "postgres"},
	{Env: "A"},
	{Unit: "pg.service"},
	{Cgroup: "/system.slice/"},
	{Ancestor: "sh"},
	{User: "report"},
	{UnixGroup: "report"},
	{Engine: "postgresql"},
}

// Of two rules, the one with the more specific key wins, whatever else the other has of lesser ones.
func TestSpecificity(t *testing.T) {
	p, parent := subjectOfAll()
	in := input(p, parent)
	both := testInstance
	both.Helpers = []engine.Helper{{ID: p.ID, Kind: "backup", Sure: true}}
	in.Instances = []engine.Instance{both}
	for strong := range singles {
		// All less specific keys together in one rule.
		var weak policy.Match
		for _, m := range singles[strong+1:] {
			if m.Exe != "" && weak.Exe != "" {
				continue // exe has one value
			}
			merge(&weak, m)
		}
		if weak.Engine == "" {
			continue
		}
		for _, order := range []bool{false, true} {
			gs := []*policy.Group{group("strong", 10, singles[strong]), group("weak", 20, weak)}
			if order {
				slices.Reverse(gs)
			}
			result := Classify(mustExpand(t, in.Instances, gs...), in)
			if got := placed(result)[100]; got != "strong" || len(result.Problems) > 0 {
				t.Errorf("{%s} against {%s}: placed in %q, %v", text(&singles[strong]), text(&weak), got,
					result.Problems)
			}
		}
	}
}

// merge sets the keys of m in to.
func merge(to *policy.Match, m policy.Match) {
	for _, f := range []struct{ to, from *string }{
		{&to.Engine, &m.Engine}, {&to.Port, &m.Port}, {&to.Helper, &m.Helper}, {&to.Part, &m.Part}, {&to.Exe, &m.Exe},
		{&to.Cmdline, &m.Cmdline}, {&to.User, &m.User},
		{&to.UnixGroup, &m.UnixGroup}, {&to.Unit, &m.Unit}, {&to.Cgroup, &m.Cgroup}, {&to.Ancestor, &m.Ancestor},
		{&to.Env, &m.Env},
	} {
		if *f.from != "" {
			*f.to = *f.from
		}
	}
}

// The table in the documentation is the table in the code.
func TestScoresAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/classification.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]int)
	for _, row := range regexp.MustCompile("(?m)^\\| (`.+) \\| (\\d+) \\|$").FindAllStringSubmatch(string(doc), -1) {
		n, _ := strconv.Atoi(row[2])
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			documented[name[1]] = n
		}
	}
	want := map[string]int{"exe: /path": scoreExePath}
	for _, k := range keys {
		want[k.name] = k.score
	}
	for name, n := range want {
		if documented[name] != n {
			t.Errorf("docs/classification.md gives %q %d points, the code %d", name, documented[name], n)
		}
	}
	if len(documented) != len(want) {
		t.Errorf("documented are %v", documented)
	}
}

func TestScoresAreDistinct(t *testing.T) {
	sum := 0
	var all []int
	for _, m := range singles {
		all = append(all, score(&m))
	}
	slices.Sort(all)
	for _, s := range all {
		if s <= sum {
			t.Errorf("%d is not larger than all smaller scores together (%d)", s, sum)
		}
		sum += s
	}
}

func TestNamingAnInstanceCountsOnce(t *testing.T) {
	for _, m := range []policy.Match{
		{Engine: "mysql", Port: "3306"},
		{Engine: "mysql", Port: "3306", DataDir: "/d", Socket: "/s", SID: "y", Instance: "x"},
	} {
		if got := score(&m); got != scoreInstance+1 {
			t.Errorf("{%s} scores %d", text(&m), got)
		}
	}
}

func TestTies(t *testing.T) {
	byUser := policy.Match{User: "report"}
	nested := &policy.Group{Name: "a", Pos: policy.Pos{File: "p.yaml", Line: 1}, Groups: []*policy.Group{
		{Name: "b", Groups: []*policy.Group{group("c", 20, byUser)}},
	}}
	nested.Match = []policy.Match{{User: "1005", Pos: policy.Pos{File: "p.yaml", Line: 2, Column: 7}}}
	psql := proc(300, "/usr/bin/psql", "psql")
	for _, test := range []struct {
		name     string
		groups   []*policy.Group
		want     string
		problems []string // parts of messages
	}{
		{"two rules of one group", []*policy.Group{group("a", 1, byUser, policy.Match{User: "1005"})}, "a", nil},
		{"the group inside wins", []*policy.Group{nested}, "a/b/c", nil},
		{"a name that only starts alike is not inside", []*policy.Group{group("a", 1, byUser), group("ab", 5, byUser)},
			"", []string{`"a" by {user: report} and "ab" by {user: report}`}},
		{"a chain and a stranger", []*policy.Group{nested, group("x", 30, byUser)}, "", []string{`process 300 (psql)`}},
		{"equal keys, other values", []*policy.Group{group("a", 1, policy.Match{Cmdline: "ps"}),
			group("b", 5, policy.Match{Cmdline: "ql"})}, "", []string{`{cmdline: 'ps'}`, `{cmdline: 'ql'}`}},
		{"except ends the tie", []*policy.Group{group("a", 1, byUser),
			group("b", 5, policy.Match{User: "report", Except: []policy.Match{{Exe: "psql"}}})}, "a", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			result := Classify(mustExpand(t, nil, test.groups...), input(psql))
			if got := placed(result)[300]; got != test.want {
				t.Errorf("placed in %q, want %q", got, test.want)
			}
			if (len(result.Problems) > 0) != (test.problems != nil) {
				t.Fatalf("problems %v", result.Problems)
			}
			for _, part := range test.problems {
				if !strings.Contains(result.Problems[0].Msg, part) {
					t.Errorf("message %q lacks %q", result.Problems[0].Msg, part)
				}
			}
		})
	}
}

// A conflict is one problem at the first rule's place, with the other's, however many processes it has.
func TestConflictPositions(t *testing.T) {
	groups := mustExpand(t, nil, group("late", 40, policy.Match{User: "report"}),
		group("early", 20, policy.Match{User: "1005"}))
	result := Classify(groups, input(proc(302, "/b", "b"), proc(301, "/a", "a"), proc(303, "/c", "c")))
	if len(result.Problems) != 1 || len(result.Placements) != 0 {
		t.Fatalf("problems %v, placements %v", result.Problems, result.Placements)
	}
	p := result.Problems[0]
	if p.Pos.Line != 21 || len(p.Also) != 1 || p.Also[0].Line != 41 {
		t.Errorf("at line %d, also %v", p.Pos.Line, p.Also)
	}
	if want := `process 301 (a) and 2 more belongs equally well to "early" by {user: 1005} and "late" by ` +
		`{user: report}`; p.Msg != want {
		t.Errorf("message\n%s\nwant\n%s", p.Msg, want)
	}
	if p.Hint == "" {
		t.Error("no hint")
	}
}

// hostProcesses are processes that are never moved, by the reason that is given.
func hostProcesses() map[string]procfs.Process {
	base := func(pid int, exe string, args ...string) procfs.Process {
		p := proc(pid, exe, args...)
		p.UID, p.GID = 0, 0
		return p
	}
	with := func(p procfs.Process, change func(*procfs.Process)) procfs.Process { change(&p); return p }
	return map[string]procfs.Process{
		"it is a kernel thread": with(base(400, "/x"), func(p *procfs.Process) { p.Kernel = true }),
		"it is PID 1":           base(1, "/sbin/init", "init"),
		"it is bulkhead itself": with(base(999, "/usr/bin/bulkhead", "bulkhead", "agent"),
			func(p *procfs.Process) { p.Start = 1 }),
		"it has exited and waits for its parent": with(base(401, "/x"), func(p *procfs.Process) { p.State = 'Z' }),
		"it is sshd":                             base(500, "/usr/sbin/sshd", "sshd: /usr/sbin/sshd -D"),
		"it is a login shell of root":            base(403, "/usr/bin/bash", "-bash"),
		"cgroup /docker/4f5e)": with(base(404, "/x", "x"),
			func(p *procfs.Process) { p.Cgroups = map[string]string{"cpu": "/", "memory": "/docker/4f5e"} }),
	}
}

func TestNeverMoved(t *testing.T) {
	// Not user: root alone, which would match PID 1 and the agent: exceptions for those two.
	m := policy.Match{User: "root", Except: []policy.Match{{Exe: "init"}, {Exe: "bulkhead"}}}
	groups := mustExpand(t, nil, group("g", 1, m))
	for reason, p := range hostProcesses() {
		result := Classify(groups, input(p))
		if p.PID == 1 || p.PID == 999 {
			if len(result.Skips) != 0 || len(result.Problems) != 0 {
				t.Errorf("%s: excepted, yet skips %v, problems %v", reason, result.Skips, result.Problems)
			}
			result = Classify(mustExpand(t, nil, group("g", 1, policy.Match{User: "root"})), input(p))
			if len(result.Problems) != 1 {
				t.Errorf("%s: problems %v", reason, result.Problems)
			}
		}
		if len(result.Placements) != 0 || len(result.Skips) != 1 || !strings.Contains(result.Skips[0].Reason, reason) ||
			result.Skips[0].Group != "g" {
			t.Errorf("%s: placements %v, skips %+v", reason, result.Placements, result.Skips)
		}
		// A pin does not move them either.
		in := input(p)
		if got := Protected(p.PID, in); !strings.Contains(got, reason) {
			t.Errorf("%s: protected since %q", reason, got)
		}
		in.Pins = map[procfs.ID]string{p.ID: "g"}
		if result := Classify(groups, in); len(result.Placements) != 0 || len(result.Skips) != 1 {
			t.Errorf("%s: pinned, placements %v, skips %+v", reason, result.Placements, result.Skips)
		}
	}
}

// What anybody can do to look like one of them does not help.
func TestNoDodge(t *testing.T) {
	with := func(p procfs.Process, change func(*procfs.Process)) procfs.Process { change(&p); return p }
	groups := mustExpand(t, nil, group("g", 1, policy.Match{User: "report"}))
	for name, p := range map[string]procfs.Process{
		"a copy called sshd":   proc(10, "/tmp/sshd", "sshd"),
		"sshd started by hand": proc(10, "/usr/sbin/sshd", "sshd", "-p", "2222"),
		"a pid namespace of its own": with(proc(10, "/usr/bin/unshare", "unshare", "-Urpf"),
			func(p *procfs.Process) { p.ForeignNamespace = true }),
		"the first thread has ended": with(proc(10, "", ""),
			func(p *procfs.Process) { p.State, p.Threads = 'Z', 2 }),
		"a login shell of somebody":     proc(10, "/usr/bin/bash", "-bash"),
		"a child of a copy called sshd": with(proc(10, "/tmp/sshd", "sshd"), func(p *procfs.Process) { p.PPID = 11 }),
	} {
		other := proc(11, "/tmp/sshd", "sshd")
		if got := placed(Classify(groups, input(p, other))); got[10] != "g" {
			t.Errorf("%s: placed %v", name, got)
		}
	}
}

// The helpers of a session run as the user who logs in; processes in a namespace of a container as anybody.
func TestProtectedByParent(t *testing.T) {
	sshd := proc(20, "/usr/sbin/sshd", "sshd: anna [priv]")
	sshd.UID = 0
	shim := proc(30, "/usr/bin/conmon", "conmon")
	shim.Cgroups = map[string]string{"memory": "/machine.slice/libpod-conmon-1.scope"}
	session, shell, boxed, child := proc(21, "/usr/sbin/sshd", "sshd: anna@pts/0"), proc(22, "/usr/bin/bash", "-bash"),
		proc(31, "/x", "x"), proc(32, "/x", "x")
	session.PPID, shell.PPID, boxed.PPID, child.PPID = 20, 21, 30, 31
	boxed.ForeignNamespace, child.ForeignNamespace = true, true
	in := input(sshd, session, shell, shim, boxed, child)
	for pid, want := range map[int]string{20: "it is sshd", 21: "it is sshd", 22: "",
		30: "cgroup /machine.slice/libpod-conmon-1.scope", 31: "another pid namespace", 32: "another pid namespace"} {
		if got := Protected(pid, in); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("process %d: %q, want %q", pid, got, want)
		}
	}
}

func TestProtected(t *testing.T) {
	in := input(proc(700, "/usr/bin/psql", "psql"))
	if got := Protected(700, in); got != "" {
		t.Errorf("psql may not be moved since %q", got)
	}
	if got := Protected(701, in); got == "" {
		t.Error("a process that is not there may be moved")
	}
}

func TestRootLoginShells(t *testing.T) {
	shell := func(uid int, parent string, args ...string) bool {
		p := proc(600, "/usr/bin/bash", args...)
		p.UID, p.PPID = uid, 601
		l := newLook(input(p, proc(601, parent, "parent")))
		return l.protected(l.byPID[600]) != ""
	}
	for _, test := range []struct {
		uid    int
		parent string
		args   []string
		want   bool
	}{
		{0, "/usr/bin/bash", []string{"-bash"}, true},
		{0, "/usr/sbin/sshd", []string{"bash", "-c", "uptime"}, true},
		{0, "/usr/lib/openssh/sshd-session", []string{"bash"}, true},
		{0, "/usr/bin/su", []string{"bash"}, true},
		{0, "/usr/bin/sudo", []string{"bash"}, true},
		{0, "/usr/sbin/cron", []string{"bash", "-c", "backup.sh"}, false},
		{0, "/usr/bin/bash", []string{"bash", "backup.sh"}, false},
		{1005, "/usr/bin/bash", []string{"-bash"}, false},
		{1005, "/usr/sbin/sshd", []string{"bash"}, false},
		{0, "/usr/sbin/cron", nil, false},
	} {
		if got := shell(test.uid, test.parent, test.args...); got != test.want {
			t.Errorf("uid %d %v under %s: protected %t", test.uid, test.args, test.parent, got)
		}
	}
}

// Where bulkhead itself runs in a container, its neighbours there are no strangers.
func TestOwnContainer(t *testing.T) {
	inside := func(pid int, where string) procfs.Process {
		p := proc(pid, "/usr/bin/psql", "psql")
		p.Cgroups = map[string]string{"memory": where}
		return p
	}
	self := inside(999, "/docker/own")
	self.Exe, self.UID = "/usr/bin/bulkhead", 0
	in := input(self, inside(10, "/docker/own"), inside(11, "/docker/other"))
	in.Self = self.ID
	result := Classify(mustExpand(t, nil, group("g", 1, policy.Match{Exe: "psql"})), in)
	if got := placed(result); got[10] != "g" || got[11] != "" || len(result.Skips) != 1 {
		t.Errorf("placed %v, skipped %v", got, result.Skips)
	}
}

func TestUntouchable(t *testing.T) {
	procs := []procfs.Process{proc(1, "/usr/lib/systemd/systemd", "/sbin/init"),
		proc(999, "/usr/bin/bulkhead", "bulkhead", "agent")}
	procs[1].Start = 1
	for i := range procs {
		procs[i].UID = 0
	}
	m := policy.Match{User: "root"}
	result := Classify(mustExpand(t, nil, group("all", 7, m)), input(procs...))
	if len(result.Problems) != 2 {
		t.Fatalf("problems %v", result.Problems)
	}
	for n, part := range []string{"PID 1 (systemd)", "bulkhead itself (process 999)"} {
		p := result.Problems[n]
		if !strings.Contains(p.Msg, part) || p.Pos.Line != 8 || !strings.Contains(p.Hint, "except: [{exe: ") {
			t.Errorf("problem %+v, want %q", p, part)
		}
	}
	// A reused pid of the agent is somebody else.
	procs[1].Start = 2
	if result := Classify(mustExpand(t, nil, group("all", 7, m)), input(procs...)); len(result.Problems) != 1 {
		t.Errorf("problems %v", result.Problems)
	}
}

// A rule that would match the agent is wrong before one is started, too; what only looks like bulkhead
// for a moment is no reason.
func TestUntouchableWithoutAgent(t *testing.T) {
	const exe = "/usr/local/bin/bulkhead"
	call := func(pid int, args ...string) procfs.Process {
		return proc(pid, exe, append([]string{"bulkhead"}, args...)...)
	}
	for _, test := range []struct {
		match   policy.Match
		procs   []procfs.Process
		selfExe string
		want    string
	}{
		{policy.Match{Exe: "bulkhead"}, nil, exe, "its agent, when it runs"},
		{policy.Match{User: "root"}, nil, exe, "its agent, when it runs"},
		{policy.Match{Exe: "/usr/local/bin/*"}, nil, exe, "its agent, when it runs"},
		{policy.Match{Cmdline: "agent$"}, nil, exe, "its agent, when it runs"},
		{policy.Match{User: "root", Except: []policy.Match{{Exe: "bulkhead"}}}, nil, exe, ""},
		{policy.Match{Exe: "bulkhead"}, nil, "", ""},
		{policy.Match{User: "report"}, []procfs.Process{call(10, "--policy=x", "agent")}, exe,
			"bulkhead itself (process 10)"},
		{policy.Match{User: "report"}, []procfs.Process{call(10, "--policy", "x", "--socket", "y", "agent")}, exe,
			"bulkhead itself (process 10)"},
		{policy.Match{User: "report"}, []procfs.Process{call(10, "check", "agent")}, exe, ""},
		{policy.Match{Cmdline: "mariabackup"}, []procfs.Process{call(10, "run", "-g", "bk", "--", "mariabackup")}, exe,
			""},
		{policy.Match{Cmdline: "agent"}, []procfs.Process{proc(10, "/bin/other", "other", "agent")}, "", ""},
	} {
		in := input(test.procs...)
		in.SelfExe = test.selfExe
		problems := Classify(mustExpand(t, nil, group("g", 1, test.match)), in).Problems
		if (test.want == "") != (len(problems) == 0) || test.want != "" && !strings.Contains(problems[0].Msg,
			test.want) {
			t.Errorf("{%s}: problems %v, want %q", text(&test.match), problems, test.want)
		}
	}
}

// A load of a probe is where the probe has put it, whatever rules say.
func TestLoadsOfProbesStay(t *testing.T) {
	const exe = "/usr/local/bin/bulkhead"
	in := input(proc(10, exe, "bulkhead", "--state", "/s", "probe-load"), proc(11, "/bin/other", "other", "probe-load"))
	in.SelfExe = exe
	result := Classify(mustExpand(t, nil, group("g", 1, policy.Match{Cmdline: "probe-load"})), in)
	if len(result.Placements) != 1 || result.Placements[0].Process.PID != 11 || !strings.Contains(Protected(10, in),
		"verify --probe") {
		t.Errorf("placed: %+v; %q", result.Placements, Protected(10, in))
	}
}

// An ambiguous process is among the skips, beside the problem.
func TestConflictIsSkipped(t *testing.T) {
	groups := mustExpand(t, nil, group("a", 1, policy.Match{User: "report"}), group("b", 5, policy.Match{User: "1005"}))
	result := Classify(groups, input(proc(300, "/usr/bin/psql", "psql")))
	if len(result.Skips) != 1 || !result.Skips[0].Ambiguous || result.Skips[0].Group != "a" ||
		!strings.Contains(result.Skips[0].Reason, `"b"`) {
		t.Errorf("skips %+v", result.Skips)
	}
}

func TestUnknownNames(t *testing.T) {
	p := parsed(t, `
version: 1
groups:
  a:
    match: [{user: nosuch, unix_group: dba}, {user: report, except: [{unix_group: nogroup}]}, {user: 77}]
  "m{port}":
    each: {engine: mysql, user: msyql}
    groups:
      b: {match: [{user: '{user}'}]}
`)
	var got []string
	for _, n := range UnknownNames(p, input()) {
		got = append(got, fmt.Sprintf("%d %s %s", n.Pos.Line, n.Group, n.Text))
	}
	want := []string{
		`5 a user "nosuch" is not known on this host: its rule matches no process`,
		`5 a unix_group "nogroup" is not known on this host: its rule matches no process`,
		`7 m{port} user "msyql" is not known on this host: its rule matches no process`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A rule that looks at where a process is stops matching by our own move; the process is unclaimed then, and
// nothing else: staying is the plan's part.
func TestCgroupRuleAfterTheMove(t *testing.T) {
	groups := mustExpand(t, nil, group("g", 1, policy.Match{Cgroup: "/batch/"}))
	p := proc(10, "/usr/bin/psql", "psql")
	p.Cgroups = map[string]string{"cpu": "/batch/nightly"}
	if got := placed(Classify(groups, input(p))); got[10] != "g" {
		t.Errorf("before the move: %v", got)
	}
	p.Cgroups = map[string]string{"cpu": "/bulkhead/g"}
	if r := Classify(groups, input(p)); len(r.Placements)+len(r.Skips)+len(r.Problems) > 0 {
		t.Errorf("after the move: %+v", r)
	}
}

// Explanations cannot steer a terminal.
func TestExplainIsPrintable(t *testing.T) {
	const evil = "\x1b[2J\n"
	main := instance("mysql", "", 10, 3306, "/d"+evil)
	p := proc(10, "/tmp/"+evil, "mysqld"+evil)
	p.Comm, p.Cgroups, p.Env = evil, map[string]string{"cpu": "/" + evil, "name=systemd": "/" + evil + ".service"},
		[]string{"A=" + evil}
	in := input(p)
	in.Instances = []engine.Instance{main}
	var rules []policy.Match
	for _, m := range singles {
		if m.Part == "" {
			m.Except = nil
			rules = append(rules, m)
		}
	}
	rules = append(rules, policy.Match{Engine: "mysql", DataDir: "/other"})
	attempts, err := Explain(mustExpand(t, nil, group("g", 1, rules...)), in, 10)
	if err != nil || len(attempts) < len(rules) {
		t.Fatal(attempts, err)
	}
	for _, a := range attempts {
		if strings.ContainsAny(a.Why, "\x1b\n") {
			t.Errorf("{%s}: %q", a.Rule.Text, a.Why)
		}
	}
}

func TestPins(t *testing.T) {
	chain := []procfs.Process{proc(10, "/usr/bin/bash", "bash"), proc(11, "/usr/bin/make", "make"),
		proc(12, "/usr/bin/cc", "cc"), proc(13, "/usr/bin/psql", "psql")}
	for i := 1; i < len(chain); i++ {
		chain[i].PPID = chain[i-1].PID
	}
	groups := mustExpand(t, nil, group("a", 1, policy.Match{Exe: "psql"}), group("b", 2), group("c", 3))
	in := input(chain...)
	in.Pins = map[procfs.ID]string{
		chain[1].ID:         "b",
		chain[2].ID:         "c",
		{PID: 10, Start: 1}: "a", // of a process that had this pid before
	}
	result := Classify(groups, in)
	if got := fmt.Sprint(placed(result)); got != "map[11:b 12:c 13:c]" {
		t.Errorf("placed %s", got)
	}
	for _, p := range result.Placements {
		if p.By != ByPin || p.Rule == "" {
			t.Errorf("process %d by %q: %q", p.Process.PID, p.By, p.Rule)
		}
	}
	// A process moved alone takes nobody along.
	in.Alone = map[procfs.ID]bool{chain[1].ID: true, chain[2].ID: true}
	if got := fmt.Sprint(placed(Classify(groups, in))); got != "map[11:b 12:c 13:a]" {
		t.Errorf("moved without descendants: placed %s", got)
	}
	in.Alone = nil
	// A pin to a group that is gone leaves the process to the rules.
	in.Pins = map[procfs.ID]string{chain[1].ID: "gone"}
	if got := fmt.Sprint(placed(Classify(groups, in))); got != "map[13:a]" {
		t.Errorf("with a stale pin: %s", got)
	}
}

func TestNeeds(t *testing.T) {
	for _, test := range []struct {
		match       policy.Match
		env, groups bool
	}{
		{policy.Match{Exe: "x", User: "u"}, false, false},
		{policy.Match{Env: "A"}, true, false},
		{policy.Match{Exe: "x", Except: []policy.Match{{Env: "A"}}}, true, false},
		{policy.Match{UnixGroup: "dba"}, false, true},
		{policy.Match{Exe: "x", Except: []policy.Match{{Exe: "y"}, {UnixGroup: "dba"}}}, false, true},
	} {
		groups := mustExpand(t, nil, group("g", 1, test.match))
		if env, groups := NeedsEnv(groups), NeedsGroups(groups); env != test.env || groups != test.groups {
			t.Errorf("{%s}: environment %t, groups %t", text(&test.match), env, groups)
		}
	}
	if NeedsEnv(nil) || NeedsGroups(nil) {
		t.Error("no groups need the environment, or groups of users")
	}
}

func TestExplainGolden(t *testing.T) {
	sessions := group("sessions", 10, policy.Match{Cmdline: `BXTST02.*LOCAL=NO`},
		policy.Match{Cmdline: `ora_p[[:digit:]].{2}_BXTST02`, User: "oracle"})
	tpl := &policy.Group{
		Name: "{engine}{port}", Each: &policy.Match{Engine: "postgresql",
			Pos: policy.Pos{File: "p.yaml", Line: 20, Column: 11}},
		Groups: []*policy.Group{group("wal", 22, policy.Match{Engine: "postgresql", Part: "walwriter"})},
	}
	gs := []*policy.Group{
		{Name: "BX1", Groups: []*policy.Group{sessions}}, tpl,
		group("reports", 30, policy.Match{User: "report", Except: []policy.Match{{Exe: "psql"}}},
			policy.Match{Exe: "/opt/*/bin/report"}, policy.Match{UnixGroup: "dba"}, policy.Match{Unit: "cron"},
			policy.Match{Cgroup: "/user.slice/"},
			policy.Match{Ancestor: "crond", User: "report"}, policy.Match{Env: "REPORT=1"},
			policy.Match{User: "nobody-here"}),
	}
	instances := []engine.Instance{testInstance}
	cron := proc(50, "/usr/sbin/crond", "crond")
	psql := proc(60, "/usr/bin/psql", "psql", "-c", "select 1")
	psql.PPID = 50
	psql.Cgroups = map[string]string{"cpu": "/", "name=systemd": "/system.slice/crond.service"}
	report := proc(61, "/opt/acme/bin/report", "report")
	report.PPID, report.Env = 50, []string{"REPORT=1"}
	wal := proc(101, "/usr/lib/postgresql/15/bin/postgres", "postgres: 15/main: walwriter ")
	wal.UID = uids["postgres"]
	shell := proc(62, "/usr/bin/bash", "-bash")
	shell.UID = 0
	in := input(cron, psql, report, wal, shell)
	in.Instances = instances
	in.Pins = map[procfs.ID]string{psql.ID: "reports"}
	groups := mustExpand(t, instances, gs...)

	var b strings.Builder
	for _, pid := range []int{60, 61, 101, 62} {
		attempts, err := Explain(groups, in, pid)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "process %d\n", pid)
		for _, a := range attempts {
			mark := " "
			if a.Matched {
				mark = "*"
			}
			fmt.Fprintf(&b, " %s %-20s %4d {%s}\n      %s\n", mark, a.Rule.Group, a.Score, a.Rule.Text, a.Why)
		}
	}
	for _, p := range Classify(groups, in).Placements {
		fmt.Fprintf(&b, "placed %d in %s by %s {%s} %d\n", p.Process.PID, p.Group, p.By, p.Rule, p.Score)
	}
	file := filepath.Join("testdata", "explain.golden")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("differs from %s (run with -update to accept)\n%s", file, b.String())
	}
	if _, err := Explain(groups, in, 4711); err == nil || !strings.Contains(err.Error(), "4711") {
		t.Errorf("a process that is not there: %v", err)
	}
}

// drawProcess and drawMatch make small worlds in which rules often match.
func drawProcess(pid int) *rapid.Generator[procfs.Process] {
	return rapid.Custom(func(t *rapid.T) procfs.Process {
		exe := rapid.SampledFrom([]string{"/bin/a", "/bin/b", "/opt/c", ""}).Draw(t, "exe")
		p := proc(pid, exe)
		p.PPID = rapid.IntRange(0, 12).Draw(t, "ppid")
		p.UID = rapid.SampledFrom([]int{0, 1005, 102}).Draw(t, "uid")
		p.GID = rapid.SampledFrom([]int{0, 1005}).Draw(t, "gid")
		p.Args = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "-bash", "x y", ""}), 0, 3).Draw(t, "args")
		p.State = rapid.SampledFrom([]byte("SSSZ")).Draw(t, "state")
		p.Cgroups = map[string]string{"cpu": rapid.SampledFrom([]string{"/", "/s/u.service", "/docker/x"}).Draw(t,
			"cgroup")}
		return p
	})
}

func drawMatch() *rapid.Generator[policy.Match] {
	return rapid.Custom(func(t *rapid.T) policy.Match {
		maybe := func(name string, values ...string) string {
			return rapid.SampledFrom(append(values, "", "")).Draw(t, name)
		}
		m := policy.Match{
			Exe: maybe("exe", "a", "b", "/bin/*"), User: maybe("user", "report", "102", "root"),
			UnixGroup: maybe("unix_group", "report"),
			Cmdline:   maybe("cmdline", "a", "x y", "bash$"), Cgroup: maybe("cgroup", "/s/"),
			Ancestor: maybe("ancestor", "a", "c"),
		}
		if rapid.Bool().Draw(t, "except") {
			m.Except = []policy.Match{{Exe: "b"}}
		}
		if score(&m) == 0 {
			m.User = "report"
		}
		return m
	})
}

// drawWorld makes groups, some of them nested, and a look at a host.
func drawWorld(t *rapid.T) ([]*policy.Group, Input) {
	var groups []*policy.Group
	for n := range rapid.IntRange(1, 5).Draw(t, "groups") {
		g := group(fmt.Sprint("g", n), n*20, rapid.SliceOfN(drawMatch(), 0, 3).Draw(t, "match")...)
		if rapid.Bool().Draw(t, "nested") {
			g.Groups = []*policy.Group{group("in", n*20+10, rapid.SliceOfN(drawMatch(), 0, 2).Draw(t, "inner")...)}
		}
		groups = append(groups, g)
	}
	var procs []procfs.Process
	for pid := range rapid.IntRange(1, 10).Draw(t, "processes") {
		procs = append(procs, drawProcess(pid+1).Draw(t, "process"))
	}
	in := input(procs...)
	in.Self = procfs.ID{PID: 3, Start: 30}
	if rapid.Bool().Draw(t, "pinned") {
		in.Pins = map[procfs.ID]string{{PID: 2, Start: 20}: "g0"}
	}
	return groups, in
}

// outcome is what a classification says, without the order of the groups.
func outcome(r Result) string {
	var b strings.Builder
	for _, p := range r.Placements {
		fmt.Fprintln(&b, p.Process.PID, p.Group, p.By, p.Rule, p.Pos, p.Score)
	}
	for _, s := range r.Skips {
		fmt.Fprintln(&b, s.Process.PID, s.Group, s.Reason)
	}
	for _, p := range r.Problems {
		fmt.Fprintln(&b, p.Pos, p.Msg, p.Hint, p.Also)
	}
	return b.String()
}

func expandAny(t *rapid.T, groups []*policy.Group) []Group {
	made, problems := Expand(&policy.Policy{Groups: groups}, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return made
}

// The order of processes, of groups and of the rules in a group changes nothing.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups, in := drawWorld(t)
		want := outcome(Classify(expandAny(t, groups), in))
		in.Processes = rapid.Permutation(in.Processes).Draw(t, "order of processes")
		shuffled := rapid.Permutation(groups).Draw(t, "order of groups")
		for i, g := range shuffled {
			other := *g
			other.Match = rapid.Permutation(g.Match).Draw(t, "order of rules")
			shuffled[i] = &other
		}
		if got := outcome(Classify(expandAny(t, shuffled), in)); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// A rule that matches nothing moves nothing, wherever it is put.
func TestUnrelatedRuleMovesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups, in := drawWorld(t)
		want := outcome(Classify(expandAny(t, groups), in))
		m := drawMatch().Draw(t, "more")
		m.Exe = "not-there"
		m.Pos = policy.Pos{File: "p.yaml", Line: 500}
		n := rapid.IntRange(0, len(groups)-1).Draw(t, "where")
		if rapid.Bool().Draw(t, "own group") {
			groups = slices.Insert(groups, n, &policy.Group{Name: "more", Match: []policy.Match{m}})
		} else {
			groups[n].Match = append(groups[n].Match, m)
		}
		if got := outcome(Classify(expandAny(t, groups), in)); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// Whatever the rules are: nobody is placed twice, nobody who must not be moved is placed, and what Explain
// says matched is what Classify went by.
func TestClassifyInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policyGroups, in := drawWorld(t)
		groups := expandAny(t, policyGroups)
		result := Classify(groups, in)
		l := newLook(in)
		seen := make(map[procfs.ID]bool)
		for _, p := range result.Placements {
			if seen[p.Process.ID] {
				t.Fatalf("process %d is placed twice", p.Process.PID)
			}
			seen[p.Process.ID] = true
			if why := l.protected(l.byPID[p.Process.PID]); why != "" {
				t.Fatalf("process %d is placed though %s", p.Process.PID, why)
			}
			if p.By == ByPin {
				continue
			}
			attempts, err := Explain(groups, in, p.Process.PID)
			if err != nil {
				t.Fatal(err)
			}
			best := 0
			for _, a := range attempts {
				if a.Matched {
					best = max(best, a.Score)
				}
			}
			if best != p.Score {
				t.Fatalf("process %d is placed with score %d, and a rule of %d matches it", p.Process.PID, p.Score,
					best)
			}
		}
		for _, s := range result.Skips {
			if seen[s.Process.ID] {
				t.Fatalf("process %d is placed and skipped", s.Process.PID)
			}
		}
	})
}
