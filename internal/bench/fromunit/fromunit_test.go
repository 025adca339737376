package fromunit

import (
	"testing"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// Whatever way a group is written in, its processes come out of the unit that the run is in, and nothing else changes.
func TestTakenOutOfUnits(t *testing.T) {
	text := `version: 1
host: {root: bench}
groups:
  a: {role: database, match: [{exe: a}]}
  # one in lines of its own
  b:   # with a comment
      role: helper

      match: [{exe: b}]
      groups:
        below: {match: [{exe: c}]}
        also:
          role: batch
  d: {from_unit: true, role: batch}
  f: {groups: {g: {role: batch}, h: {role: helper}}}
  empty: {}
  "e{port}": {each: {engine: mysql}}
`
	got, err := TakenOut(text)
	if err != nil {
		t.Fatal(err)
	}
	was, err := parse.Policy([]policy.Source{{Path: "p", Text: text}})
	if err != nil {
		t.Fatal(err)
	}
	is, err := parse.Policy([]policy.Source{{Path: "p", Text: got}})
	if err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	before, after := allGroups(was.Groups), allGroups(is.Groups)
	if len(before) != 10 || len(after) != len(before) {
		t.Fatalf("%d groups became %d:\n%s", len(before), len(after), got)
	}
	for i, g := range after {
		if !g.FromUnit {
			t.Errorf("group %q leaves its processes in their unit:\n%s", g.Path, got)
		}
		if g.Path != before[i].Path || g.Role != before[i].Role || len(g.Match) != len(before[i].Match) {
			t.Errorf("group %q became %q, role %q, %d rules:\n%s", before[i].Path, g.Path, g.Role, len(g.Match), got)
		}
	}
	if _, err := TakenOut("version: 1\ngroups: {a: {rule: x}}\n"); err == nil {
		t.Error("a policy with a mistake was taken")
	}
}
