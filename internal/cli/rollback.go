package cli

import (
	"github.com/spf13/cobra"

	"bulkhead/internal/cli/usage"
)

func rollbackCmd(s *session) *cobra.Command {
	var ch change
	var to int
	c := &cobra.Command{
		Use:   "rollback",
		Short: "undo an interrupted change, or go back to an earlier revision",
		Long: `rollback undoes a change that was interrupted (a crash, kill -9), and nothing else then. When there is
none it goes back to the revision before the one in force; but not when the last change was undone already, as the
agent or the next changing verb does it with an interrupted one, nor after a release: then say --to N. Overrides
stay; history lists the revisions.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("to") && to < 1 {
				return usage.Errorf(cmd, "no revision %d: they count from 1", to)
			}
			q := ch.request("rollback")
			q.To = to
			return s.change(cmd, q)
		},
	}
	ch.flags(c)
	s.form.Flags(c)
	ch.onTrial(c)
	c.Flags().IntVar(&to, "to", 0, "the `revision` to go back to; without it the one before")
	return c
}
