package cli

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/control"
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
			var before *control.Status
			var at time.Time
			for {
				st, err := readStatus(cmd.Context(), s)
				if err != nil {
					return err
				}
				if o.check {
					return answerHealth(s, st)
				}
				if err := st.Only(groups); err != nil {
					return err
				}
				now := time.Now()
				if o.watch && !s.json {
					clearScreen(s)
				}
				err = s.print(st, func() {
					switch {
					case o.orphans:
						render.Orphans(s.out, st.Orphans)
					case len(groups) > 0:
						render.StatusOf(s.out, st.Groups)
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

// clearScreen begins a terminal's screen anew; elsewhere a line with the time stands before each status.
func clearScreen(s *session) {
	if render.IsTerminal(s.stdout) {
		_, _ = io.WriteString(s.stdout, "\x1b[H\x1b[2J")
		return
	}
	render.Printf(s.out, "\n--- %s\n", time.Now().Format(time.DateTime))
}

// answerHealth says in one line whether all is well.
func answerHealth(s *session, st *control.Status) error {
	if err := st.Healthy(); err != nil {
		return err
	}
	render.Printf(s.out, "ok: revision %d, %s, every limit in force, agent running\n", st.Revision,
		render.Count(len(st.Groups), "group", "groups"))
	return nil
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
