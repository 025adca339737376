package cli

import (
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/usage"
	"bulkhead/internal/plan"
)

const eighty = 80 // columns

// Every verb that a person sees has an example, each is a command line that the verb takes, and its help fits a
// terminal.
func TestExamples(t *testing.T) {
	root := rootCmd(&session{})
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		for _, verb := range c.Commands() {
			each(verb)
			if verb.Hidden {
				continue
			}
			text := usage.Fold(verb.UsageString(), eighty)
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > eighty {
					t.Errorf("%s --help has a line of %d columns: %s", verb.CommandPath(), n, line)
				}
			}
			if verb.Example == "" {
				t.Errorf("%s has no example", verb.CommandPath())
			}
			ours := 0
			for line := range strings.Lines(strings.ReplaceAll(verb.Example, "\\\n   ", "")) {
				at, took := strings.CutPrefix(strings.TrimSpace(line), "bulkhead ")
				if !took {
					continue
				}
				if exampleFits(t, at) == verb.Name() {
					ours++
				}
			}
			if ours == 0 && !verb.HasSubCommands() {
				t.Errorf("no example of %s is of that verb", verb.CommandPath())
			}
		}
	}
	each(root)
}

// exampleFits reads an example as a shell and the program would, and gives the name of its verb. What stands behind
// two blanks says what it does.
func exampleFits(t *testing.T, line string) string {
	t.Helper()
	root := rootCmd(&session{form: usage.PlanForm(plan.FormBrief)})
	line, _, _ = strings.Cut(line, "  ")
	var args []string
	for _, word := range quoted.FindAllString(strings.ReplaceAll(line, `"`, "'"), -1) {
		if strings.ContainsAny(word[:1], "><|&") {
			break
		}
		args = append(args, strings.Trim(word, "'"))
	}
	c, rest, err := root.Find(args)
	if err != nil || c == root {
		t.Errorf("bulkhead %s: no such verb (%v)", line, err)
		return ""
	}
	if err := c.ParseFlags(rest); err != nil {
		t.Errorf("bulkhead %s: %v", line, err)
	} else if err := c.ValidateArgs(c.Flags().Args()); err != nil && !slices.Contains(rest, "--help") {
		t.Errorf("bulkhead %s: %v", line, err)
	}
	return c.Name()
}

// The shell offers rules, with their titles, where a verb takes one.
func TestRulesAreCompleted(t *testing.T) {
	for words, want := range map[string]string{
		"advise show mem-1":      "MEM-12\t",
		"advise show MEM-12 ":    ":4\n",
		"tune apply MEM-12 MEM-": "MEM-13\t",
		"tune rollback ":         "MEM-12\t",
		"tune plan ":             "MEM-12\t",
	} {
		var out strings.Builder
		runVerb(t.Context(), append([]string{"__complete"}, strings.Split(words, " ")...), nil, &out, io.Discard)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q offers\n%s", words, &out)
		}
		if strings.HasPrefix(words, "tune apply") && strings.Contains(out.String(), "MEM-12\t") {
			t.Errorf("%q offers what was given", words)
		}
	}
}
