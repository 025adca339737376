package cli

import (
	"github.com/spf13/cobra"
)

func confirmCmd(s *session) *cobra.Command {
	var ch change
	c := &cobra.Command{
		Use:   "confirm",
		Short: "keep the change that waits for it",
		Long: `confirm keeps what apply, set, unset or rollback did with --confirm-within. Without it the change is
undone when that time is over, by a process of its own: this command, its terminal and the agent may all be gone by
then.`,
		Example: `  bulkhead apply --confirm-within 5m
  bulkhead confirm`,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.change(cmd, ch.request("confirm")) },
	}
	c.Flags().StringVar(&ch.reason, "reason", "", "why, for the history")
	c.Flags().BoolVar(&ch.dryRun, "dry-run", false, "say what would be kept, do nothing")
	return c
}
