package cli

import (
	"github.com/spf13/cobra"

	"bulkhead/internal/policy/yamlform"
)

func releaseCmd(s *session) *cobra.Command {
	var ch change
	var all bool
	c := &cobra.Command{
		Use:   "release GROUP… | release --all",
		Short: "the emergency exit: lift limits, in a safe order",
		Long: `release lifts the limits of groups, in an order that is safe for what runs in them. It works with the
agent dead and with the policy broken. A released group stays lifted, over restarts and reboots, until apply.
release --all gives the host back: processes go to where they came from, every directory of bulkhead goes.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("release")
			q.Groups, q.All = args, all
			// Needed only when no root group is recorded; whatever is wrong with it must not stand in the way.
			q.Sources, _ = yamlform.Read(s.policy)
			return s.change(cmd, q)
		},
	}
	ch.flags(c)
	s.form.Flags(c)
	c.Flags().BoolVar(&all, "all", false, "everything")
	return c
}
