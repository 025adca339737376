package cli

import (
	"context"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/journal"
)

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
