package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/control"
)

func statusCmd(s *session) *cobra.Command {
	var watch, orphans bool
	var every time.Duration
	c := &cobra.Command{
		Use:   "status",
		Short: "groups, members, limits asked and in force, usage",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for {
				st, err := readStatus(cmd.Context(), s)
				if err != nil {
					return err
				}
				err = s.print(st, func() {
					if orphans {
						render.Orphans(s.out, st.Orphans)
					} else {
						render.Status(s.out, st)
					}
				})
				if err != nil || !watch {
					return err
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(every):
					render.Printf(s.out, "\n--- %s\n", time.Now().Format(time.DateTime))
				}
			}
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "again and again, until Ctrl-C")
	c.Flags().BoolVar(&orphans, "orphans", false, "only what looks like a database or a helper and is in no group")
	usage.SpanFlag(c, &every, "every", 2*time.Second, "how often, with --watch")
	return c
}

// readStatus asks the agent, or looks itself when none runs.
func readStatus(ctx context.Context, s *session) (*control.Status, error) {
	running, err := s.agent(ctx)
	if err != nil {
		return nil, err
	}
	if running != nil {
		return running.Status(ctx)
	}
	c, err := s.open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Status(ctx)
}
