package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/advice"
	"bulkhead/internal/cli/selinux"
	"bulkhead/internal/cli/usage"
)

func setCmd(s *session) *cobra.Command {
	var ch change
	var on string
	var until time.Duration
	c := &cobra.Command{
		Use:   "set GROUP:KEY=VALUE…",
		Short: "change limits now, over the policy, as one change",
		Args:  usage.AtLeast(1, "say which limit: set GROUP:KEY=VALUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("set")
			q.Assign, q.On, q.For = args, on, until
			return s.change(cmd, q)
		},
	}
	s.trialFlags(c, &ch)
	ch.migration(c)
	c.Flags().StringVar(&on, "on", "", "the `device or path` of an io limit, the page size of memory.huge")
	usage.SpanFlag(c, &until, "for", 0, "end by itself after this time")
	return c
}

func unsetCmd(s *session) *cobra.Command {
	var ch change
	var on string
	c := &cobra.Command{
		Use:   "unset GROUP:KEY…",
		Short: "take overrides away; the policy holds again",
		Args:  usage.AtLeast(1, "say which limit: unset GROUP:KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("unset")
			q.Assign, q.On = args, on
			return s.change(cmd, q)
		},
	}
	s.trialFlags(c, &ch)
	c.Flags().StringVar(&on, "on", "", "the `device or path` of an io limit")
	return c
}

func tuneCmd(s *session) *cobra.Command {
	return advice.TuneCommand(advice.Session{
		Out: s.out, Look: s.look, Open: s.open, Print: s.print, Change: s.change, Reply: s.printReply,
		Do: s.do, Progress: s.stderr,
		Flags: s.onTrial,
	})
}

func selinuxCmd(s *session) *cobra.Command {
	c := selinux.Command(s.out, s.look, s.print)
	c.AddCommand(selinux.Changes(selinux.Session{Out: s.out, Open: s.open, Print: s.print, Change: s.change,
		Flags: s.onTrial, Who: who, Do: func(ctx context.Context, q api.Request) (*api.Reply, error) {
			reply, _, err := s.do(ctx, q)
			return reply, err
		}})...)
	return c
}

// onTrial gives a verb the flags of changes that may wait to be confirmed, and then the request that they make.
func (s *session) onTrial(c *cobra.Command) func(verb string) api.Request {
	ch := &change{}
	s.trialFlags(c, ch)
	return ch.request
}
