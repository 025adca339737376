package cli

import (
	"context"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy/yamlform"
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
	s.trialFlags(c, &ch)
	c.Flags().IntVar(&to, "to", 0, "the `revision` to go back to; without it the one before")
	return c
}

func confirmCmd(s *session) *cobra.Command {
	var ch change
	c := &cobra.Command{
		Use:   "confirm",
		Short: "keep the change that waits for it",
		Long: `confirm keeps what apply, set, unset or rollback did with --confirm-within. Without it the change is
undone when that time is over, by a process of its own: this command, its terminal and the agent may all be gone by
then.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.change(cmd, ch.request("confirm")) },
	}
	c.Flags().StringVar(&ch.reason, "reason", "", "why, for the history")
	c.Flags().BoolVar(&ch.dryRun, "dry-run", false, "say what would be kept, do nothing")
	return c
}

func releaseCmd(s *session) *cobra.Command {
	var ch change
	var all bool
	c := &cobra.Command{
		Use:   "release GROUP… | release --all",
		Short: "the emergency exit: lift limits, in a safe order",
		Long: `release lifts the limits of groups, in an order that is safe for what runs in them. It works with the
agent dead and with the policy broken. A released group stays lifted, over restarts and reboots, until apply.
release --all gives the host back: processes go to where they came from, every directory of bulkhead goes.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("release")
			q.Groups, q.All = args, all
			// Needed only when no root group is recorded; whatever is wrong with it must not stand in the way.
			q.Sources, _ = yamlform.Read(s.policy)
			return s.change(cmd, q)
		},
	}
	ch.flags(c)
	s.form.Flags(c)
	c.Flags().BoolVar(&all, "all", false, "everything")
	return c
}

func historyCmd(s *session) *cobra.Command {
	var long bool
	c := &cobra.Command{
		Use:   "history",
		Short: "who changed what, when and why",
		RunE: func(cmd *cobra.Command, _ []string) error {
			entries, err := readHistory(cmd.Context(), s)
			if err != nil {
				return err
			}
			return s.print(render.OrEmpty(entries), func() { render.History(s.out, entries, long) })
		},
	}
	c.Flags().BoolVar(&long, "long", false, "with every changed value")
	return c
}

// readHistory reads what was changed; who may not read the state directory asks the agent.
func readHistory(ctx context.Context, s *session) ([]journal.Entry, error) {
	if euid() != 0 {
		if running, err := s.agent(ctx); err != nil {
			return nil, err
		} else if running != nil {
			return running.History(ctx)
		}
	}
	c, err := s.open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Store.History()
}
