package observing

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/transaction"
)

// Session is what the verbs share with the others.
type Session struct {
	// Agent gives the running agent, nil where none answers.
	Agent func(context.Context) (*client.Client, error)
	// Open gives the host and the state directory, to root.
	Open func() (*transaction.Controller, error)
	// Do has a changing verb done, by the agent when one runs, and says whether it was the agent. Who asks for it.
	Do  func(context.Context, api.Request) (*api.Reply, bool, error)
	Who func() string
	// Print answers with a value as JSON, or with text.
	Print func(v any, text func()) error
	JSON  *bool     // whether that is to be JSON
	Out   io.Writer // for people
	Text  io.Writer // for people too, but with lines as they are
	Err   io.Writer // for what is no answer
	// Stdout is for what other programs read.
	Stdout io.Writer

	Socket, State *string // where the agent is; read when a verb runs
	Log           func() *slog.Logger
	Version       string
}

// running is the agent, and an error where none answers.
func (s Session) running(ctx context.Context) (*client.Client, error) {
	c, err := s.Agent(ctx)
	if err == nil && c == nil {
		err = &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("no agent answers on %q", *s.Socket),
			Hint: "start the agent; whom it answers says `agent: {read: …}` of the policy"}
	}
	return c, err
}
