package observing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/sampling"
)

// source is where a record is read: a file that somebody sent or the state directory, or else the agent.
type source struct {
	name  string
	agent *client.Client
}

// fileFlag adds the flag that names a file.
func fileFlag(c *cobra.Command, p *string) {
	c.Flags().StringVar(p, "file", "", "read this `file`, which \"dump --format record\" wrote, not this host's record")
	_ = c.MarkFlagFilename("file")
}

// source finds the record: a file that is named, else the state directory where this user may read it, else the agent.
func (s Session) source(ctx context.Context, file string) (source, error) {
	if file != "" {
		return source{name: file}, nil
	}
	directory := sampling.RecordIn(*s.State)
	_, err := os.ReadDir(directory)
	if err == nil {
		return source{name: directory}, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		running, err := s.running(ctx)
		return source{agent: running}, err
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("there is no record in %q", directory),
			Hint: "the agent writes it, unless the policy has `agent: {record: {size: 0}}`; name another --state, " +
				"or a --file"}
	}
	return source{}, err
}

// reach says what the record has.
func (s source) reach(ctx context.Context) (record.Reach, error) {
	if s.agent == nil {
		r, err := record.Survey(s.name)
		if err != nil {
			err = &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("read %q: %w", s.name, sysroot.Cause(err)),
				Hint: "name a file that `bulkhead dump --format record --into FILE` wrote, and that may be read"}
		}
		return r, err
	}
	r, err := s.agent.Record(ctx)
	if err != nil || r == nil {
		return record.Reach{}, err
	}
	return *r, nil
}

// segments gives the segments that have ticks between two times. The caller closes what it gets.
func (s source) segments(ctx context.Context, from, to time.Time) (io.ReadCloser, error) {
	if s.agent == nil {
		return record.Open(s.name, from, to)
	}
	return s.agent.Segments(ctx, from, to)
}
