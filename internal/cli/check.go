package cli

import (
	"context"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/inspect"
	"bulkhead/internal/policy/yamlform"
)

func checkCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "validate the policy against its schema and this host",
		Long: "check validates the policy and holds it against this host. It never looks at live use, and " +
			"changes nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return check(cmd.Context(), s, func(answer render.CheckView) { render.Check(s.out, s.policy, answer) })
		},
	}
}

func notesCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "notes",
		Short: "what there is to know about the policy on this host",
		Long: "notes says what this host does not hold of the policy, and why, and what else is to know of it. Other " +
			"verbs say only how many remarks there are.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return check(cmd.Context(), s, func(answer render.CheckView) { render.Notes(s.out, answer) })
		},
	}
}

// check holds the policy file against the host and answers with what that says.
func check(ctx context.Context, s *session, text func(render.CheckView)) error {
	sources, err := yamlform.Read(s.policy)
	if err != nil {
		return err
	}
	c, err := s.look()
	if err != nil {
		return err
	}
	defer c.Close()
	v, err := inspect.Check(ctx, c, sources)
	if err != nil {
		return err
	}
	answer := render.CheckView{
		Groups: len(v.Classified.Groups), Notes: render.OrEmpty(v.Plan.Notes),
		Remarks: render.OrEmpty(v.Policy.Notes),
	}
	return s.print(answer, func() { text(answer) })
}
