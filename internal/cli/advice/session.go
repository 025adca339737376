package advice

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/transaction"
)

// Session is what the verb tune needs of the command line.
type Session struct {
	Out   io.Writer
	Look  func() (*transaction.Controller, error) // at the host
	Open  func() (*transaction.Controller, error) // the state directory too
	Print func(v any, text func()) error
	// Flags gives a verb the flags of changes, and then the request that they make.
	Flags func(c *cobra.Command) (request func(verb string) api.Request)
	// Change has a request done and prints what was done.
	Change func(cmd *cobra.Command, q api.Request) error
	// Do has a request done and says whether an agent did it, and Reply prints what was done.
	Do       func(ctx context.Context, q api.Request) (r *api.Reply, byAgent bool, err error)
	Reply    func(r *api.Reply, q api.Request) error
	Progress io.Writer // stderr as it is
}
