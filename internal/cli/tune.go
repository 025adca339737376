package cli

import (
	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/advice"
)

func tuneCmd(s *session) *cobra.Command {
	return advice.TuneCommand(advice.Session{
		Out: s.out, Look: s.look, Open: s.open, Print: s.print, Change: s.change,
		Flags: func(c *cobra.Command) func(verb string) api.Request {
			ch := &change{}
			ch.flags(c)
			s.form.Flags(c)
			ch.onTrial(c)
			return ch.request
		},
	})
}
