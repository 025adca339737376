package rule

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

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
	want := catalogue(set)
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

func catalogue(set *Set) string {
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
	b.WriteString("\n# Facts\n\n| fact | type | what | read from |\n| --- | --- | --- | --- |\n")
	for _, f := range fact.Table {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, strings.TrimSpace(string(f.Type)+" "+f.Unit),
			f.Doc, f.Source)
	}
	return b.String()
}
