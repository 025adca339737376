package cli

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/plan"
)

// change holds the flags of every verb that changes the host.
type change struct {
	reason        string
	dryRun, force bool
	migrate       bool
	confirm       time.Duration
}

func (ch *change) flags(c *cobra.Command) {
	c.Flags().StringVar(&ch.reason, "reason", "", "why, for the history")
	c.Flags().BoolVar(&ch.dryRun, "dry-run", false, "say what would be done, do nothing")
	c.Flags().BoolVar(&ch.force, "force", false, "do it although it is refused; needs --reason")
}

// trialFlags adds those of changes that have a plan and may wait to be confirmed.
func (s *session) trialFlags(c *cobra.Command, ch *change) {
	ch.flags(c)
	s.form.Flags(c)
	usage.SpanFlag(c, &ch.confirm, "confirm-within", 0, "undo it after this time unless bulkhead confirm comes before")
}

// migration adds the flag of changes that may change NUMA nodes.
func (ch *change) migration(c *cobra.Command) {
	c.Flags().BoolVar(&ch.migrate, "migrate", false, "change NUMA nodes of groups that have memory on those they lose")
}

func (ch *change) request(verb string) api.Request {
	return api.Request{Verb: verb, Reason: ch.reason, DryRun: ch.dryRun, Force: ch.force, ConfirmWithin: ch.confirm,
		Migrate: ch.migrate}
}

// change has a verb done and prints what it did.
func (s *session) change(cmd *cobra.Command, q api.Request) error {
	reply, _, err := s.do(cmd.Context(), q)
	if err != nil {
		return err
	}
	return s.printReply(reply, q)
}

// printReply prints what a changing verb did, or with --dry-run would do.
func (s *session) printReply(r *api.Reply, q api.Request) error {
	if s.json {
		r.Plan.Steps = render.OrEmpty(r.Plan.Steps)
		return s.printJSON(r)
	}
	text := func() (string, error) {
		c, err := s.open()
		if err != nil {
			return "", err
		}
		defer c.Close()
		facts, err := c.Host.Facts()
		return plan.Render(r.Plan, s.planOptions(facts, r.Root)), err
	}
	if q.DryRun {
		return render.DryRun(s.out, r, text)
	}
	if s.form != usage.PlanForm(plan.FormBrief) && len(r.Plan.Steps) > 0 {
		did, err := text()
		if err != nil {
			return err
		}
		_, _ = io.WriteString(s.out, did+"\n")
	}
	render.Reply(s.out, s.err, r, q)
	return nil
}
