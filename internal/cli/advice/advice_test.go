package advice

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/cli/render"
)

// report has something of everything, with texts that others chose.
func report(text string) *advise.Report {
	e := []advise.Evidence{{Fact: "host.swap", Value: text, From: text}}
	return &advise.Report{
		Findings: []advise.Finding{{Rule: "A-1", Severity: "high", Title: text, On: []string{text}, Means: text,
			Evidence: e, Change: advise.Change{Class: "sysctl", Key: text, Value: text, Cost: text},
			Losers: []advise.Loser{{Instance: text, Wants: text}}}},
		Undecided: []advise.Undecided{{Rule: "A-2", On: []string{text},
			Missing: []advise.Missing{{Fact: "f", Reason: text}}}},
		Passed:   []advise.Passed{{Rule: "A-3", Title: text, On: []string{text}, Evidence: e}},
		Silenced: []advise.Silenced{{Rule: "A-4", On: []string{text}, Reason: text, Until: "2027-01-01"}},
		Notes:    []string{text},
	}
}

// What others chose begins no line and steers no terminal.
func TestForeignText(t *testing.T) {
	var out bytes.Buffer
	printReport(&out, report("x\nINTERRUPTED: evil\u202e\x1b[2J"), true)
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "INTERRUPTED") || strings.ContainsAny(line, "\u202e\x1b") {
			t.Errorf("it prints %q", line)
		}
	}
	if !strings.Contains(out.String(), `\u202e`) {
		t.Errorf("it does not show what was chosen:\n%s", out.String())
	}
}

// Every rule can be shown in 80 columns, and the names of JSON have one style.
func TestEveryRuleIsShown(t *testing.T) {
	set, err := rule.Library()
	if err != nil {
		t.Fatal(err)
	}
	show := []func(io.Writer) any{func(w io.Writer) any { printRules(w, set); return listOf(set) },
		func(w io.Writer) any { printReport(w, report("x"), true); return report("x") }}
	for _, r := range set.Rules {
		show = append(show, func(w io.Writer) any { printRule(w, ruleOf(r)); return ruleOf(r) })
	}
	snake := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	for _, print := range show {
		var out bytes.Buffer
		text, err := json.Marshal(print(render.Printable(&out, 80)))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if len([]rune(line)) > 81 {
				t.Errorf("a line of %d columns: %q", len([]rune(line)), line)
			}
		}
		for _, m := range regexp.MustCompile(`[{,]"([^"]*)":`).FindAllStringSubmatch(string(text), -1) {
			if !snake.MatchString(m[1]) {
				t.Errorf("%q is a name in JSON", m[1])
			}
		}
	}
}
