package cli

import (
	"errors"
	"fmt"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/bench/process"
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

// What made a document is said as it was given, but for where its files go.
func TestSaid(t *testing.T) {
	c := benchAllCmd(&output{})
	if err := c.ParseFlags([]string{"--rounds", "2", "--smoke", "--document", "x.md"}); err != nil {
		t.Fatal(err)
	}
	if got := said(c); got != "all --rounds 2 --smoke" {
		t.Errorf("said %q", got)
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
