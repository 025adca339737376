package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/inspect"
)

// statusFlags are the flags of status.
type statusFlags struct {
	watch, orphans, check bool
	every                 time.Duration
}

func statusCmd(s *session) *cobra.Command {
	var o statusFlags
	c := &cobra.Command{
		Use:   "status [GROUP…]",
		Short: "groups, what they use, and whether their limits are in force",
		Long: `status shows the state of the policy and a line for each group. With groups it shows
each of their limits and processes. Figures are rounded; --json has all of them.

--check is for monitoring. It says in one line what is wrong, by exit code: 4 a limit
is not in force, 7 everything is released, 8 a change was interrupted, 9 new processes
are not placed.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, groups []string) error {
			var before *api.Status
			var at time.Time
			for {
				st, err := readStatus(cmd.Context(), s)
				if err != nil {
					return err
				}
				if o.check {
					if err = st.Healthy(); err == nil {
						render.Healthy(s.out, st)
					}
					return err
				}
				if err := st.Only(groups); err != nil {
					return err
				}
				now := time.Now()
				if o.watch && !s.json {
					render.Clear(s.out, s.stdout)
				}
				err = s.print(st, func() {
					switch {
					case o.orphans:
						render.Orphans(s.out, st.Orphans)
					case len(groups) > 0:
						render.StatusOf(s.out, st)
					default:
						render.Status(s.out, st, before, now.Sub(at))
					}
				})
				if err != nil || !o.watch {
					return err
				}
				before, at = st, now
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(o.every):
				}
			}
		},
	}
	c.Flags().BoolVar(&o.watch, "watch", false, "again and again, until Ctrl-C")
	c.Flags().BoolVar(&o.orphans, "orphans", false, "only what looks like a database or a helper and is in no group")
	c.Flags().BoolVar(&o.check, "check", false, "for monitoring: one line, and an exit code")
	usage.SpanFlag(c, &o.every, "every", 2*time.Second, "how often, with --watch")
	return c
}

// readStatus asks the agent, or looks itself when none runs.
func readStatus(ctx context.Context, s *session) (*api.Status, error) {
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
	return inspect.Status(ctx, c)
}
