// Package observing has the verbs of the command line that show what the agent samples, and switch how it does.
package observing

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/serve"
	"bulkhead/internal/cli/slosim"
	"bulkhead/internal/observe/record"
)

// Look gives the verbs that only look.
func (s Session) Look() []*cobra.Command {
	return []*cobra.Command{s.top(), s.suspects(), s.histogram(), s.record(), s.dump(),
		slosim.Command(slosim.Session{Out: s.Out, Print: s.Print, Reach: s.reach, Segments: s.segments,
			Between: func(from, to, file string, reach record.Reach) (time.Time, time.Time, error) {
				return wanted{from: from, to: to, file: file}.between(reach, time.Now())
			}, FileFlag: fileFlag})}
}

// Other gives the verbs that switch collectors and serve.
func (s Session) Other() []*cobra.Command {
	return []*cobra.Command{s.collectors(), serve.Command(serve.Session{Socket: s.Socket, State: s.State, Log: s.Log,
		Version: s.Version, Segments: s.segments, Reach: s.reach})}
}

// segments gives segments of a file, or of this host's record.
func (s Session) segments(ctx context.Context, file string, from, to time.Time) (io.ReadCloser, error) {
	at, err := s.source(ctx, file)
	if err != nil {
		return nil, err
	}
	return at.segments(ctx, from, to)
}
