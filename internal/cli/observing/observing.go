// Package observing has the verbs of the command line that show what the agent samples, and switch how it does.
package observing

import (
	"github.com/spf13/cobra"

	"bulkhead/internal/cli/serve"
)

// Look gives the verbs that only look.
func (s Session) Look() []*cobra.Command { return []*cobra.Command{s.top(), s.record(), s.dump()} }

// Other gives the verbs that switch collectors and serve.
func (s Session) Other() []*cobra.Command {
	return []*cobra.Command{s.collectors(), serve.Command(serve.Session{Socket: s.Socket, State: s.State, Log: s.Log,
		Version: s.Version})}
}
