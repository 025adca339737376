package classify

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
)

// nothing is a source that knows of nothing.
type nothing struct{}

func (nothing) Listeners([]int) (map[int][]sockets.Listener, error)   { return nil, nil }
func (nothing) Connections([]int) (map[int][]sockets.Listener, error) { return nil, nil }
func (nothing) Cwd(int) (string, error)                               { return "", fs.ErrNotExist }
func (nothing) Environ(int) ([]string, error)                         { return nil, fs.ErrNotExist }
func (nothing) ReadRootFile(int, string, int64) ([]byte, error)       { return nil, fs.ErrNotExist }
func (nothing) UserName(int) string                                   { return "" }

// oracleHost is the case of the Oracle document: instances behind one listener.
func oracleHost(sids ...string) Input {
	const home = "/u01/app/oracle/product/12.1.0/dbhome_1/bin/"
	listener := proc(2061, home+"tnslsnr", home+"tnslsnr", "LISTENER", "-inherit")
	procs := []procfs.Process{listener}
	for n, sid := range sids {
		pid := 3000 + 1000*n
		for _, name := range []string{"pmon", "smon", "lgwr", "lg00", "ckpt", "dbw0", "lreg", "pxmn", "psp0", "p000",
			"p00f"} {
			procs = append(procs, proc(pid, home+"oracle", "ora_"+name+"_"+sid))
			pid++
		}
		session, young := proc(pid, home+"oracle", "oracle"+sid, "(LOCAL=NO)"),
			proc(pid+1, home+"oracle", "oracle"+sid+" (LOCAL=NO)")
		young.PPID = 2061
		rman, channel := proc(pid+2, home+"rman", "rman", "target", "/"),
			proc(pid+3, home+"oracle", "oracle"+sid, "(DESCRIPTION=(LOCAL=YES)(ADDRESS=(PROTOCOL=beq)))")
		channel.PPID = rman.PID
		procs = append(procs, session, young, rman, channel)
	}
	in := input(procs...)
	in.Instances = recognise.Instances(procs, nothing{})
	return in
}

// where names the group of each process by what the process calls itself.
func where(t *testing.T, r Result) string {
	t.Helper()
	var lines []string
	for _, p := range r.Placements {
		lines = append(lines, p.Group+": "+strings.Join(p.Process.Args, " "))
	}
	return strings.Join(lines, "\n")
}

// Two instances behind one listener, each with limits of its own by pattern, the log writer left out: the policy of
// docs/engines.md, which asks for one of them by its SID and for the other by the patterns of the document.
func TestOracleDocument(t *testing.T) {
	doc, err := os.ReadFile("../../docs/engines.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(.*?BXTST02.*?)```").FindSubmatch(doc)
	if example == nil {
		t.Fatal("docs/engines.md has lost its Oracle example")
	}
	in := oracleHost("BXTST01", "BXTST02", "BXTST020")
	groups, problems := Expand(parsed(t, string(example[1])), in.Instances)
	r := Classify(groups, in)
	if len(problems)+len(r.Problems) > 0 {
		t.Fatal(problems, r.Problems)
	}
	want := `BX1/sessions: ora_p000_BXTST01
BX1/sessions: ora_p00f_BXTST01
BX1/sessions: oracleBXTST01 (LOCAL=NO)
BX1/sessions: oracleBXTST01 (LOCAL=NO)
BX2/sessions: ora_p000_BXTST02
BX2/sessions: ora_p00f_BXTST02
BX2/sessions: oracleBXTST02 (LOCAL=NO)
BX2/sessions: oracleBXTST02 (LOCAL=NO)
BX2/sessions: ora_p000_BXTST020
BX2/sessions: ora_p00f_BXTST020
BX2/sessions: oracleBXTST020 (LOCAL=NO)
BX2/sessions: oracleBXTST020 (LOCAL=NO)`
	// A pattern takes a SID that begins alike as well; a SID takes none but itself.
	if got := where(t, r); got != want {
		t.Errorf("placed\n%s\nwant\n%s", got, want)
	}
}

func TestSharedListener(t *testing.T) {
	const bx1 = `
  BX1:
    groups:
      sessions: {match: [{engine: oracle, sid: BX1, part: sessions}]}
`
	for _, test := range []struct {
		name, groups string
		sids         []string
		group        string // where the listener goes
		problem      string // part of the message
	}{
		{"among the patterns of one", "\n  BX1: {match: [{cmdline: 'BX1.*LOCAL=NO'}, {exe: tnslsnr}]}",
			[]string{"BX1", "BX2"}, "",
			`group "BX1" of oracle-BX1 would take the listener (process 2061), which also starts the sessions ` +
				`of oracle-BX2`},
		{"in the template of one",
			"\n  \"{sid}\": {each: {engine: oracle}, groups: {net: {match: [{helper: listener}]}}}",
			[]string{"BX1", "BX2"}, "", `group "BX1/net" of oracle-BX1`},
		{"beside the sessions of one", bx1 + "      net: {match: [{exe: tnslsnr}]}\n", []string{"BX1", "BX2"}, "",
			`group "BX1" of oracle-BX1`},
		{"below the instance of one",
			"\n  BX1: {match: [{engine: oracle, sid: BX1}], groups: {net: {match: [{helper: listener}]}}}",
			[]string{"BX1", "BX2"}, "", `group "BX1" of oracle-BX1`},
		{"a group of its own", bx1 + "  net: {match: [{helper: listener}]}\n", []string{"BX1", "BX2"}, "net", ""},
		{"a group of all", "\n  oracle: {match: [{helper: listener}], groups: {\"{sid}\": {each: {engine: oracle}}}}",
			[]string{"BX1", "BX2"}, "oracle", ""},
		{"one instance", "\n  \"{sid}\": {each: {engine: oracle}, groups: {net: {match: [{helper: listener}]}}}",
			[]string{"BX1"}, "BX1/net", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := oracleHost(test.sids...)
			groups, problems := Expand(parsed(t, "version: 1\ngroups:"+test.groups), in.Instances)
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			r := Classify(groups, in)
			if got := placed(r)[2061]; got != test.group {
				t.Errorf("placed in %q, want %q", got, test.group)
			}
			if (test.problem != "") != (len(r.Problems) == 1) || len(r.Problems) > 1 {
				t.Fatalf("problems %v", r.Problems)
			}
			if test.problem == "" {
				return
			}
			if p := r.Problems[0]; !strings.Contains(p.Msg, test.problem) || p.Pos.Line == 0 || p.Hint == "" {
				t.Errorf("%+v", p)
			}
			skipped := false
			for _, s := range r.Skips {
				skipped = skipped || s.Process.PID == 2061 && s.Ambiguous
			}
			if !skipped {
				t.Errorf("skips %+v", r.Skips)
			}
		})
	}
}

// serving gives an instance a helper.
func serving(i *engine.Instance, p procfs.Process, sure bool, rate engine.Rate) {
	i.Helpers = append(i.Helpers, engine.Helper{ID: p.ID, Kind: "backup", Tool: "pg_basebackup", Sure: sure,
		How: "--port", Rate: rate})
}

func TestHelperKey(t *testing.T) {
	const text = `version: 1
groups:
  "pg{port}":
    each: {engine: postgresql}
    groups:
      backup: {role: helper, match: [{helper: backup}]}
      rest: {match: [{helper: exporter}]}
`
	exe := "/usr/lib/postgresql/15/bin/pg_basebackup"
	a, b := instance(engine.PostgreSQL, "", 100, 5432, "/a"), instance(engine.PostgreSQL, "", 200, 5433, "/b")
	first, second, open, loose := proc(10, exe, "pg_basebackup"), proc(11, exe, "pg_basebackup"),
		proc(12, exe, "pg_basebackup"), proc(13, exe, "pg_basebackup", "-h", "db9")
	serving(&a, first, true, engine.Rate{})
	serving(&b, second, true, engine.Rate{})
	serving(&a, open, false, engine.Rate{})
	serving(&b, open, false, engine.Rate{})
	other := proc(14, "/usr/bin/mysqldump", "mysqldump")
	in := input(first, second, open, loose, other, proc(100, "/x/postgres", "postgres"),
		proc(200, "/x/postgres", "postgres"))
	in.Instances = []engine.Instance{a, b}
	for _, test := range []struct{ name, more, want string }{
		{"each template takes its own", "", "map[10:pg5432/backup 11:pg5433/backup 100:pg5432 200:pg5433]"},
		{"the others go where no instance is named", "  any: {match: [{helper: backup}]}\n",
			"map[10:pg5432/backup 11:pg5433/backup 12:any 13:any 14:any 100:pg5432 200:pg5433]"},
		{"an engine is no instance", "  any: {match: [{engine: postgresql, helper: backup}]}\n",
			"map[10:pg5432/backup 11:pg5433/backup 12:any 13:any 100:pg5432 200:pg5433]"},
		{"an instance by its port",
			"  any: {match: [{engine: postgresql, port: 5433, helper: backup, user: report}]}\n",
			"map[10:pg5432/backup 11:any 100:pg5432 200:pg5433]"},
		{"another kind", "  any: {match: [{helper: agent}]}\n",
			"map[10:pg5432/backup 11:pg5433/backup 100:pg5432 200:pg5433]"},
	} {
		groups, problems := Expand(parsed(t, text+test.more), in.Instances)
		r := Classify(groups, in)
		if got := fmt.Sprint(placed(r)); got != test.want || len(problems)+len(r.Problems) > 0 {
			t.Errorf("%s: placed %s, want %s; problems %v %v", test.name, got, test.want, problems, r.Problems)
		}
	}
	groups, _ := Expand(parsed(t, text), in.Instances)
	for pid, want := range map[int]string{
		10: `pg5433/backup: it is a helper (backup, pg_basebackup) of postgresql 5432 (/a): --port, not of ` +
			`postgresql 5433 (/b)`,
		12:  `pg5432/backup: it is a helper (backup, pg_basebackup): --port, not of postgresql 5432 (/a)`,
		13:  `pg5432/backup: it is a helper (backup, pg_basebackup) of no instance here, not of postgresql 5432 (/a)`,
		14:  `pg5432/rest: it is a helper (backup, mysqldump) of no instance here, and no "exporter"`,
		100: `pg5432/backup: it is not a known helper program`,
	} {
		attempts, err := Explain(groups, in, pid)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, a := range attempts {
			all = append(all, a.Rule.Group+": "+a.Why)
		}
		if got := strings.Join(all, "\n"); !strings.Contains(got, want) {
			t.Errorf("process %d:\n%s\nlacks %s", pid, got, want)
		}
	}
}

// The sessions of an RMAN are parts of their instance and helpers as well: a rule for helpers takes them.
func TestHelperOfOracle(t *testing.T) {
	in := oracleHost("BX1", "BX2")
	groups, problems := Expand(parsed(t, `version: 1
groups:
  "{instance}":
    each: {engine: oracle}
    groups:
      local: {match: [{part: local}]}
      backup: {role: helper, match: [{helper: backup}]}
`), in.Instances)
	r := Classify(groups, in)
	if len(problems)+len(r.Problems) > 0 {
		t.Fatal(problems, r.Problems)
	}
	want := "oracle-BX1/backup: rman target /\noracle-BX1/backup: oracleBX1 " +
		"(DESCRIPTION=(LOCAL=YES)(ADDRESS=(PROTOCOL=beq)))"
	if got := where(t, r); !strings.Contains(got, want) || strings.Contains(got, "/local:") {
		t.Errorf("placed\n%s", got)
	}
}

// A helper that limits itself in a group that limits it too is noted, once for each program, and only then.
func TestRateNotes(t *testing.T) {
	const text = `version: 1
groups:
  "pg{port}":
    each: {engine: postgresql}
    %s
    groups:
      backup: {role: helper, match: [{helper: backup}]}
`
	exe := "/usr/lib/postgresql/15/bin/pg_basebackup"
	for _, test := range []struct {
		name, settings, given, want string
	}{
		{"both", "io: [{read: {bandwidth: 50MB/s}}]", "--max-rate=32M",
			`pg_basebackup limits itself (--max-rate=32M) and io.read.bandwidth of group "pg5432" limits it too: the ` +
				`lower one holds`},
		{"the helper alone", "cpu: {limit: 1}", "--max-rate=32M", ""},
		{"the group alone", "io: [{read: {bandwidth: 50MB/s}}]", "", ""},
	} {
		i := instance(engine.PostgreSQL, "", 100, 5432, "/a")
		var procs []procfs.Process
		for n := range 2 {
			p := proc(10+n, exe, "pg_basebackup")
			serving(&i, p, true, engine.Rate{Option: "--max-rate", Given: test.given})
			procs = append(procs, p)
		}
		in := input(procs...)
		in.Instances = []engine.Instance{i}
		groups, problems := Expand(parsed(t, fmt.Sprintf(text, test.settings)), in.Instances)
		r := Classify(groups, in)
		var notes []string
		for _, n := range r.Notes {
			notes = append(notes, n.Text)
		}
		if got := strings.Join(notes, "\n"); got != test.want || len(problems)+len(r.Problems) > 0 {
			t.Errorf("%s: notes %q, problems %v %v", test.name, got, problems, r.Problems)
		}
		if got := Service(in, 10); !strings.HasPrefix(got,
			"it is a helper (backup, pg_basebackup) of postgresql 5432 (/a): --port; ") ||
			test.given != "" && !strings.Contains(got, "it limits itself (--max-rate=32M)") || test.given == "" &&
			!strings.HasSuffix(got, "its own limit would be --max-rate") {
			t.Errorf("%s: %s", test.name, got)
		}
	}
	if got := Service(input(proc(10, "/usr/bin/psql", "psql")), 10); got != "" {
		t.Errorf("psql: %s", got)
	}
}

// What looks like a database or a helper and is in no group is named with the reason, an instance once.
func TestOrphans(t *testing.T) {
	in := oracleHost("BX1", "BX2")
	boxed := proc(9000, "/usr/sbin/mysqld", "mysqld", "--port=3306")
	boxed.ForeignNamespace, boxed.Cgroups = true, map[string]string{"memory": "/docker/" + strings.Repeat("a", 64)}
	procs := append(in.Processes, boxed, proc(9001, "/usr/bin/pg_dump", "pg_dump"), proc(9002, "/usr/bin/psql", "psql"))
	in = input(procs...)
	in.Instances = recognise.Instances(procs, nothing{})
	groups, problems := Expand(parsed(t, `version: 1
groups:
  BX1: {match: [{engine: oracle, sid: BX1}, {helper: backup, user: oracle}]}
  sessions: {match: [{engine: oracle, sid: BX2, part: sessions}]}
`), in.Instances)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	r := Classify(groups, in)
	inside := placed(r)
	var got []string
	for _, o := range Orphans(in, r.Skips, func(id procfs.ID) bool { return inside[id.PID] != "" }) {
		got = append(got, fmt.Sprintf("%d %d %s: %s", o.PID, o.Processes, o.What, o.Why))
	}
	want := []string{
		"2061 1 helper (listener, tnslsnr) of oracle BX1 and oracle BX2: a listener may serve every instance here: " +
			"no rule matches",
		"3013 1 helper (backup, rman) of oracle BX1: it started process 3014, a session: no rule matches",
		"4000 12 oracle BX2, 12 of its 14 processes: no rule matches",
		"4013 1 helper (backup, rman) of oracle BX2: it started process 4014, a session: no rule matches",
		"9000 1 mysql 3306, 1 of its 1 processes: it runs in a container (cgroup /docker/" + strings.Repeat("a", 64) +
			")",
		"9001 1 helper (backup, pg_dump) of no instance here: no rule matches",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
