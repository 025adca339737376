// Package schedule is the verb schedule of the command line: the windows of the policy.
package schedule

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/policy"
)

// Session is what the verb needs of the command line.
type Session struct {
	Out    io.Writer
	Policy *string                        // the policy file; read when the verb runs
	Parsed func() (*policy.Policy, error) // what it holds, without the host
	Print  func(v any, text func()) error
}

// Command gives the verb.
func Command(s Session) *cobra.Command {
	list := func(*cobra.Command, []string) error {
		p, err := s.Parsed()
		if err != nil {
			return err
		}
		all := render.SchedulesView(p, time.Now())
		return s.Print(all, func() { render.Schedules(s.Out, *s.Policy, p, all) })
	}
	c := &cobra.Command{Use: "schedule", Args: usage.KnownVerb, RunE: list,
		Short: "the windows of the policy: what is open, what comes next, what would switch"}
	c.AddCommand(&cobra.Command{
		Use: "list", RunE: list, Short: "each schedule, whether it is open, and when it switches next",
	}, simulateCmd(s))
	return c
}

func simulateCmd(s Session) *cobra.Command {
	var days int
	var from time.Time
	c := &cobra.Command{
		Use:   "simulate",
		Short: "every switch of the coming days, and what holds from then on",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if days < 1 || days > 3660 {
				return usage.Errorf(cmd, "--days %d is not between 1 and 3660", days)
			}
			p, err := s.Parsed()
			if err != nil {
				return err
			}
			if from.IsZero() {
				from = time.Now()
			}
			lines := render.SwitchesView(p, p.Switches(from, from.AddDate(0, 0, days)))
			return s.Print(lines, func() { render.Switches(s.Out, lines, days) })
		},
	}
	c.Flags().IntVar(&days, "days", 30, "how many days")
	usage.MomentFlag(c, &from, "from", "from when on (default now)")
	return c
}
