package agent

import (
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
	"syscall"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/control"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/transaction"
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
	State  string        `json:"state,omitempty"` // the agent's state directory, for hello
	Reply  *api.Reply    `json:"reply,omitempty"`
	Status *api.Status   `json:"status,omitempty"`
	Placed *api.PlacedAt `json:"placed,omitempty"`
	// History is the answer to history.
	History []journal.Entry `json:"history,omitempty"`
	Error   *wireError      `json:"error,omitempty"`
}

// wireError is an error with everything the client needs to say it as if it had happened there.
type wireError struct {
	Code     api.Code        `json:"code"`
	Message  string          `json:"message"`
	Hint     string          `json:"hint,omitempty"`
	Problems policy.Problems `json:"problems,omitempty"`
	Refusals []plan.Refusal  `json:"refusals,omitempty"`
}

type server struct {
	agent *Agent
	http  *http.Server
	socks []net.Listener // the public one, and root's own
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
	var other *statedir.LockedError
	switch {
	case errors.As(err, &other):
		h := other.Holder
		return nil, &api.Error{
			Code: api.CodeLocked, Err: fmt.Errorf("an agent already works on %q: process %d, listening on %q",
				a.control.Store.Dir(), h.PID, h.Socket),
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
	a.o.Log.Info("listening", "socket", a.o.Socket, "state", a.control.Store.Dir(), "enforcing",
		transaction.Standing(a.control.Controller))
	return s, nil
}

// open opens the socket.
func (a *Agent) open() (*server, error) {
	if err := os.MkdirAll(filepath.Dir(a.o.Socket), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the socket: %w", err)
	}
	if conn, err := net.DialTimeout("unix", a.o.Socket, time.Second); err == nil || errors.Is(err, syscall.EAGAIN) {
		if err == nil {
			_ = conn.Close()
		}
		return nil, &api.Error{Code: api.CodeLocked,
			Err:  fmt.Errorf("an agent already listens on %q", a.o.Socket),
			Hint: "stop that one first, or give another --socket and --state"}
	}
	sock, err := listenForRoot(a.o.Socket)
	if err != nil {
		return nil, err
	}
	admits := func(who api.Caller) bool { owns, reads := a.control.Admitted.Admits(who); return owns || reads }
	receive := func(l net.Listener) net.Listener {
		r := newLimitListener(l, admits)
		r.peer = a.o.peer
		return r
	}
	s := &server{agent: a, socks: []net.Listener{receive(sock)}, turn: make(chan struct{}, 1)}
	if own, err := listenForRoot(a.o.Socket + rootOnly); err == nil {
		s.socks = append(s.socks, receive(own))
	} else {
		a.o.Log.Warn("root has no socket of its own, and waits among others", "err", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hello", s.hello)
	mux.HandleFunc("POST /v1/do", s.do)
	mux.HandleFunc("POST /v1/enter", s.enter)
	mux.HandleFunc("GET /v1/status", s.status)
	mux.HandleFunc("GET /v1/history", s.history)
	mux.HandleFunc("GET /v1/placed/{pid}", s.placed)
	s.http = &http.Server{
		Handler: s.admit(mux), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		MaxHeaderBytes: 16 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c)
		},
	}
	return s, nil
}

// rootOnly is what the name of the socket ends in that stays root's: nobody else can fill its queue.
const rootOnly = ".root"

// listenForRoot opens a socket to which root alone may connect. The public one may be opened to others (letIn).
func listenForRoot(path string) (net.Listener, error) {
	if err := removeDead(path); err != nil {
		return nil, err
	}
	sock, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	if err := os.Chmod(path, shut); err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("close the socket to others: %w", err)
	}
	return sock, nil
}

// removeDead removes the socket that a dead agent left, and nothing else.
func removeDead(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode().Type() != os.ModeSocket {
		return &api.Error{Code: api.CodeUsage, Err: fmt.Errorf("%q is there and is no socket", path),
			Hint: "give another --socket"}
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("remove the socket of a dead agent: %w", err)
	}
	return nil
}

func (s *server) serve() {
	for _, sock := range s.socks {
		go func() { _ = s.http.Serve(sock) }()
	}
}

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
	who := peerOf(r)
	var q api.Request
	if !read(w, r, &q) {
		return
	}
	q.By, q.Caller = s.name(who, q.By), who.asker()
	reply, err := s.inTurn(r.Context(), q)
	s.mu.Lock()
	s.given = time.Time{} // what was known of the groups is old now
	s.mu.Unlock()
	s.agent.Changed(moved(reply))
	if !who.root && err == nil {
		who.user.changes.Allow()
	}
	if reply != nil && !who.root {
		if _, reads := s.agent.control.Admitted.Admits(who.caller); !reads {
			reply.Overrides, reply.Plan.Notes, reply.Plan.Shares = nil, nil, nil // of other groups too
		}
	}
	write(w, answer{Reply: reply, Error: onWire(err)})
}

// turnWait is how long a verb waits for those before it.
const turnWait = 20 * time.Second

// takeTurn waits for the verbs before this one, in the order in which they came. Whoever waits too long goes on without
// a turn, and learns from the lock who holds it.
func (s *server) takeTurn(ctx context.Context) (done func(), err error) {
	late := time.NewTimer(turnWait)
	defer late.Stop()
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-late.C:
		return func() {}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// inTurn does a verb when it is its turn.
func (s *server) inTurn(ctx context.Context, q api.Request) (*api.Reply, error) {
	done, err := s.takeTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if q.Verb == "apply" && !q.DryRun {
		defer s.agent.notifier.reloading()()
	}
	return control.Do(ctx, s.agent.control.Controller, q)
}

// moved lists the processes that a verb moved.
func moved(r *api.Reply) []int {
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
		st, err := inspect.Status(ctx, s.agent.control.Controller)
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
		entries, err := s.agent.control.Store.History()
		s.pastText, s.told = encode(answer{History: entries, Error: onWire(err)}), time.Now()
	}
	return s.pastText
}

func (s *server) placed(w http.ResponseWriter, r *http.Request) {
	pid, err := strconv.Atoi(r.PathValue("pid"))
	if err != nil {
		write(w, answer{Error: onWire(&api.Error{Code: api.CodeUsage,
			Err: fmt.Errorf("%q is not a process id", r.PathValue("pid"))})})
		return
	}
	write(w, answer{Placed: s.agent.placements.recall(pid)})
}

func write(w http.ResponseWriter, a answer) { send(w, encode(a)) }

// encode is an answer as it travels.
func encode(a answer) []byte {
	text, err := json.Marshal(a)
	if err != nil {
		text, _ = json.Marshal(answer{Error: &wireError{Code: api.CodeFailed,
			Message: "the answer cannot be written: " + err.Error()}})
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
	e := &wireError{Code: api.CodeOf(err), Message: err.Error(), Hint: api.HintOf(err)}
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
	return &api.Error{Code: e.Code, Err: errors.New(e.Message), Hint: e.Hint}
}
