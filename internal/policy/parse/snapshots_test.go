package parse

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/retention"
)

// A policy says what is kept of snapshots by instance, and "*" stands for the others; what says nothing is refused.
func TestSnapshots(t *testing.T) {
	text := "version: 1\nsnapshots:\n  mysql3306: {keep: 30, older: 60d}\n  \"*\": {older: 36h}\n  pg5432: {keep: 7}\n"
	sources := []policy.Source{{Path: "policy.yaml", Text: text}}
	if _, err := Policy(sources); err != nil {
		t.Fatal(err)
	}
	rules := Snapshots(sources)
	want := retention.Rules{{Instance: "mysql3306", Keep: 30, Older: 60 * 24 * time.Hour},
		{Instance: "*", Older: 36 * time.Hour}, {Instance: "pg5432", Keep: 7}}
	if !slices.Equal(rules, want) {
		t.Fatalf("%+v", rules)
	}
	for name, i := range map[string]int{"mysql3306": 0, "pg5432": 2, "mysql3307": 1} {
		if r, ok := rules.Of(name); !ok || r != want[i] {
			t.Errorf("%s: %+v, %v", name, r, ok)
		}
	}
	if r, ok := rules[:1].Of("pg5432"); ok {
		t.Errorf("no rule is for it: %+v", r)
	}
	if Snapshots(nil) != nil || Snapshots([]policy.Source{{Text: "version: 1\n"}}) != nil {
		t.Error("rules of nothing")
	}
	for part, problem := range map[string]string{
		"mysql3306: {}":                   "nothing is said of mysql3306",
		"mysql3306: {keep: 0}":            "a number of snapshots",
		"mysql3306: {keep: 2, older: 2w}": "no age between an hour",
		"mysql3306: {older: 0d}":          "no age between an hour",
		"mysql3306: {older: 99999999d}":   "no age between an hour",
		"mysql3306: {keep: 2, age: 2d}":   "age",
		"'my sql': {keep: 2}":             "not the name of an instance",
		"mysql3306: 7":                    "block of keys",
	} {
		_, err := Policy([]policy.Source{{Path: "policy.yaml", Text: "version: 1\nsnapshots:\n  " + part + "\n"}})
		if err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", part, err)
		}
	}
	_, err := Policy([]policy.Source{{Path: "policy.yaml", Text: "version: 1\ninclude: [a.yaml]\n"},
		{Path: "a.yaml", Text: "snapshots: {\"*\": {keep: 1}}\n"}})
	if err == nil || !strings.Contains(err.Error(), "snapshots") {
		t.Errorf("in an included file: %v", err)
	}
}
