package cli

import (
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/inspect"
)

func explainCmd(s *session) *cobra.Command {
	var o inspect.ExplainOptions
	cmd := &cobra.Command{
		Use:   "explain PID",
		Short: "why a process is where it is, and which limits reach it",
		Args:  usage.Exactly(1, "say which process: explain PID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := usage.ProcessID(cmd, args[0])
			if err != nil {
				return err
			}
			c, err := s.open()
			if err != nil {
				return err
			}
			defer c.Close()
			e, err := inspect.Explain(cmd.Context(), c, pid, o)
			if err != nil {
				return err
			}
			if running, err := s.agent(cmd.Context()); err == nil && running != nil && e.Placed {
				e.When, _ = running.Placed(cmd.Context(), pid) // an older agent does not know
			}
			return s.print(render.ExplanationView(e), func() { render.Explanation(s.out, e) })
		},
	}
	cmd.Flags().DurationVar(&o.Watch, "watch", time.Second,
		"how long to watch which limits hold it back now; 0 does not watch")
	cmd.Flags().BoolVar(&o.Exact, "exact", false,
		"find which group each of its pages is charged to; some seconds for 100 GiB")
	return cmd
}
