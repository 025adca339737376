package recognise

import (
	"slices"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/tool"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

var helperKinds = []string{engine.HelperAgent, engine.HelperBackup, engine.HelperExporter, engine.HelperListener,
	engine.HelperRestore, engine.HelperSave, engine.HelperTool}

func TestParts(t *testing.T) {
	for _, test := range []struct {
		engine, part string
		want         bool
	}{
		{engine.MySQL, "main", true},
		{engine.MariaDB, "supervisor", true},
		{engine.MySQL, "walwriter", false},
		{engine.PostgreSQL, "walwriter", true},
		{engine.Valkey, "save", true},
		{"", "save", true},
		{"", "autovacuum", true},
		{engine.Oracle, "lgwr", true},
		{engine.ASM, "sessions", true},
		{engine.Oracle, "walwriter", false},
		{"db2", "main", false},
	} {
		if got := slices.Contains(Parts(test.engine), test.part); got != test.want {
			t.Errorf("Parts(%q) has %q: %t", test.engine, test.part, got)
		}
	}
	// Engines, flavours and helpers are those that a policy may ask for.
	text := "version: 1\ngroups:\n  x:\n    match:\n"
	for _, name := range Known() {
		for _, name := range append(engine.Flavors(name), name) {
			text += "      - {engine: " + name + "}\n"
		}
	}
	for _, kind := range helperKinds {
		text += "      - {helper: " + kind + "}\n"
	}
	if _, err := parse.Policy([]policy.Source{{Path: "all", Text: text}}); err != nil {
		t.Error(err)
	}
	for i := range tool.All {
		if !slices.Contains(helperKinds, tool.All[i].Kind) {
			t.Errorf("%s is of the unknown kind %q", tool.All[i].Name, tool.All[i].Kind)
		}
	}
	// Every part that the table of titles gives is one that a policy may ask for.
	for _, p := range postgresParts {
		if !slices.Contains(Parts(engine.PostgreSQL), p.part) {
			t.Errorf("part %q is missing from Parts", p.part)
		}
	}
}
