package cli

import (
	"time"

	"bulkhead/internal/cli/usage"

	"github.com/spf13/cobra"
)

func moveCmd(s *session) *cobra.Command {
	var ch change
	var tree, back bool
	var until time.Duration
	c := &cobra.Command{
		Use:   "move GROUP PID… | move --back PID…",
		Short: "place running processes by hand, held against the rules",
		Long: `move places running processes in a group and holds them there. One that a rule puts into another
group, and a database server, is moved only with --force and --reason: the limits of the other group hold
it from then on.`,
		Args: usage.AtLeast(1, "say which processes: move GROUP PID…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("move")
			q.Tree, q.For = tree, until
			if back {
				q.Verb = "move-back"
			} else {
				if len(args) < 2 {
					return usage.Errorf(cmd, "say which processes: move GROUP PID…")
				}
				q.Group, args = args[0], args[1:]
			}
			for _, arg := range args {
				pid, err := usage.ProcessID(cmd, arg)
				if err != nil {
					return err
				}
				q.PIDs = append(q.PIDs, pid)
			}
			return s.change(cmd, q)
		},
	}
	ch.flags(c)
	c.Flags().BoolVar(&tree, "tree", false, "with all descendants")
	c.Flags().BoolVar(&back, "back", false, "let processes go that were placed by hand")
	usage.SpanFlag(c, &until, "for", 0, "let them go by itself after this time (needs the agent)")
	return c
}
