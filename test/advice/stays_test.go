package advice

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"bulkhead/internal/advise/rule"
)

// stay is a rule that is found still after `tune apply` of everything, and why.
type stay struct {
	Rule  string
	Fresh bool // also on a host as it was installed
	Why   string
}

func readStays(t *testing.T) (list []stay) {
	t.Helper()
	text, err := os.ReadFile("testdata/stays.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The table of docs/advise.md is what the tests in the lab hold the machine to.
func TestStaysPage(t *testing.T) {
	rules, err := rule.Library()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| rule | found when | why `tune` leaves it |\n| --- | --- | --- |\n")
	for _, row := range readStays(t) {
		r, known := rules.Find(row.Rule)
		if !known || row.Why == "" || r.Severity == "info" {
			t.Fatalf("%+v is of no rule above info, or has no reason", row)
		}
		link := "[" + row.Rule + "](rules.md#" + strings.ToLower(row.Rule) + ")"
		if row.Fresh {
			link = "**" + link + "**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", link, r.Title, row.Why)
	}
	drawn(t, "../../docs/advise.md", "stays", b.String())
}
