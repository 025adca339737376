package cli

import (
	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/policy/yamlform"
)

func checkCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "validate the policy against its schema and this host",
		Long: "check validates the policy and holds it against this host. It never looks at live use, and " +
			"changes nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			sources, err := yamlform.Read(s.policy)
			if err != nil {
				return err
			}
			c, err := s.look()
			if err != nil {
				return err
			}
			defer c.Close()
			v, err := c.Check(cmd.Context(), sources)
			if err != nil {
				return err
			}
			answer := render.CheckView{
				Groups: len(v.Classified.Groups), Notes: render.OrEmpty(v.Plan.Notes),
				Remarks: render.OrEmpty(v.Policy.Notes),
			}
			return s.print(answer, func() { render.Check(s.out, s.policy, answer) })
		},
	}
}
