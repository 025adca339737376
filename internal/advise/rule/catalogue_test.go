package rule

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"bulkhead/internal/advise/fact"
)

var update = flag.Bool("update", false, "write docs/rules.md anew")

// The catalogue in docs/ is made from the rules.
func TestCatalogue(t *testing.T) {
	const file = "../../../docs/rules.md"
	set, err := Library()
	if err != nil {
		t.Fatal(err)
	}
	want := catalogue(set, collectedRules(t))
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("%s is not what the rules say (%v): go test ./internal/advise/rule -update", file, err)
	}
}

// collected are the rules that were collected, and what became of those that have no rule of their own.
type collected struct {
	Areas   map[string]int
	Without []struct{ ID, What, In, Why string }
}

func collectedRules(t *testing.T) collected {
	t.Helper()
	text, err := os.ReadFile("testdata/collected.yaml")
	var c collected
	if err == nil {
		err = yaml.Unmarshal(text, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Every rule that was collected is one here, is held by another one, or has a reason why it is none.
func TestCollectedRules(t *testing.T) {
	set, err := Library()
	if err != nil {
		t.Fatal(err)
	}
	c := collectedRules(t)
	without := map[string]bool{}
	for _, w := range c.Without {
		if _, known := set.Find(w.ID); known || without[w.ID] || w.What == "" || (w.In == "") == (w.Why == "") {
			t.Errorf("%+v is a rule here, is listed twice, or has not one of in and why", w)
		}
		if _, known := set.Find(w.In); w.In != "" && !known {
			t.Errorf("%s is said to be in %s, which is no rule", w.ID, w.In)
		}
		without[w.ID] = true
	}
	all := 0
	for area, n := range c.Areas {
		all += n
		for i := range n {
			id := fmt.Sprintf("%s-%02d", area, i+1)
			if _, known := set.Find(id); !known && !without[id] {
				t.Errorf("%s is no rule, and nothing says why", id)
			}
			delete(without, id)
		}
	}
	if all != 162 || len(without) > 0 {
		t.Errorf("%d rules were collected; %v are listed and were not", all, without)
	}
}

func catalogue(set *Set, c collected) string {
	var b strings.Builder
	b.WriteString("# Rules of advice\n\nMade from the rules by `go test ./internal/advise/rule -update`. " +
		"[advise.md](advise.md) says how to use and to add them.\n\n| rule | severity | found when | reads |\n" +
		"| --- | --- | --- | --- |\n")
	for _, r := range set.Rules {
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | `%s` |\n", r.ID, strings.ToLower(r.ID), r.Severity, r.Title,
			strings.Join(r.Reads(), "` `"))
	}
	for _, r := range set.Rules {
		fmt.Fprintf(&b, "\n## %s\n%s (%s, asked of each %s). %s\n", r.ID, r.Title, r.Severity, r.Scope, r.Why)
		for _, w := range r.Wrong {
			fmt.Fprintf(&b, "- Wrong if: %s\n", w)
		}
		read := " (read " + r.Checked + ")"
		if r.Checked == "-" {
			read = ""
		}
		fmt.Fprintf(&b, "\nSource: %s%s\n", r.Source, read)
	}
	b.WriteString("\n# Collected, and no rule\n\nOf the 162 rules that were collected these have none of their own " +
		"here.\n\n| collected as | what | why not |\n| --- | --- | --- |\n")
	for _, w := range c.Without {
		if w.In != "" {
			w.Why = "part of " + w.In
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", w.ID, w.What, w.Why)
	}
	b.WriteString("\n# Facts\n\n| fact | type | what | read from |\n| --- | --- | --- | --- |\n")
	for _, f := range fact.Table {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, strings.TrimSpace(string(f.Type)+" "+f.Unit),
			f.Doc, f.Source)
	}
	return b.String()
}
