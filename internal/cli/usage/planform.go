package usage

import (
	"errors"

	"github.com/spf13/cobra"
)

// PlanForm is how much of a plan a verb prints: a plan.Form.
type PlanForm string

// Flags adds the flags that choose it, over the one that it is.
func (f *PlanForm) Flags(c *cobra.Command) {
	usual := *f
	for _, one := range []struct {
		name, text string
		is         PlanForm
	}{
		{"long", "print every step, with its file, reason and undo", ""},
		{"diff", "print the files before and after, as diff -u does", "diff"},
		{"summary", "print a line for each group", "summary"},
	} {
		c.Flags().BoolFunc(one.name, one.text, func(string) error {
			if *f != usual {
				return errors.New("--long, --diff and --summary: one of them")
			}
			*f = one.is
			return nil
		})
	}
}
