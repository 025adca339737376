package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/usage"
	"bulkhead/internal/plan"
)

// Every verb that a person sees has an example, and each is a command line that the verb takes.
func TestExamples(t *testing.T) {
	root := rootCmd(&session{})
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		for _, verb := range c.Commands() {
			each(verb)
			if verb.Hidden {
				continue
			}
			if verb.Example == "" {
				t.Errorf("%s has no example", verb.CommandPath())
			}
			ours := 0
			for line := range strings.Lines(verb.Example) {
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
