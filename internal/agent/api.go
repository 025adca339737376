package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"bulkhead/internal/agent/wire"
	"bulkhead/internal/api"
	"bulkhead/internal/control"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/transaction"
)

// freshFor is how long an answer to status is given again: everybody may ask, and a look at every
// group is not free.
const freshFor = time.Second

// listen becomes the one agent of the state directory, opens the socket and says so. A socket that a dead agent
// left is removed; a living one is an error.
func (a *Agent) listen(ctx context.Context) (*server, error) {
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
	s, err := a.open(ctx)
	if err != nil {
		alone.Release()
		return nil, err
	}
	s.alone = alone
	a.o.Log.Info("listening", "socket", a.o.Socket, "state", a.control.Store.Dir(), "enforcing",
		transaction.Standing(a.control.Controller))
	return s, nil
}

// open opens the socket. What is done for those who ask is stopped when ctx ends.
func (a *Agent) open(ctx context.Context) (*server, error) {
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
	if own, err := listenForRoot(a.o.Socket + wire.RootOnly); err == nil {
		s.socks = append(s.socks, receive(own))
	} else {
		a.o.Log.Warn("root has no socket of its own, and waits among others", "err", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hello", s.hello)
	mux.HandleFunc("POST /v1/do", s.do)
	mux.HandleFunc("POST /v1/enter", s.enter)
	mux.HandleFunc("POST /v1/forbidden", s.forbidden)
	mux.HandleFunc("GET /v1/status", s.status)
	mux.HandleFunc("GET /v1/samples", s.samples)
	mux.HandleFunc("GET /v1/collectors", s.collectors)
	mux.HandleFunc("POST /v1/collectors", s.switchCollectors)
	mux.HandleFunc("GET /v1/record", s.record)
	mux.HandleFunc("GET /v1/record/segments", s.segments)
	mux.HandleFunc("GET /v1/history", s.history)
	mux.HandleFunc("GET /v1/placed/{pid}", s.placed)
	s.http = &http.Server{
		Handler: s.admit(mux), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		MaxHeaderBytes: 16 << 10,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c)
		},
	}
	return s, nil
}

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

// stopTime is how long the end waits for what is being undone for those who asked. systemd kills the agent 20 s after
// it told it to stop (TimeoutStopSec=).
const stopTime = 15 * time.Second

// ErrUnfinished says that the agent has ended and that something it was asked for has not: that goes on, and holds the
// lock of the state directory, until the process ends. The next change undoes it.
var ErrUnfinished = errors.New("a change is not undone yet; the next one undoes it")

// close stops listening, which removes the socket, and waits until what was asked is undone, once ctx has ended, or
// done. ErrUnfinished: it is not.
func (s *server) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.agent.o.stop)
	defer cancel()
	if err := s.http.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) && s.changing.Load() > 0 {
		return ErrUnfinished
	}
	_ = s.http.Close() // who reads too slowly
	s.alone.Release()
	return nil
}

// hello says that the agent lives, for which state directory, and what it knows.
func (s *server) hello(w http.ResponseWriter, _ *http.Request) {
	wire.Write(w, wire.Answer{State: s.agent.control.Store.Dir(), Knows: api.Known})
}

// do takes a changing verb.
func (s *server) do(w http.ResponseWriter, r *http.Request) {
	s.changing.Add(1)
	defer s.changing.Add(-1)
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
	var moved []int
	if reply != nil {
		moved = reply.Plan.Moved()
	}
	s.agent.Changed(moved)
	if !who.root && err == nil {
		who.user.changes.Allow()
	}
	if reply != nil && !who.root {
		if _, reads := s.agent.control.Admitted.Admits(who.caller); !reads {
			reply.Overrides, reply.Plan.Notes, reply.Plan.Shares = nil, nil, nil // of other groups too
		}
	}
	wire.Write(w, wire.Answer{Reply: reply, Error: wire.ErrorOf(err)})
}

// forbidden says which settings of its unit the agent lacks.
func (s *server) forbidden(w http.ResponseWriter, r *http.Request) {
	var settings []string
	if !read(w, r, &settings) {
		return
	}
	var a wire.Answer
	if unit := s.agent.control.Unit; unit != nil {
		a = wire.Answer{Unit: unit.Name, Forbidden: unit.Forbidden(settings)}
	}
	wire.Write(w, a)
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

// status answers the read-only question, one at a time.
func (s *server) status(w http.ResponseWriter, r *http.Request) {
	// The answer is for whoever asks next, too.
	wire.Send(w, wire.JSON, s.statusText(context.WithoutCancel(r.Context())))
}

// statusText is the answer to status as it travels: nobody waits for its reader.
func (s *server) statusText(ctx context.Context) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.given) > freshFor {
		st, err := inspect.Status(ctx, s.agent.control.Controller)
		s.last, s.given = wire.Answer{Status: st, Error: wire.ErrorOf(err)}, time.Now()
	}
	if s.last.Status != nil {
		s.agent.Fill(s.last.Status)
	}
	return wire.Encode(s.last)
}

// history answers with everything that is recorded.
func (s *server) history(w http.ResponseWriter, _ *http.Request) {
	wire.Send(w, wire.JSON, s.historyText())
}

// historyText is the answer to history as it travels, which one at a time reads, and not each time that somebody asks.
func (s *server) historyText() []byte {
	s.past.Lock()
	defer s.past.Unlock()
	if time.Since(s.told) > freshFor {
		entries, err := s.agent.control.Store.History()
		s.pastText, s.told = wire.Encode(wire.Answer{History: entries, Error: wire.ErrorOf(err)}), time.Now()
	}
	return s.pastText
}

func (s *server) placed(w http.ResponseWriter, r *http.Request) {
	pid, err := strconv.Atoi(r.PathValue("pid"))
	if err != nil {
		wire.Write(w, wire.Answer{Error: wire.ErrorOf(&api.Error{Code: api.CodeUsage,
			Err: fmt.Errorf("%q is not a process id", r.PathValue("pid"))})})
		return
	}
	wire.Write(w, wire.Answer{Placed: s.agent.placements.recall(pid)})
}
