package cli

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/unit"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/host"
	"bulkhead/internal/inspect"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

func planCmd(s *session) *cobra.Command {
	var exitCode, applied bool
	var at time.Time
	c := &cobra.Command{
		Use:   "plan",
		Short: "what apply would do",
		Long: `plan prints what apply would change, by group, a line for each value; limits that this host cannot
hold; and each group's share of the host. --long prints every step: file, old and new value, reason and undo.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var sources []policy.Source
			if !applied {
				var err error
				if sources, err = yamlform.Read(s.policy); err != nil {
					return err
				}
			}
			c, err := s.open()
			if err != nil {
				return err
			}
			defer c.Close()
			v, err := inspect.PlanFor(cmd.Context(), c, sources, at)
			if err != nil {
				return err
			}
			unit.Refuse(cmd.Context(), s.agent, v, s.policy)
			if s.json {
				v.Plan.Steps = render.OrEmpty(v.Plan.Steps)
				err = s.printJSON(v.Plan)
			} else {
				_, _ = io.WriteString(s.out, plan.Render(v.Plan, s.planOptions(v.Facts, v.Policy.Host.Root)))
			}
			if err == nil && exitCode && len(v.Plan.Steps) > 0 {
				return exit{int(api.CodeChanges)}
			}
			return err
		},
	}
	s.form.Flags(c)
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 3 when there are changes")
	usage.MomentFlag(c, &at, "at", "plan for the windows that are open then, and the overrides that have not ended")
	c.Flags().BoolVar(&applied, "applied", false,
		"plan for the applied policy instead of the file: what differs on the host")
	return c
}

// planOptions are those of printing a plan to the terminal.
func (s *session) planOptions(facts *host.Facts, root string) plan.RenderOptions {
	return plan.RenderOptions{Facts: facts, Root: root, Form: plan.Form(s.form), Width: render.Width(s.stdout)}
}
