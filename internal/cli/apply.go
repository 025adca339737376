package cli

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/unit"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/inspect"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
)

func applyCmd(s *session) *cobra.Command {
	var ch change
	var canary string
	var watched time.Duration
	c := &cobra.Command{
		Use:   "apply",
		Short: "put the policy in force, all or nothing",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var sources []policy.Source
			// A policy that cannot stand leaves no trace, not even a state directory.
			err := usage.Interruptible(cmd.Context(), func() (err error) {
				if sources, err = yamlform.Read(s.policy); err != nil {
					return err
				} else if _, err = parse.Policy(sources); err != nil {
					return everyProblem(cmd.Context(), s, sources, err)
				}
				return nil
			})
			if err != nil {
				return err
			}
			q := ch.request("apply")
			q.Sources, q.Canary, q.CanaryFor = sources, canary, watched
			reply, byAgent, err := s.do(cmd.Context(), q)
			if err != nil {
				return err
			}
			err = s.printReply(reply, q)
			if err == nil && !byAgent && !ch.dryRun {
				render.Println(s.err, "no agent is running: processes that start from now on are placed only when "+
					"`bulkhead agent` runs or apply runs again")
			}
			if wider := unit.Wider("/", sources); err == nil && wider != "" && !ch.dryRun {
				render.Println(s.err, wider)
			}
			return err
		},
	}
	s.trialFlags(c, &ch)
	c.Flags().StringVar(&canary, "canary", "", "what it asks of this `group` first; the rest when that did it no harm")
	usage.SpanFlag(c, &watched, "canary-for", 0, "how long the canary is watched (default 1m)")
	ch.migration(c)
	return c
}

// everyProblem gives the problems of a policy's text together with those of its sound part on this host.
func everyProblem(ctx context.Context, s *session, sources []policy.Source, text error) error {
	c, err := s.look()
	if err != nil {
		return text
	}
	defer c.Close()
	_, err = inspect.Check(ctx, c, sources)
	return cmp.Or(err, text)
}
