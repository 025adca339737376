package systemd

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/systemd.md anew")

// The page's table is the code's.
func TestDocs(t *testing.T) {
	const page, begin, end = "../../docs/systemd.md", "<!-- table -->\n", "<!-- /table -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no place for the table", page)
	}
	want := before + begin + docsTable() + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not that of the code: go test ./internal/systemd -run Docs -update", page)
	}
}

func docsTable() string {
	var b strings.Builder
	b.WriteString("| property | since | type | cgroup v1 | cgroup v2 | remarks | documented in |\n| --- | --- | --- " +
		"| --- | --- | --- | --- |\n")
	for _, r := range Table() {
		file := func(name string) string {
			switch {
			case name != "":
				return "`" + name + "`"
			case r.Form == FormFlag:
				return "counting only"
			}
			return "-"
		}
		var notes []string
		add := func(ok bool, format string, args ...any) {
			if ok {
				notes = append(notes, fmt.Sprintf(format, args...))
			}
		}
		add(r.Setting != r.Name, "`%s=` in a file", r.Setting)
		add(r.Until > 0, "gone with %d", r.Until)
		add(r.IdleSince > 0, "`idle` since %d", r.IdleSince)
		add(r.ScopeSince > 0, "scopes since %d", r.ScopeSince)
		add(r.Units != nil, "%s only", strings.Join(r.Units, " and "))
		add(r.StartOnly, "at the unit's start only")
		add(r.Stronger != "", "ignored beside `%s`", r.Stronger)
		add(r.V1Note != "", "v1: %s", r.V1Note)
		add(r.Step > 1, "kept in whole per cent")
		fmt.Fprintf(&b, "| `%s` | %d | `%s` %s | %s | %s | %s | %s |\n", r.Name, r.Since, r.Form.Signature(), r.Form,
			file(r.V1), file(r.V2), strings.Join(notes, "; "), r.Source)
	}
	return b.String()
}
