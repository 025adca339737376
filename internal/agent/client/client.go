// Package client asks a running agent over its socket.
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"bulkhead/internal/agent/wire"
	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/observe/record"
)

// Client talks to a running agent.
type Client struct {
	http     *http.Client
	patience time.Duration // for an answer that comes within wire.WatchTime
	knows    []string      // by hello
}

// New makes a client of what listens on a socket, whatever it is.
func New(socket string) *Client {
	return &Client{patience: wire.WatchTime + helloTimeout, http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // a connection of its own for each request tells the two errors apart
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, socket)
		},
	}}}
}

// dial connects to a socket. While the queue of those who wait to be accepted is full, which connect(2) says by EAGAIN,
// it tries again until ctx ends.
func dial(ctx context.Context, socket string) (net.Conn, error) {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(5*time.Millisecond + rand.N(20*time.Millisecond)):
		}
	}
}

// Errors that callers branch on.
var (
	// ErrSilent says that an agent was not reached: it is stopped, hangs, or went away. It has done nothing.
	ErrSilent = errors.New("the agent does not answer")
	// ErrCut says that the agent went away over a request. It may have done it.
	ErrCut = errors.New("the agent went away")
)

// helloTimeout is how long an agent may take to say that it lives, on a busy host too.
const helloTimeout = 5 * time.Second

// Dial gives a client when an agent answers on the socket, and nil when none listens there. An agent
// of another state directory is an error: it would change something else than what was asked for.
func Dial(ctx context.Context, socket, state string) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	at := socket
	conn, err := dial(ctx, socket+wire.RootOnly)
	if err == nil {
		at = socket + wire.RootOnly
	} else if conn, err = dial(ctx, socket); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, nil //nolint:nilnil // no agent listens, or not for us
		}
		return nil, fmt.Errorf("%w on %q: %w", ErrSilent, socket, err)
	}
	_ = conn.Close()
	c := New(at)
	a, err := c.ask(ctx, http.MethodGet, "/v1/hello", nil)
	if err != nil {
		return nil, fmt.Errorf("%w on %q: %w", ErrSilent, socket, errors.Unwrap(err))
	}
	if err := a.Error.Err(); err != nil {
		return nil, err
	}
	if !sameDir(a.State, state) {
		return nil, &api.Error{
			Code: api.CodeUsage,
			Err:  fmt.Errorf("the agent on %q works on the state directory %q, not on %q", socket, a.State, state),
			Hint: "give --socket and --state that belong together",
		}
	}
	c.knows = a.Knows
	return c, nil
}

// sameDir says whether two names mean one directory. One that is not there yet is compared by name.
func sameDir(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	if errX == nil && errY == nil {
		return os.SameFile(x, y)
	}
	return filepath.Clean(a) == filepath.Clean(b)
}

// Do has the agent do a changing verb. One of another version is not asked for what it does not know.
func (c *Client) Do(ctx context.Context, q api.Request) (*api.Reply, error) {
	if err := q.Beyond(c.knows); err != nil {
		return nil, err
	}
	a, err := c.told(ctx, http.MethodPost, "/v1/do", q)
	return a.Reply, err
}

// Status asks the agent for everything it knows.
func (c *Client) Status(ctx context.Context) (*api.Status, error) {
	a, err := c.told(ctx, http.MethodGet, "/v1/status", nil)
	return a.Status, err
}

// Figures asks for the figures of the last sample. Those that the caller has already, if any, do not travel again. An
// agent of an older version gives the whole sample in their place.
func (c *Client) Figures(ctx context.Context, had *figures.Set) (*figures.Set, error) {
	resp, err := c.get(ctx, "/v1/samples"+had.Unless(), figures.Type)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == figures.Type {
		text := bytes.NewBuffer(make([]byte, 0, max(resp.ContentLength, 0)+bytes.MinRead)) // as large as it needs
		if _, err := text.ReadFrom(resp.Body); err != nil {
			return nil, lost(err)
		}
		set, err := figures.Read(text.Bytes(), had)
		if err != nil {
			return nil, strange(err)
		}
		return set, nil
	}
	a, err := read(resp)
	switch {
	case err != nil:
		return nil, err
	case a.Error != nil:
		return nil, a.Error.Err()
	case a.Sample == nil:
		return nil, strange(errors.New("it has no figures"))
	case a.Sample.Same && had != nil:
		return had.Aged(a.Sample.Age), nil
	}
	return figures.Of(a.Sample), nil
}

// NewerSample waits for a sample after the one of a time, and gives the last one after 10 s in any case. While somebody
// waits so the agent's quick collectors read every second. An agent that does not answer by then is an error.
func (c *Client) NewerSample(ctx context.Context, after time.Time) (*observe.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	a, err := c.told(ctx, http.MethodGet, fmt.Sprintf("/v1/samples?after=%d", after.UnixNano()), nil)
	return a.Sample, err
}

// Collectors asks how collectors are switched and what they do.
func (c *Client) Collectors(ctx context.Context) ([]observe.Reading, error) {
	a, err := c.told(ctx, http.MethodGet, "/v1/collectors", nil)
	return a.Collectors, err
}

// SwitchCollectors switches collectors, and says what became of them all.
func (c *Client) SwitchCollectors(ctx context.Context, change collect.Change) ([]observe.Reading, error) {
	a, err := c.told(ctx, http.MethodPost, "/v1/collectors", change)
	return a.Collectors, err
}

// Record asks what the record has.
func (c *Client) Record(ctx context.Context) (*record.Reach, error) {
	a, err := c.told(ctx, http.MethodGet, "/v1/record", nil)
	return a.Record, err
}

// Segments asks for the segments of the record that have ticks between two times (record.Open); the caller closes it.
func (c *Client) Segments(ctx context.Context, from, to time.Time) (io.ReadCloser, error) {
	path := fmt.Sprintf("/v1/record/segments?from=%d&to=%d", from.UnixMilli(), to.UnixMilli())
	resp, err := c.get(ctx, path, record.SegmentsType)
	if err != nil {
		return nil, err
	}
	if resp.Header.Get("Content-Type") == record.SegmentsType {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	a, err := read(resp)
	if err != nil {
		return nil, err
	}
	return nil, cmp.Or(a.Error.Err(), strange(errors.New("it has no record")))
}

// strange says what is wrong with an answer that came whole.
func strange(err error) error {
	return &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("read the agent's answer: %w", err),
		Hint: "restart the agent, for instance by `systemctl restart bulkhead`, so that it is of the version of this " +
			"program: limits stay in force"}
}

// History asks for everything that was changed.
func (c *Client) History(ctx context.Context) ([]journal.Entry, error) {
	a, err := c.told(ctx, http.MethodGet, "/v1/history", nil)
	return a.History, err
}

// Enter asks to put this process into a group, with the program that it is about to become.
func (c *Client) Enter(ctx context.Context, group, command, by string) error {
	_, err := c.told(ctx, http.MethodPost, "/v1/enter", wire.Entry{Group: group, Command: command, By: by})
	return err
}

// Forbidden asks which settings of its unit the agent lacks, and for the unit's name; "" is not started by systemd.
func (c *Client) Forbidden(ctx context.Context, settings []string) (unit string, forbidden []string, err error) {
	a, err := c.told(ctx, http.MethodPost, "/v1/forbidden", settings)
	return a.Unit, a.Forbidden, err
}

// Placed asks when and how the agent placed a process; nil when it has not seen it come.
func (c *Client) Placed(ctx context.Context, pid int) (*api.PlacedAt, error) {
	a, err := c.told(ctx, http.MethodGet, fmt.Sprintf("/v1/placed/%d", pid), nil)
	return a.Placed, err
}

// told asks, and gives the answer, which is never nil, with the error that is in it.
func (c *Client) told(ctx context.Context, method, path string, body any) (*wire.Answer, error) {
	a, err := c.ask(ctx, method, path, body)
	if err != nil {
		return &wire.Answer{}, err
	}
	return a, a.Error.Err()
}

func (c *Client) ask(ctx context.Context, method, path string, body any) (*wire.Answer, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, lost(err)
	}
	defer resp.Body.Close()
	return read(resp)
}

// get asks for something of a media type. An agent that has none of it answers in JSON.
func (c *Client) get(ctx context.Context, path, kind string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	req.Header.Set("Accept", kind)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, lost(err)
	}
	return resp, nil
}

// read reads an answer in JSON.
func read(resp *http.Response) (*wire.Answer, error) {
	var a wire.Answer
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		return nil, lost(err)
	}
	return &a, nil
}

// lost says how a request was lost.
func lost(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return &api.Error{
		Code: api.CodeFailed, Err: fmt.Errorf("%w: %w", ErrCut, err),
		Hint: "`bulkhead status` shows what is in force; try again when it is back, or without it",
	}
}
