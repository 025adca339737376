package rule

import (
	"strings"
	"testing"

	"cel.dev/cel-go/cel"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/policy"
)

func TestLibraryReads(t *testing.T) {
	set, err := Library()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, r := range set.Rules {
		for _, name := range append(r.Reads(), r.Apart.Reads()...) {
			if _, known := fact.Find(name); !known {
				t.Errorf("%s is said to read %q, which is no fact", r.ID, name)
			}
			used[name] = true
		}
		used[r.Change.Disk] = true
		for _, m := range Placeholder.FindAllStringSubmatch(r.Means, -1) {
			used[m[1]] = true
		}
	}
	// The version decides which of several wishes is an engine's, and sums are made of the footprint.
	used["instance.version"], used["instance.footprint"] = true, true
	for _, row := range fact.Table {
		if !used[row.Name] {
			t.Errorf("no rule reads %s", row.Name)
		}
	}
}

// good is a rule that reads.
const good = `version: 1
rules:
  - {id: SITE-01, title: t, severity: low, ok: host.swap == 0, change: {class: advice, key: k},
     means: "{host.swap}", why: w, source: s, checked: 2026-11}
`

func TestParse(t *testing.T) {
	f, err := Parse(policy.Source{Path: "/etc/x/site.yaml", Text: good})
	if err != nil {
		t.Fatal(err)
	}
	if r := f.Rules[0]; r.Area != "site" || r.Scope != fact.Host || strings.Join(r.Reads(), " ") != "host.swap" {
		t.Errorf("%+v", r)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"an unknown fact":        {"host.swap == 0", "host.swop == 0", "undeclared reference"},
		"a type":                 {"host.swap == 0", `host.swap == "none"`, "no matching overload"},
		"no condition":           {"host.swap == 0", "host.swap", "not yes or no"},
		"another scope":          {"host.swap == 0", "disk.rotational", "not a fact of scope host"},
		"an unknown placeholder": {`"{host.swap}"`, `"{host.swop}"`, "there is no fact"},
		"an unknown key":         {"title: t", "titel: t", "titel"},
		"an id":                  {"SITE-01", "site one", "no name for a rule"},
		"a severity":             {"low", "lowish", "lowish"},
		"a missing source":       {"source: s, ", "", "source is needed"},
		"another version":        {"version: 1", "version: 2", "version 2 is not known"},
	} {
		_, err := Parse(policy.Source{Path: "site.yaml", Text: strings.Replace(good, c.old, c.new, 1)})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "site.yaml:") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHolds(t *testing.T) {
	unknown := fact.Unknown("no such file")
	for _, c := range []struct {
		text    string
		values  fact.Values
		want    bool
		missing string
	}{
		{"host.swap == 0", fact.Values{"host.swap": fact.Known(int64(0), "x")}, true, ""},
		{"host.swap == 0", fact.Values{"host.swap": unknown}, false, "host.swap"},
		{"host.swap == 0", fact.Values{}, false, "host.swap"},
		{"host.swap == 0 || host.psi", fact.Values{"host.swap": unknown, "host.psi": fact.Known(true, "x")}, true, ""},
		{"host.swap == 0 || host.psi", fact.Values{"host.swap": unknown, "host.psi": fact.Known(false, "x")}, false,
			"host.swap"},
		{`since(host.kernel, "7.0")`, fact.Values{"host.kernel": fact.Known("7.0.1-rc2", "x")}, true, ""},
		{`"a" in host.governors`, fact.Values{"host.governors": fact.Known([]string{"a"}, "x")}, true, ""},
	} {
		e, err := compile(c.text, cel.BoolType)
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Holds(c.values)
		missing, is := err.(*UndecidedError)
		if got != c.want || (c.missing != "") != is || is && strings.Join(missing.Facts, " ") != c.missing ||
			!is && err != nil {
			t.Errorf("%s of %v: %v, %v", c.text, c.values, got, err)
		}
	}
}

func TestCostIsBounded(t *testing.T) {
	e, err := compile("host.governors.all(a, host.governors.all(b, host.governors.all(c, a+b+c == '')))", cel.BoolType)
	if err != nil {
		t.Fatal(err)
	}
	many := make([]string, 1000)
	if _, err := e.Holds(fact.Values{"host.governors": fact.Known(many, "x")}); err == nil ||
		!strings.Contains(err.Error(), "cost") {
		t.Errorf("it ran to its end: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("rules: [{ok: 'host.swap'}]")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = Parse(policy.Source{Path: "a.yaml", Text: text}) })
}
