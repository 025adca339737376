package advice

import (
	"bytes"
	"strings"
	"testing"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/rule"
)

// What others chose, such as the name of a mount or a reason of a site, cannot steer the terminal.
func TestForeignText(t *testing.T) {
	evil := "a\x1b[2Jb\nc"
	report := &advise.Report{
		Findings: []advise.Finding{{Rule: evil, Severity: "high", Title: evil, On: []string{evil}, Means: evil,
			Evidence: []advise.Evidence{{Fact: evil, Value: evil, From: evil}},
			Change:   advise.Change{Class: rule.ClassSysctl, Key: evil, Value: evil, Cost: evil}}},
		Passed: []advise.Passed{{Rule: evil, Title: evil}},
	}
	var out bytes.Buffer
	printReport(&out, report, true)
	if text := out.String(); strings.Contains(text, "\x1b") || strings.Contains(text, "b\nc") {
		t.Errorf("printed as it is: %q", text)
	}
	if !strings.Contains(out.String(), "1 finding;") {
		t.Errorf("no count of findings: %q", out.String())
	}
}
