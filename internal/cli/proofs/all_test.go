package proofs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/proof"
)

// Only a scenario that the machine cannot run is left out.
func TestOutcomeOf(t *testing.T) {
	required := func(reach process.Reach) error {
		err := &process.RequirementError{Reason: "no", Hint: "do", Reach: reach}
		return &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("run: %w", err), Hint: err.Hint}
	}
	result := &proof.Result{Scenario: "x"}
	for name, tt := range map[string]struct {
		err             error
		leftOut, failed string
	}{
		"it went well":             {nil, "", ""},
		"the machine is too small": {required(process.ThisScenario), "run the proof: no; do", ""},
		"the disk is full":         {required(process.ThisRun), "", "run: run the proof: no; do"},
		"another proof runs":       {required(process.EveryScenario), "", "run: run the proof: no; do"},
		"something else":           {errors.New("broken"), "", "broken"},
	} {
		got := outcomeOf("x", result, tt.err)
		if got.LeftOut != tt.leftOut || got.Failed != tt.failed || (got.Result != nil) != (tt.err == nil) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTally(t *testing.T) {
	held, not, left, failed := proof.Outcome{Result: &proof.Result{Held: true}}, proof.Outcome{Result: &proof.Result{}},
		proof.Outcome{LeftOut: "small"}, proof.Outcome{Failed: "no"}
	for _, tt := range []struct {
		of        []proof.Outcome
		good, ran bool
	}{
		{[]proof.Outcome{held, left}, true, true}, {[]proof.Outcome{held, not}, false, true},
		{[]proof.Outcome{held, failed}, false, true},
		{[]proof.Outcome{left, left}, true, false},
	} {
		if good, ran := tally(tt.of); good != tt.good || ran != tt.ran {
			t.Errorf("%+v: good %v, ran %v", tt.of, good, ran)
		}
	}
}

// Some scenarios are chosen by name, in the order that they are named.
func TestChosen(t *testing.T) {
	some, err := chosen([]string{"demo", " backup"})
	if err != nil || len(some) != 2 || some[0].Name != "demo" || some[1].Name != "backup" {
		t.Errorf("chosen are %v (%v)", some, err)
	}
	all, err := chosen(nil)
	if err != nil || len(all) < 20 {
		t.Errorf("of all there are %d (%v)", len(all), err)
	}
	if _, err := chosen([]string{"demo", "nothing"}); api.HintOf(err) == "" {
		t.Errorf("a name that is none of a scenario: %v", err)
	}
}

// A result that was written with --out is in the document afterwards, and stays when another one comes.
func TestDocumentOfResults(t *testing.T) {
	dir := t.TempDir()
	document := filepath.Join(dir, "proof.md")
	for name, commit := range map[string]string{"demo": "", "backup": "facade"} {
		r := &proof.Result{Scenario: name, Title: "it is", Commit: commit, Rounds: 5,
			Arms: []proof.Arm{{Name: "alone", Rounds: []proof.Round{{}}}}}
		if err := r.WriteFiles(dir); err != nil {
			t.Fatal(err)
		}
		c := Command(Session{})
		c.SetArgs([]string{"document", "--into", document, "--commit", "c0ffee", filepath.Join(dir, name+".json")})
		if err := c.Execute(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| [demo](#demo) |  | c0ffee |", "| [backup](#backup) |  | facade |",
		"| numa | E12 | | | | | | | no result is kept |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document lacks %q:\n%s", want, text)
		}
	}
	for _, args := range [][]string{{"document"}, {"all", "--smoke", "--document", document}} {
		c := Command(Session{})
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetArgs(args)
		if err := c.Execute(); usage.HintOf(err) == "" {
			t.Errorf("%q is not refused: %v", args, err)
		}
	}
}
