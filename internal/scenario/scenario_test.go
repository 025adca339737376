package scenario

import (
	"math"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/policy"

	"pgregory.net/rapid"
)

func TestExpression(t *testing.T) {
	values := map[string]float64{"cpus": 2, "held.mysql.cpu": 1.5}
	value := func(name string) float64 {
		if v, ok := values[name]; ok {
			return v
		}
		return math.NaN()
	}
	for text, want := range map[string]float64{
		"1": 1, "max(16, 8*cpus)": 16, "2+3*4": 14, "(2+3)*4": 20, "8-2-1": 5, "-cpus+3": 1,
		"held.mysql.cpu/cpus": 0.75,
		"floor(cpus/3)":       0, "ceil(cpus/3)": 1, "abs(1-cpus)": 1, "min(cpus, 1.5, 9)": 1.5,
	} {
		e, err := ParseExpression(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := e.Eval(value); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"nobody", "1/0", "nobody*0"} {
		e, err := ParseExpression(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := e.Eval(value); !math.IsNaN(got) {
			t.Errorf("%q is %v, want no value", text, got)
		}
	}
	for text, want := range map[string]string{
		"": "ends where", "1 2": "cannot stand here", "sqrt(2)": "no function", "(1": "not closed",
		"max(1": "not closed",
		"1..2":  "not a number", "$": "neither a number", "max()": "neither", strings.Repeat("(", 501): "characters",
	} {
		if _, err := ParseExpression(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

// A sum of products is what arithmetic says it is.
func TestExpressionProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := rapid.IntRange(0, 1000).Draw(t, "a"), rapid.IntRange(0, 1000).Draw(t, "b"), rapid.IntRange(1,
			1000).Draw(t, "c")
		text := strings.NewReplacer("a", Figure(float64(a)), "b", Figure(float64(b)), "c",
			Figure(float64(c))).Replace("a - b*(c+a)/c")
		e, err := ParseExpression(text)
		if err != nil {
			t.Fatal(err)
		}
		want := float64(a) - float64(b)*(float64(c)+float64(a))/float64(c)
		if got := e.Eval(nil); math.Abs(got-want) > 1e-6 {
			t.Fatalf("%s is %v, want %v", text, got, want)
		}
	})
}

func FuzzExpression(f *testing.F) {
	for _, text := range []string{"max(16, 8*cpus)", "a.b.c/2", "-(1)", "1e9"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseExpression(text)
		if err != nil {
			return
		}
		names := map[string]int{}
		value := func(name string) float64 {
			names[name]++
			return float64(len(name))
		}
		is := e.Eval(value)
		for name := range names {
			if name == "" || !strings.Contains(text, name) {
				t.Errorf("%q asks for %q, which is not in it", text, name)
			}
		}
		// The same arithmetic in other words.
		for _, c := range []struct {
			text string
			want float64
		}{
			{"(" + text + ")", is}, {" " + text + "  ", is}, {"0+(" + text + ")", 0 + is}, {"-(" + text + ")", -is},
			{"(" + text + ")-(" + text + ")", is - is}, {"max(" + text + ", " + text + ")", is},
		} {
			if len(c.text) > maxExpression {
				continue
			}
			e, err := ParseExpression(c.text)
			if err != nil {
				t.Errorf("%q is read, and %q is not: %v", text, c.text, err)
				continue
			}
			if got := e.Eval(value); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
				t.Errorf("%q is %v, and %q is %v, want %v", text, is, c.text, got, c.want)
			}
		}
	})
}

func TestTemplate(t *testing.T) {
	tpl, err := ParseTemplate("port: ${port.db}, cpus: ${cpus/4}")
	if err != nil {
		t.Fatal(err)
	}
	got, err := tpl.Fill(map[string]string{"port.db": "3306"}, func(string) float64 { return 2 })
	if want := "port: 3306, cpus: 0.5"; err != nil || got != want {
		t.Errorf("filled %q, %v, want %q", got, err, want)
	}
	if _, err := tpl.Fill(nil, func(string) float64 { return math.NaN() }); err == nil {
		t.Error("a name without a value was filled")
	}
	for _, text := range []string{"${", "${1+}", "a ${b"} {
		if _, err := ParseTemplate(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// Every scenario of the library can be read, is named as its file, and says what it wants to see.
func TestLibrary(t *testing.T) {
	all, err := Library()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if _, err := os.Stat("library/" + s.Name + ".yaml"); err != nil {
			t.Errorf("scenario %q: %v", s.Name, err)
		}
		if s.Title == "" || len(s.Shape) == 0 || s.Document != "" && s.Reports == "" {
			t.Errorf("scenario %q lacks its title, its shape or what the document reports", s.Name)
		}
		for _, a := range s.Arms {
			if a.Text == "" {
				t.Errorf("scenario %q: arm %q has no text", s.Name, a.Name)
			}
		}
		if found, err := Find(s.Name); err != nil || found.Title != s.Title {
			t.Errorf("find %q: %v", s.Name, err)
		}
	}
	if _, err := Find("nosuch"); err == nil || !strings.Contains(err.Error(), "demo") {
		t.Errorf("a name that is none: %v", err)
	}
}

// The loads of an arm are those that it names, outside of their groups where it says so.
func TestLoadsOf(t *testing.T) {
	s := &Scenario{Loads: []Load{{Name: "a", Group: "g"}, {Name: "b", Group: "g"}, {Name: "c"}}}
	got := s.LoadsOf(Arm{Loads: []string{"a", "b"}, Outside: []string{"b"}})
	if len(got) != 2 || got[0].Group != "g" || got[1].Group != "" || s.Loads[1].Group != "g" {
		t.Errorf("loads %v of %v", got, s.Loads)
	}
	if all := s.LoadsOf(Arm{}); len(all) != 3 {
		t.Errorf("without names %v", all)
	}
}

const small = `version: 1
name: small
title: a small one
scale:
  hogs: {is: "8*cpus"}
databases:
  db: {engine: mariadb, group: mysql}
loads:
  load: {program: sysbench, on: db, threads: "2"}
neighbours:
  hog: {kind: cpu, count: hogs, group: reports}
policies:
  ours: |
    version: 1
    groups:
      mysql: {role: database, match: [{engine: mysql, port: "${port.db}"}]}
      reports: {cpu: {limit: ${cpus/2}}}
arms:
  alone: {text: alone}
  held: {text: held, with: [hog], policy: ours,
    phases: [{name: free, share: "1"}, {name: capped, share: "1", policy: ours}]}
shape:
  - {what: it holds, measure: held.capped.load.tps/alone.tps, least: "0.9"}
`

// What is wrong with a file is told with its place, as for a policy.
func TestProblems(t *testing.T) {
	if _, err := Parse(policy.Source{Path: "small.yaml", Text: small}); err != nil {
		t.Fatalf("the sound one: %v", err)
	}
	tests := []struct{ name, from, to, want string }{
		{"version", "version: 1\nname", "version: 2\nname", "small.yaml:1:10: version 2 is not known"},
		{"unknown key", "title:", "titel:",
			"small.yaml:3:1: unknown key \"titel\" in the scenario\n    titel: a small one\n    ^\n" +
				"hint: did you mean title?"},
		{"engine", "mariadb", "mariadbx", "did you mean mariadb?"},
		{"release", "mariadb", "mysql@9.6", "did you mean mysql@9.7?"},
		{"load of a release", "mariadb", "valkey@9", "does not load redis"},
		{"database", "on: db,", "on: dv,", "small.yaml:9:33: database \"dv\" is not in this scenario"},
		{"neighbour", "with: [hog]", "with: [hug]", "neighbour \"hug\" is not in this scenario"},
		{"policy of an arm", "with: [hog], policy: ours", "with: [hog], policy: theirs", "policy \"theirs\""},
		{"expression", `"8*cpus"`, `"8*"`, "small.yaml:5:14: is: read expression"},
		{"quantity", `"8*cpus"`, `"8*gpus"`, "quantity \"gpus\" is not known here"},
		{"inside the policy", "cpu: {limit: ${cpus/2}}", "cpu: {limt: ${cpus/2}}",
			"small.yaml:17:23: in the policy: unknown key \"limt\""},
		{"value of a policy", "${port.db}", "${port.dv}", "value \"port.dv\""},
		{"figure", "alone.tps", "alone.tpx", "figure \"tpx\" is not known"},
		{"node that the machine need not have", "held.capped.load.tps", "held.capped.db.node0",
			"write needs: {numa: 2}"},
		{"figure of nobody", "held.capped.load.tps", "held.capped.lood.tps", "\"lood\" in"},
		{"arm of a figure", "/alone.tps", "/alune.tps", "arm \"alune\""},
		{"alias", "title: a small one", "title: &x a\ndocument: *x", "a scenario has no aliases"},
		{"not YAML", "arms:", "arms: [", "small.yaml:"},
		{"load and engine", "engine: mariadb", "engine: redis", "sysbench does not load redis"},
		{"load without a wire", "program: sysbench, on: db", "program: iperf3, flow: out", "iperf3 needs a wire"},
		{"no way on the wire", "program: sysbench, on: db", "program: iperf3", "iperf3 needs a wire"},
		{"port of what has none", "${port.db}", "${port.load}", "value \"port.load\""},
		{"nic without a wire", "${port.db}", "${nic}", "value \"nic\""},
		{"commands without a wire", "arms:", "peers: {p: {commands: [tc qdisc show]}}\narms:",
			"peer \"p\" has commands, and there is no wire"},
		{"another command", "arms:", "wire: true\npeers: {p: {commands: [rm -r x]}}\narms:",
			"\"rm\" is neither tc nor ip"},
		{"load on no wire", "program: sysbench, on: db, threads: \"2\"}", "program: iperf3}\nwire: true",
			"says not which way it sends"},
		{"document without a mechanism", "title:", "document: E1\ntitle:", "does not say by what that limits"},
		{"another mechanism without a reason", "title:", "mechanism: {document: a, ours: b}\ntitle:",
			"does not say why"},
		{"direction", "least:", "direction: sideways, least:", "\"sideways\" is no direction"},
		{"figure and direction", "least:", "direction: more, figure: \"2\", least:", "has a figure and a direction"},
		{"factor of no figure", "least:", "within: \"2\", least:", "says nothing of what the document measured"},
		{"mechanism of no figure", "least:", "mechanism: same, least:", "says nothing of what the document measured"},
		{"remote without a wire", "threads: \"2\"", "remote: true", "it needs a wire"},
		{"name of a verb", "name: small", "name: document", "no name for a scenario"},
		{"arms missing", small[strings.Index(small, "arms:"):], "", "arms is missing"},
		{"no name", "name: small", "name: Small Thing", "no name for a scenario"},
		{"empty", small, "", "the file is empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(small, tt.from, tt.to, 1)
			if text == small {
				t.Fatal("the test changes nothing")
			}
			_, err := Parse(policy.Source{Path: "small.yaml", Text: text})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is\n%v\nwant one with\n%s", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "a policy starts") {
				t.Errorf("it speaks of a policy file: %v", err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small)
	demo, err := library.ReadFile("library/demo.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(demo))
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(policy.Source{Path: "x.yaml", Text: text})
		if (s == nil) == (err == nil) {
			t.Fatalf("%v with error %v", s, err)
		}
	})
}

// Alone is the control arm with what it needs, of every scenario there is; what it leaves behind is whole.
func TestAlone(t *testing.T) {
	all, err := Library()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		arms, loads, neighbours := len(s.Arms), len(s.Loads), len(s.Neighbours)
		control, _ := s.ArmNamed(s.Control)
		alone := s.Alone()
		if len(alone.Arms) != 1 || alone.Arms[0].Name != s.Control || len(alone.Loads) != len(s.LoadsOf(control)) ||
			len(alone.Loads) == 0 || len(alone.Neighbours) != len(control.With) || len(alone.Shape) != 0 {
			t.Errorf("%s alone: %+v", s.Name, alone)
		}
		if len(s.Arms) != arms || len(s.Loads) != loads || len(s.Neighbours) != neighbours || len(s.Shape) == 0 {
			t.Errorf("%s was changed", s.Name)
		}
	}
}
