package classify

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// cut leaves of a command line what is read of one (host.MaxArgs).
func cut(args []string) []string {
	left := procfs.MaxArgs
	for i, arg := range args {
		if len(arg) >= left {
			return append(append([]string(nil), args[:i]...), arg[:left])
		}
		left -= len(arg) + 1
	}
	return args
}

// badCommandLines are what anybody may start a process with.
func badCommandLines() map[string][]string {
	long := strings.Repeat("x", 2<<20)
	many := strings.Split(strings.TrimSuffix(strings.Repeat("a ", 200_000), " "), " ")
	return map[string][]string{
		"none":                   nil,
		"empty":                  {""},
		"only empty ones":        {"", "", ""},
		"blank":                  {" ", "\t"},
		"newlines":               {"mysqldump\n", "--port\n3306", "\n"},
		"no text":                {"\xff\xfe\x00", "\xc3\x28"},
		"a terminal's commands":  {"\x1b[2J", "--socket=/\x1b]0;x\a"},
		"two megabytes":          {long},
		"two megabytes behind":   {"mysqldump", "--port=" + long, long},
		"an Oracle name of them": {"ora_pmon_" + long},
		"a session of them":      {"oracle" + long + " (LOCAL=NO)"},
		"200,000 arguments":      many,
		"an option at the end":   {"mysqldump", "--port"},
		"nothing but dashes":     {"-", "--", "---", "-=", "--="},
		"a title with it all":    {"postgres: \xff\n: walwriter " + long[:70000]},
		"an address without end": {"pg_dump", "-d", "postgresql://" + strings.Repeat("a@", 50000), "-h", "[::"},
		"pairs":                  {"pt-archiver", "h=" + long[:10000] + ",P=,S"},
		"a broken number":        {"mysqldump", "--port=99999999999999999999", "-P", "-1"},
		"braces":                 {"{port}", "mysql{port}", "%s%n%d"},
		"quotes":                 {`'"`, "`id`", "$(id)"},
	}
}

// Whatever a process was started with, as whatever program: recognising, placing and explaining it ends soon, and what
// is said about it can be printed.
func TestBadCommandLines(t *testing.T) {
	text := `version: 1
groups:
  "{instance}":
    each: {engine: mysql}
    groups: {backup: {match: [{helper: backup}]}}
  "o-{sid}": {each: {engine: oracle}}
  tools: {match: [{helper: tool}, {cmdline: '[^a-z]{2}x$'}, {cmdline: '^$', user: report}]}
`
	exes := []string{
		"", "/usr/sbin/mysqld", "/usr/lib/postgresql/15/bin/postgres", "/usr/bin/redis-server", "/u01/home/bin/oracle",
		"/usr/bin/mongod", "/opt/scylladb/libexec/scylla",
		"/usr/bin/java", "/opt/mssql/bin/sqlservr", "/usr/bin/clickhouse", "/usr/bin/etcd", "/usr/bin/mysqldump",
		"/usr/bin/perl", "/usr/bin/python3", "/usr/bin/pg_dump", "/u01/home/bin/tnslsnr", "/bin/\xff\x1b",
	}
	for name, args := range badCommandLines() {
		start := time.Now()
		procs := []procfs.Process{proc(50, "/usr/sbin/mysqld", "mysqld", "--port=3306"),
			proc(51, "/usr/sbin/mysqld", "mysqld", "--port=3307")}
		for n, exe := range exes {
			procs = append(procs, proc(100+n, exe, cut(args)...))
		}
		in := input(procs...)
		in.Instances = recognise.Instances(procs, nothing{})
		groups, problems := Expand(parsed(t, text), in.Instances)
		r := Classify(groups, in)
		said := []string{}
		for _, p := range append(problems, r.Problems...) {
			said = append(said, p.Msg)
		}
		for _, i := range in.Instances {
			said = append(said, i.Name(), i.String(), strings.Join(i.Evidence, ""))
			for _, h := range i.Helpers {
				said = append(said, h.Tool, h.How, h.Rate.Given)
			}
		}
		for n := range exes {
			attempts, err := Explain(groups, in, 100+n)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range attempts {
				said = append(said, a.Why)
			}
			said = append(said, Service(in, 100+n))
		}
		for _, s := range said {
			if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
				t.Errorf("%s: %.200q cannot be printed", name, s)
			}
			if len(s) > 4<<10 {
				t.Errorf("%s: %d bytes are said: %.100q…", name, len(s), s)
			}
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s: takes %s", name, took)
		}
	}
}

// An expression that takes other engines forever: RE2 reads each byte once for each state, and there are no expressions
// of which twice the text takes more than about twice the time. What would have too many states is refused.
func TestSlowExpressions(t *testing.T) {
	for _, expr := range []string{`^(a+)+$`, `^(a|aa)+$`, `(a*)*b`, `(.*)(.*)(.*)(.*)(.*)z$`, `(x+x+)+y`,
		`^(([a-z])+.)+[A-Z]([a-z])+$`} {
		groups := mustExpand(t, nil, group("g", 1, policy.Match{Cmdline: expr}))
		start := time.Now()
		for _, size := range []int{32, procfs.MaxArgs} { // 32 would do for an engine that goes back
			r := Classify(groups, input(proc(10, "/x", strings.Repeat("a", size)+"!")))
			if got := fmt.Sprint(placed(r)); got != "map[]" {
				t.Errorf("%s matches %d bytes: %s", expr, size, got)
			}
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s takes %s", expr, took)
		}
	}
	for _, expr := range []string{`((a{100}){100}){100}`, `a{1001}`, `(?P<n>a)\k<n>`, `(?=a)b`, `(a)\1`} {
		text := "version: 1\ngroups:\n  g: {match: [{cmdline: '" + expr + "'}]}\n"
		if _, err := parse.Policy([]policy.Source{{Path: "p.yaml", Text: text}}); err == nil {
			t.Errorf("%s is taken", expr)
		}
	}
}

// A process that takes another name is judged by that from the next look on: by what a rule asks for, and never as a
// part of an instance that its executable is not of.
func TestRenamed(t *testing.T) {
	in := oracleHost("BX1")
	text := `version: 1
groups:
  "{sid}": {each: {engine: oracle}}
  named: {match: [{cmdline: '^innocent'}]}
`
	look := func(change func(p *procfs.Process)) map[int]string {
		procs := append([]procfs.Process(nil), in.Processes...)
		procs = append(procs, proc(9000, "/home/x/worker", "worker"))
		change(&procs[len(procs)-1])
		again := input(procs...)
		again.Instances = recognise.Instances(procs, nothing{})
		groups, problems := Expand(parsed(t, text), again.Instances)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return placed(Classify(groups, again))
	}
	for name, test := range map[string]struct {
		change func(p *procfs.Process)
		want   string
	}{
		"as it was":         {func(*procfs.Process) {}, ""},
		"another title":     {func(p *procfs.Process) { p.Args = []string{"innocent"} }, "named"},
		"a title of Oracle": {func(p *procfs.Process) { p.Args, p.Comm = []string{"ora_p000_BX1"}, "oracle" }, ""},
		"a copy of Oracle": {func(p *procfs.Process) {
			p.Args, p.Exe = []string{"ora_p000_BX1"},
				"/home/x/oracle"
		}, ""},
		"a title no more":       {func(p *procfs.Process) { p.Args = nil }, ""},
		"a zombie of that name": {func(p *procfs.Process) { p.State, p.Args, p.Exe = 'Z', nil, "" }, ""},
		"in a namespace of its own": {func(p *procfs.Process) {
			p.Args, p.Exe, p.ForeignNamespace = []string{"innocent"}, "/home/x/worker", true
		}, "named"},
	} {
		got := look(test.change)
		if got[9000] != test.want || got[3000] != "BX1" {
			t.Errorf("%s: %v", name, got)
		}
	}
}
