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

	"bulkhead/internal/classify/matchkey"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
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
				t.Errorf("{%s} against {%s}: placed in %q, %v", matchkey.Text(&singles[strong]),
					matchkey.Text(&weak), got, result.Problems)
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
	want := map[string]int{"exe: /path": matchkey.ScoreExePath}
	for _, k := range matchkey.Keys {
		want[k.Name] = k.Score
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
		all = append(all, matchkey.Score(&m))
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
		if got := matchkey.Score(&m); got != matchkey.ScoreInstance+1 {
			t.Errorf("{%s} scores %d", matchkey.Text(&m), got)
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
			t.Errorf("{%s}: environment %t, groups %t", matchkey.Text(&test.match), env, groups)
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
