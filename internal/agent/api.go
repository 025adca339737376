package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"bulkhead/internal/apply"
	"bulkhead/internal/control"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// maxRequest bounds what root may send, a policy with all its includes, and maxOthers what others may.
const (
	maxRequest = 32 << 20
	maxOthers  = 64 << 10
)

// freshFor is how long an answer to status is given again: everybody may ask, and a look at every
// group is not free.
const freshFor = time.Second

// answer is what travels back over the socket.
type answer struct {
	State  string            `json:"state,omitempty"` // the agent's state directory, for hello
	Reply  *control.Reply    `json:"reply,omitempty"`
	Status *control.Status   `json:"status,omitempty"`
	Placed *control.PlacedAt `json:"placed,omitempty"`
	// History is the answer to history.
	History []journal.Entry `json:"history,omitempty"`
	Error   *wireError      `json:"error,omitempty"`
}

// wireError is an error with everything the client needs to say it as if it had happened there.
type wireError struct {
	Code     control.Code    `json:"code"`
	Message  string          `json:"message"`
	Hint     string          `json:"hint,omitempty"`
	Problems policy.Problems `json:"problems,omitempty"`
	Refusals []plan.Refusal  `json:"refusals,omitempty"`
}

type server struct {
	agent *Agent
	http  *http.Server
	sock  net.Listener
	alone *journal.AgentLock

	turn chan struct{} // held by the verb that is done now
	open bool          // whether others than root may connect; the loop's alone

	mu    sync.Mutex // guards the last answer to status
	last  answer
	given time.Time

	past     sync.Mutex // guards the last answer to history
	pastText []byte
	told     time.Time
}

// listen becomes the one agent of the state directory, opens the socket and says so. A socket that a dead agent
// left is removed; a living one is an error.
func (a *Agent) listen() (*server, error) {
	alone, err := a.control.Store.LockAgent(a.o.Socket)
	var other *journal.LockedError
	switch {
	case errors.As(err, &other):
		h := other.Holder
		return nil, &control.Error{
			Code: control.CodeLocked, Err: fmt.Errorf("an agent already works on %q: process %d, listening on %q", a.control.Store.Dir(), h.PID, h.Socket),
			Hint: "stop that one first, or give another --socket and --state",
		}
	case err != nil:
		return nil, err
	}
	s, err := a.open()
	if err != nil {
		alone.Release()
		return nil, err
	}
	s.alone = alone
	a.o.Log.Info("listening", "socket", a.o.Socket, "state", a.control.Store.Dir(), "enforcing", a.control.Standing())
	return s, nil
}

// open opens the socket.
func (a *Agent) open() (*server, error) {
	if err := os.MkdirAll(filepath.Dir(a.o.Socket), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the socket: %w", err)
	}
	if conn, err := net.DialTimeout("unix", a.o.Socket, time.Second); err == nil {
		_ = conn.Close()
		return nil, &control.Error{Code: control.CodeLocked, Err: fmt.Errorf("an agent already listens on %q", a.o.Socket), Hint: "stop that one first, or give another --socket and --state"}
	}
	if err := removeDead(a.o.Socket); err != nil {
		return nil, err
	}
	sock, err := net.Listen("unix", a.o.Socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", a.o.Socket, err)
	}
	// Root alone may connect, until the policy says otherwise (letIn).
	if err := os.Chmod(a.o.Socket, shut); err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("close the socket to others: %w", err)
	}
	s := &server{agent: a, sock: newReception(sock, func(who control.Caller) bool { owns, reads := a.control.Admits(who); return owns || reads }), turn: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hello", s.hello)
	mux.HandleFunc("POST /v1/do", s.do)
	mux.HandleFunc("POST /v1/enter", s.enter)
	mux.HandleFunc("GET /v1/status", s.status)
	mux.HandleFunc("GET /v1/history", s.history)
	mux.HandleFunc("GET /v1/placed/{pid}", s.placed)
	s.http = &http.Server{
		Handler: s.admit(mux), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c)
		},
	}
	return s, nil
}

// removeDead removes the socket that a dead agent left, and nothing else.
func removeDead(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode().Type() != os.ModeSocket {
		return &control.Error{Code: control.CodeUsage, Err: fmt.Errorf("%q is there and is no socket", path), Hint: "give another --socket"}
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("remove the socket of a dead agent: %w", err)
	}
	return nil
}

func (s *server) serve() { _ = s.http.Serve(s.sock) }

// close stops listening, which removes the socket, and lets what was asked come to its end.
func (s *server) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	_ = s.http.Shutdown(ctx)
	s.alone.Release()
}

// hello says that the agent lives, and for which state directory.
func (s *server) hello(w http.ResponseWriter, _ *http.Request) {
	write(w, answer{State: s.agent.control.Store.Dir()})
}

// do takes a changing verb.
func (s *server) do(w http.ResponseWriter, r *http.Request) {
	who := visitorOf(r)
	var q control.Request
	if !read(w, r, &q) {
		return
	}
	q.By, q.Caller = s.name(who, q.By), who.asker()
	reply, err := s.inTurn(r.Context(), q)
	s.mu.Lock()
	s.given = time.Time{} // what was known of the groups is old now
	s.mu.Unlock()
	s.agent.Changed(moved(reply))
	if !who.root && err != nil {
		who.user.rate.giveBack()
	}
	if reply != nil && !who.root {
		if _, reads := s.agent.control.Admits(who.caller); !reads {
			reply.Overrides, reply.Plan.Notes, reply.Plan.Shares = nil, nil, nil // of other groups too
		}
	}
	write(w, answer{Reply: reply, Error: onWire(err)})
}

// turnWait is how long a verb waits for those before it.
const turnWait = 20 * time.Second

// inTurn does one verb after the other, in the order in which they came; whoever waits too long learns from
// the lock who holds it.
func (s *server) inTurn(ctx context.Context, q control.Request) (*control.Reply, error) {
	late := time.NewTimer(turnWait)
	defer late.Stop()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
		if q.Verb == "apply" && !q.DryRun {
			defer s.agent.herald.reloading()()
		}
	case <-late.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.agent.control.Do(ctx, q)
}

// moved lists the processes that a verb moved.
func moved(r *control.Reply) []int {
	var pids []int
	if r != nil {
		for _, s := range r.Plan.Steps {
			if s.Op == plan.OpMove {
				pids = append(pids, s.PID.PID)
			}
		}
	}
	return pids
}

// status answers the read-only question, one at a time.
func (s *server) status(w http.ResponseWriter, r *http.Request) {
	send(w, s.statusText(context.WithoutCancel(r.Context()))) // the answer is for whoever asks next, too
}

// statusText is the answer to status as it travels: nobody waits for its reader.
func (s *server) statusText(ctx context.Context) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.given) > freshFor {
		st, err := s.agent.control.Status(ctx)
		s.last, s.given = answer{Status: st, Error: onWire(err)}, time.Now()
	}
	if s.last.Status != nil {
		s.agent.Fill(s.last.Status)
	}
	return encode(s.last)
}

// history answers with everything that is recorded.
func (s *server) history(w http.ResponseWriter, _ *http.Request) {
	send(w, s.historyText())
}

// historyText is the answer to history as it travels, which one at a time reads, and not each time that somebody asks.
func (s *server) historyText() []byte {
	s.past.Lock()
	defer s.past.Unlock()
	if time.Since(s.told) > freshFor {
		entries, err := s.agent.control.History()
		s.pastText, s.told = encode(answer{History: entries, Error: onWire(err)}), time.Now()
	}
	return s.pastText
}

func (s *server) placed(w http.ResponseWriter, r *http.Request) {
	pid, err := strconv.Atoi(r.PathValue("pid"))
	if err != nil {
		write(w, answer{Error: onWire(&control.Error{Code: control.CodeUsage, Err: fmt.Errorf("%q is not a process id", r.PathValue("pid"))})})
		return
	}
	write(w, answer{Placed: s.agent.placings.recall(pid)})
}

func write(w http.ResponseWriter, a answer) { send(w, encode(a)) }

// encode is an answer as it travels.
func encode(a answer) []byte {
	text, err := json.Marshal(a)
	if err != nil {
		text, _ = json.Marshal(answer{Error: &wireError{Code: control.CodeFailed, Message: "the answer cannot be written: " + err.Error()}})
	}
	return text
}

// send sends an answer; a client that does not read it loses the connection.
func send(w http.ResponseWriter, text []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// onWire makes an error ready to travel.
func onWire(err error) *wireError {
	if err == nil {
		return nil
	}
	e := &wireError{Code: control.CodeOf(err), Message: err.Error(), Hint: control.HintOf(err)}
	var problems policy.Problems
	if errors.As(err, &problems) {
		e.Problems = problems
	}
	var refused *apply.RefusedError
	if errors.As(err, &refused) {
		e.Refusals = refused.Refusals
	}
	return e
}

// err gives back the error that travelled.
func (e *wireError) err() error {
	switch {
	case e == nil:
		return nil
	case len(e.Problems) > 0:
		return e.Problems
	case len(e.Refusals) > 0:
		return &apply.RefusedError{Refusals: e.Refusals}
	}
	return &control.Error{Code: e.Code, Err: errors.New(e.Message), Hint: e.Hint}
}

// Client talks to a running agent.
type Client struct{ http *http.Client }

func newClient(socket string) *Client {
	return &Client{http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // a connection of its own for each request tells the two errors apart
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
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
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return nil, nil //nolint:nilnil // no agent is no error
	}
	_ = conn.Close()
	c := newClient(socket)
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	a, err := c.ask(ctx, http.MethodGet, "/v1/hello", nil)
	if err != nil {
		return nil, fmt.Errorf("%w on %q: %w", ErrSilent, socket, errors.Unwrap(err))
	}
	if err := a.Error.err(); err != nil {
		return nil, err
	}
	if !sameDir(a.State, state) {
		return nil, &control.Error{
			Code: control.CodeUsage, Err: fmt.Errorf("the agent on %q works on the state directory %q, not on %q", socket, a.State, state),
			Hint: "give --socket and --state that belong together",
		}
	}
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

// Do has the agent do a changing verb.
func (c *Client) Do(ctx context.Context, q control.Request) (*control.Reply, error) {
	a, err := c.ask(ctx, http.MethodPost, "/v1/do", q)
	if err != nil {
		return nil, err
	}
	return a.Reply, a.Error.err()
}

// Status asks the agent for everything it knows.
func (c *Client) Status(ctx context.Context) (*control.Status, error) {
	a, err := c.ask(ctx, http.MethodGet, "/v1/status", nil)
	if err != nil {
		return nil, err
	}
	return a.Status, a.Error.err()
}

// History asks for everything that was changed.
func (c *Client) History(ctx context.Context) ([]journal.Entry, error) {
	a, err := c.ask(ctx, http.MethodGet, "/v1/history", nil)
	if err != nil {
		return nil, err
	}
	return a.History, a.Error.err()
}

// Enter asks to put this process into a group, with the program that it is about to become.
func (c *Client) Enter(ctx context.Context, group, command string) error {
	a, err := c.ask(ctx, http.MethodPost, "/v1/enter", entry{group, command})
	if err != nil {
		return err
	}
	return a.Error.err()
}

// Placed asks when and how the agent placed a process; nil when it has not seen it come.
func (c *Client) Placed(ctx context.Context, pid int) (*control.PlacedAt, error) {
	a, err := c.ask(ctx, http.MethodGet, fmt.Sprintf("/v1/placed/%d", pid), nil)
	if err != nil {
		return nil, err
	}
	return a.Placed, a.Error.err()
}

func (c *Client) ask(ctx context.Context, method, path string, body any) (*answer, error) {
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
	var a answer
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
	return &control.Error{
		Code: control.CodeFailed, Err: fmt.Errorf("%w: %w", ErrCut, err),
		Hint: "`bulkhead status` shows what is in force; try again when it is back, or without it",
	}
}
