package classify

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/classify/matchkey"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"

	"pgregory.net/rapid"
)

// instance makes an instance of one process.
func instance(kind, flavor string, pid, port int, datadir string) engine.Instance {
	id := procfs.ID{PID: pid, Start: uint64(pid) * 10}
	i := engine.Instance{Engine: kind, Flavor: flavor, Main: id, Port: port, DataDir: datadir, User: "mysql",
		Members: []engine.Member{{ID: id, Part: "main"}}}
	if port != 0 {
		i.Ports = []int{port}
	}
	return i
}

// parsed reads a policy with the real parser.
func parsed(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := parse.Policy([]policy.Source{{Path: "p.yaml", Text: text}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// show prints groups with their rules, one per line.
func show(groups []Group) string {
	var b strings.Builder
	for _, g := range groups {
		inner := ""
		if g.Inner {
			inner = " (inner)"
		}
		fmt.Fprintf(&b, "%s%s\n", g.Path, inner)
		for _, r := range g.Rules {
			fmt.Fprintf(&b, "  %d {%s}\n", r.Index, r.Text)
		}
	}
	return b.String()
}

func TestExpandTemplates(t *testing.T) {
	p := parsed(t, `
version: 1
groups:
  "mysql{port}":
    role: database
    each: {engine: mysql}
    groups:
      backup: {role: helper, match: [{cmdline: '(mysqldump|xtrabackup).*{datadir}', user: '{user}'}]}
      tools: {match: [{exe: '{datadir}/bin/*', except: [{cmdline: ':{port}$'}]}]}
  pg:
    groups:
      "{instance}":
        each: {engine: postgresql}
        groups:
          wal: {match: [{engine: postgresql, part: walwriter}, {engine: mysql, port: 3306, part: main}]}
  "cache{socket}": {each: {engine: redis, socket: /run/a.b/c.sock}}
  reports: {role: batch, match: [{user: report}]}
`)
	cache := instance(engine.Redis, "", 5, 0, "/r")
	cache.Socket = "/run/a.b/c.sock"
	sentinel := instance(engine.Redis, "", 6, 26379, "/r")
	sentinel.Members[0].Part = engine.PartSentinel
	boxed := instance(engine.MySQL, "", 7, 3310, "/c")
	boxed.Container = true
	groups, problems := Expand(p, []engine.Instance{
		cache, sentinel, boxed, instance(engine.PostgreSQL, "", 3, 5432, "/pg"),
		instance(engine.MySQL, engine.MariaDB, 2, 3307, "/d.2"), instance(engine.MySQL, "", 1, 3306, "/d[1]"),
	})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := `mysql3306 (inner)
  0 {engine: mysql, port: 3306}
mysql3306/backup
  0 {cmdline: '(mysqldump|xtrabackup).*/d\[1\]', user: mysql}
mysql3306/tools
  0 {exe: '/d\[1]/bin/*', except: [{cmdline: ':3306$'}]}
mysql3307 (inner)
  0 {engine: mysql, port: 3307}
mysql3307/backup
  0 {cmdline: '(mysqldump|xtrabackup).*/d\.2', user: mysql}
mysql3307/tools
  0 {exe: '/d.2/bin/*', except: [{cmdline: ':3307$'}]}
pg (inner)
pg/postgresql5432 (inner)
  0 {engine: postgresql, port: 5432}
pg/postgresql5432/wal
  0 {engine: postgresql, port: 5432, part: walwriter}
  1 {engine: mysql, port: 3306, part: main}
cacherun-a.b-c.sock
  0 {engine: redis, socket: /run/a.b/c.sock}
reports
  0 {user: report}
`
	if got := show(groups); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, g := range groups {
		if (g.Instance == "") != (g.Path == "pg" || g.Path == "reports") {
			t.Errorf("group %s has instance %q", g.Path, g.Instance)
		}
	}
	if groups[0].Instance != "mysql 3306 (/d[1])" || groups[0].Role != policy.RoleDatabase ||
		groups[1].Parent != "mysql3306" || groups[1].Role != policy.RoleHelper {
		t.Errorf("groups %+v", groups[:2])
	}
}

// The processes of an instance go to its own template group, helpers beside it to theirs, and a part to the
// group inside; the same part of another instance does not conflict.
func TestTemplateClaimsItsInstance(t *testing.T) {
	p := parsed(t, `
version: 1
groups:
  "pg{port}":
    each: {engine: postgresql}
    groups:
      vacuum: {match: [{engine: postgresql, part: autovacuum}]}
`)
	var instances []engine.Instance
	var procs []procfs.Process
	for n := range 2 {
		i := instance(engine.PostgreSQL, "", 100*(n+1), 5432+n, fmt.Sprint("/pg", n))
		vacuum := procfs.ID{PID: 100*(n+1) + 1, Start: uint64(100*(n+1)+1) * 10}
		i.Members = append(i.Members, engine.Member{ID: vacuum, Part: "autovacuum"})
		instances = append(instances, i)
		procs = append(procs, proc(i.Main.PID, "/usr/bin/postgres", "postgres"),
			proc(vacuum.PID, "/usr/bin/postgres", "postgres: autovacuum launcher"))
	}
	groups, problems := Expand(p, instances)
	in := input(procs...)
	in.Instances = instances
	result := Classify(groups, in)
	if got := fmt.Sprint(placed(result)); len(problems)+len(result.Problems) > 0 ||
		got != "map[100:pg5432 101:pg5432/vacuum 200:pg5433 201:pg5433/vacuum]" {
		t.Errorf("placed %s, problems %v %v", got, problems, result.Problems)
	}
}

func TestExpandProblems(t *testing.T) {
	socketOnly := instance(engine.MySQL, "", 1, 0, "/d")
	socketOnly.Socket = "/run/x.sock"
	starting := instance(engine.MySQL, "", 2, 0, "/e")
	mysql := func(port int) engine.Instance { return instance(engine.MySQL, "", port, port, fmt.Sprint("/d", port)) }
	each := &policy.Match{Engine: "mysql", Pos: policy.Pos{File: "p.yaml", Line: 2, Column: 3}}
	tpl := func(name string, line int, children ...*policy.Group) *policy.Group {
		g := group(name, line)
		g.Each, g.Groups = each, children
		return g
	}
	for _, test := range []struct {
		name      string
		instances []engine.Instance
		groups    []*policy.Group
		want      []string // paths
		problem   string   // "" for none
	}{
		{"no instance, no group", nil, []*policy.Group{tpl("mysql{port}", 1)}, nil, ""},
		{"a template and a group of one name", []engine.Instance{mysql(3306)},
			[]*policy.Group{group("mysql3306", 9), tpl("mysql{port}", 1, group("in", 3))}, []string{"mysql3306"},
			`two groups are called "mysql3306": the one at p.yaml:9:3, and the template's for mysql 3306 (/d3306) ` +
				`at p.yaml:1:3`},
		{"two instances of one name", []engine.Instance{mysql(3306), mysql(3307)}, []*policy.Group{tpl("{engine}", 1)},
			[]string{"mysql"}, ""},
		{"names that become one", []engine.Instance{mysql(3306)},
			[]*policy.Group{tpl("x{datadir}", 1), group("xd3306", 5)}, []string{"xd3306"},
			`two groups are called "xd3306"`},
		{"no port", []engine.Instance{socketOnly}, []*policy.Group{tpl("mysql{port}", 1)}, nil,
			`name "mysql{port}" uses {port}, and mysql /run/x.sock (/d) has none`},
		{"no port, named otherwise", []engine.Instance{socketOnly}, []*policy.Group{tpl("{instance}", 1)},
			[]string{"mysql-x"}, ""},
		{"no port in a match", []engine.Instance{socketOnly},
			[]*policy.Group{tpl("{instance}", 1, group("b", 5, policy.Match{Cmdline: "x.*{port}"}))},
			[]string{"mysql-x", "mysql-x/b"}, `a match of group "mysql-x/b" uses {port}`},
		{"not listening yet", []engine.Instance{starting}, []*policy.Group{tpl("mysql{port}", 1, group("b", 5))}, nil,
			""},
		{"a reserved name", []engine.Instance{{Engine: "mysql", Port: 1, User: "b"}},
			[]*policy.Group{{Name: "y", Groups: []*policy.Group{{Name: "d{user}", Each: each}}}}, []string{"y"},
			`"db" is reserved`},
		{"a reserved name at the top", []engine.Instance{{Engine: "mysql", Port: 1, User: "b"}},
			[]*policy.Group{{Name: "d{user}", Each: each}}, nil, `"db" is reserved`},
		{"a kernel file", []engine.Instance{{Engine: "mysql", Port: 1, User: "cpu.stat"}},
			[]*policy.Group{tpl("{user}", 1)}, nil, `"cpu.stat" is reserved`},
		{"no name is left", []engine.Instance{{Engine: "mysql", Port: 1, User: "ü"}}, []*policy.Group{tpl("{user}", 1)},
			nil, `gives ""`},
		{"outside of a template", nil, []*policy.Group{group("x{port}", 1)}, nil, "outside of a template"},
		{"unknown part", nil, []*policy.Group{group("x", 1, policy.Match{Engine: "postgresql", Part: "walwritter"})},
			[]string{"x"}, `postgresql has no part "walwritter"`},
		{"part of another engine", nil, []*policy.Group{tpl("m{port}", 1,
			group("x", 1, policy.Match{Engine: "mysql",
				Except: []policy.Match{{Engine: "mysql", Part: "walwriter"}}}))}, nil, `mysql has no part "walwriter"`},
		{"each over processes", []engine.Instance{mysql(3306)},
			[]*policy.Group{{Name: "m{port}", Each: &policy.Match{Engine: "mysql", Exe: "mysqld"}}}, nil,
			"each cannot look at exe"},
		{"each with an exception", []engine.Instance{mysql(3306), mysql(3307)},
			[]*policy.Group{{Name: "m{port}", Each: &policy.Match{Engine: "mysql",
				Except: []policy.Match{{Port: "3306"}}}}}, []string{"m3307"}, ""},
		{"each of a user", []engine.Instance{mysql(3306)},
			[]*policy.Group{{Name: "m{port}", Each: &policy.Match{Engine: "mysql", User: "other"}}}, nil, ""},
		{"a pattern that does not compile", nil, []*policy.Group{group("x", 1, policy.Match{Cmdline: "("})},
			[]string{"x"}, `read cmdline "("`},
		{"a glob that does not compile", nil, []*policy.Group{group("x", 1, policy.Match{Cgroup: "/a["})},
			[]string{"x"}, `read cgroup "/a["`},
	} {
		t.Run(test.name, func(t *testing.T) {
			groups, problems := Expand(&policy.Policy{Groups: test.groups}, test.instances)
			var got []string
			for _, g := range groups {
				got = append(got, g.Path)
			}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("groups %v, want %v", got, test.want)
			}
			if test.problem == "" && len(problems) > 0 || test.problem != "" &&
				(len(problems) != 1 || !strings.Contains(problems[0].Msg, test.problem)) {
				t.Errorf("problems %v, want %q", problems, test.problem)
			}
		})
	}
}

// A second server that claims another's port takes nothing from it and breaks nothing, whichever is looked at
// first.
func TestRivals(t *testing.T) {
	each := &policy.Match{Engine: "mysql"}
	g := group("mysql{port}", 1)
	g.Each, g.Groups = each, []*policy.Group{group("backup", 5, policy.Match{Exe: "mysqldump"})}
	const apart = "its limits do not reach this one; with {datadir} in the template's name each has its own"
	real, fake, third := instance("mysql", "", 100, 3306, "/var/lib/mysql"),
		instance("mysql", "", 50, 3306, "/tmp/fake\x1b"), instance("mysql", "", 120, 3306, "/a")
	for name, test := range map[string]struct {
		seen []*engine.Instance
		want int // pid of the winner
	}{
		"who listens":         {[]*engine.Instance{&real}, 100},
		"else who came first": {nil, 50},
		"of two that listen":  {[]*engine.Instance{&real, &third}, 100},
	} {
		for _, order := range [][]*engine.Instance{{&real, &fake, &third}, {&third, &fake, &real}} {
			var instances []engine.Instance
			var procs []procfs.Process
			for _, i := range order {
				inst := *i
				inst.Seen = slices.Contains(test.seen, i)
				instances = append(instances, inst)
				procs = append(procs, proc(i.Main.PID, "/usr/sbin/mysqld", "mysqld"))
			}
			groups, problems := Expand(&policy.Policy{Groups: []*policy.Group{g}}, instances)
			in := input(procs...)
			in.Instances = instances
			result := Classify(groups, in)
			if len(groups) != 2 || len(problems)+len(result.Problems) > 0 {
				t.Fatalf("%s: groups %v, problems %v %v", name, groups, problems, result.Problems)
			}
			if got, want := fmt.Sprint(placed(result)), fmt.Sprintf("map[%d:mysql3306]", test.want); got != want {
				t.Errorf("%s: placed %s, want %s", name, got, want)
			}
			if len(result.Skips) != 2 || !result.Skips[0].Ambiguous || result.Skips[0].Group != "mysql3306" ||
				len(result.Notes) != 2 {
				t.Errorf("%s: skips %+v, notes %+v", name, result.Skips, result.Notes)
			}
			for _, n := range result.Notes {
				if !strings.Contains(n.Text, `gets no group: "mysql3306" is taken by mysql 3306`) ||
					!strings.HasSuffix(n.Text, apart) || strings.Contains(n.Text, "\x1b") {
					t.Errorf("%s: note %q", name, n.Text)
				}
			}
		}
	}
}

// What tells two instances of one port apart is named, and is in the groups' names where the policy follows.
func TestRivalsApart(t *testing.T) {
	a, b := instance("mysql", "", 100, 3306, "/d"), instance("mysql", "", 120, 3306, "/d")
	expand := func(name string) (groups []Group) {
		groups, problems := Expand(parsed(t, "version: 1\ngroups:\n  '"+name+"': {each: {engine: mysql}}\n"),
			[]engine.Instance{a, b})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return groups
	}
	if groups := expand("{instance}"); len(groups) != 1 || groups[0].Rivals[0].Apart != "" {
		t.Errorf("%+v", groups)
	}
	a.Socket, b.Socket = "/run/a.sock", "/run/b.sock"
	if groups := expand("{instance}"); len(groups) != 1 || groups[0].Rivals[0].Apart != "{socket}" {
		t.Errorf("%+v", groups)
	}
	if groups := expand("mysql{socket}"); len(groups) != 2 {
		t.Errorf("%+v", groups)
	}
}

// A problem of a template is said once, however many instances there are.
func TestExpandSaysItOnce(t *testing.T) {
	g := group("m{port}", 1, policy.Match{Cmdline: "("})
	g.Each = &policy.Match{Engine: "mysql"}
	_, problems := Expand(&policy.Policy{Groups: []*policy.Group{g}},
		[]engine.Instance{instance("mysql", "", 1, 3306, ""), instance("mysql", "", 2, 3307, "")})
	if len(problems) != 1 {
		t.Errorf("problems %v", problems)
	}
}

// A value from the host stands for itself in a pattern: it never widens what a rule matches.
func TestPlaceholdersAreQuoted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := "/" + rapid.StringOfN(rapid.RuneFrom([]rune(`ab.*?[]\+(){}|^$ {port}`)), 0, 12, -1).Draw(t, "datadir")
		i := instance("mysql", "", 1, 3306, value)
		m, missing := substituteMatch(policy.Match{Cmdline: "^{datadir}$", Exe: "{datadir}"}, &i)
		if missing != "" {
			t.Fatal(missing)
		}
		c, err := compile(m, nil)
		if err != nil {
			t.Fatalf("%q: %v", m, err)
		}
		if !c.cmdline.MatchString(value) || c.cmdline.MatchString(value+"x") {
			t.Fatalf("%q does not stand for %q alone", m.Cmdline, value)
		}
		if !c.exe.Matches(value) || c.exe.Matches(value+"x") || c.exe.Matches("/zz") {
			t.Fatalf("%q does not stand for %q alone", m.Exe, value)
		}
	})
}

func TestRuleText(t *testing.T) {
	for want, m := range map[string]policy.Match{
		"engine: mysql, port: 3306":      {Engine: "mysql", Port: "3306"},
		"cmdline: 'it''s', user: oracle": {User: "oracle", Cmdline: "it's"},
		"exe: '/opt/*/x', env: A=1":      {Exe: "/opt/*/x", Env: "A=1"},
		"user: a, except: [{exe: psql}, {cmdline: 'x', unix_group: b}]": {User: "a",
			Except: []policy.Match{{Exe: "psql"}, {Cmdline: "x", UnixGroup: "b"}}},
		"instance: 15/main": {Instance: "15/main"},
		"user: '-x'":        {User: "-x"},
	} {
		if got := matchkey.Text(&m); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
