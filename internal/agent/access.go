package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"bulkhead/internal/agent/wire"
	"bulkhead/internal/api"
	"bulkhead/internal/control"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
)

// The modes of the socket: for root alone, and where the policy lets others in, who are told apart by what the kernel
// says of them.
const (
	shut     = 0o600
	unlocked = 0o666
)

// How many connections others than root may have at a time, so that they cannot use up the agent's descriptors: each
// user whom the policy admits and all of those, and the others, who get no more than an answer that says no.
const (
	connsOfUser    = 64
	connsAdmitted  = 256
	connsOfUnknown = 4
	connsUnknown   = 32
)

// ownTurn is how long what a user asks for waits for what the same user asked for before: as long as commands wait for
// each other that cron starts at once.
const ownTurn = time.Minute

// How many changes a user may ask for at once, and how soon the next one after those: the history has an entry for
// each, and room for so many.
const (
	changesAtOnce = 20
	changeEvery   = 10 * time.Second
)

// The same of requests for changes, also of those that are refused: each costs a look at the host.
const (
	requestsAtOnce = 60
	requestEvery   = time.Second
)

// peerKey is the context key of the connection.
type peerKey struct{}

// connPeer is the process at the other end of a connection.
type connPeer struct {
	root   bool
	pid    int
	caller api.Caller // not root
	user   *userQuota
}

// userQuota is what others than root do, by user.
type userQuota struct {
	conns    int
	busy     chan struct{} // held while something is changed
	changes  *rate.Limiter // those that were made
	requests *rate.Limiter // those that were refused, too
}

func newUserQuota() *userQuota {
	return &userQuota{
		busy:     make(chan struct{}, 1),
		changes:  rate.NewLimiter(rate.Every(changeEvery), changesAtOnce),
		requests: rate.NewLimiter(rate.Every(requestEvery), requestsAtOnce),
	}
}

// forgotten says that a user has asked for so little for so long that nothing has to be remembered.
func (v *userQuota) forgotten() bool {
	return v.conns == 0 && v.changes.Tokens() >= changesAtOnce && v.requests.Tokens() >= requestsAtOnce
}

// limitListener takes connections and turns away whom it cannot tell, and others than root who have too many.
type limitListener struct {
	net.Listener

	admits   func(api.Caller) bool
	peer     func(net.Conn) (*api.Caller, error)
	refusals *rate.Limiter // bounds what connections cost that are not let in
	mu       sync.Mutex    // guards what follows
	users    map[int]*userQuota
	// admitted and unknown are the connections of others than root.
	admitted, unknown int
}

func newLimitListener(l net.Listener, admits func(api.Caller) bool) *limitListener {
	return &limitListener{
		Listener: l, admits: admits, peer: peer, refusals: rate.NewLimiter(200, 50), users: map[int]*userQuota{},
	}
}

// conn is a connection that was let in.
type conn struct {
	net.Conn

	connPeer connPeer
	once     sync.Once
	leave    func()
}

// Close closes the connection, which then counts no more for its user.
func (c *conn) Close() error {
	c.once.Do(c.leave)
	return c.Conn.Close()
}

// Accept gives the next connection that is let in.
func (r *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := r.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in := r.receive(c); in != nil {
			return in, nil
		}
		_ = c.Close()
		time.Sleep(r.refusals.Reserve().Delay())
	}
}

// receive counts a connection in; nil: it is not let in.
func (r *limitListener) receive(c net.Conn) *conn {
	who, err := r.peer(c)
	if err != nil {
		return nil
	}
	if who.UID == 0 {
		return &conn{Conn: c, connPeer: connPeer{root: true, pid: who.PID}, leave: func() {}}
	}
	return r.count(c, *who, r.admits(*who))
}

// count counts a connection of somebody else than root in; nil: there are too many.
func (r *limitListener) count(c net.Conn, who api.Caller, admitted bool) *conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, most, each := &r.admitted, connsAdmitted, connsOfUser
	if !admitted {
		all, most, each = &r.unknown, connsUnknown, connsOfUnknown
	}
	u := r.users[who.UID]
	if u == nil {
		u = newUserQuota()
	}
	if u.conns >= each || *all >= most {
		return nil
	}
	r.users[who.UID] = u
	u.conns++
	*all++
	return &conn{Conn: c, connPeer: connPeer{pid: who.PID, caller: who, user: u}, leave: func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		u.conns--
		*all--
		if u.forgotten() {
			delete(r.users, who.UID)
		}
	}}
}

// peer is who is at the other end, as the kernel has known it since the connection was made (unix(7), SO_PEERCRED;
// SO_PEERGROUPS since 4.13): what that process has become since then, and whoever it gave the connection to, counts for
// nothing. Before 4.13 only those groups count that it has beside its own one, which a set-group-ID program does not
// change.
func peer(c net.Conn) (*api.Caller, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var groups []int
	var noGroups error
	if ctl := raw.Control(func(fd uintptr) {
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			groups, noGroups = peerGroups(fd)
		}
	}); ctl != nil || err != nil {
		return nil, errors.Join(ctl, err)
	}
	who := &api.Caller{Identity: procfs.Identity{UID: int(cred.Uid)}, PID: int(cred.Pid)}
	if noGroups == nil {
		who.Groups = append(groups, int(cred.Gid))
	} else if now, err := host.New("/").Proc.Groups(who.PID); err == nil {
		who.Groups = now
	}
	return who, nil
}

// peerGroups reads the supplementary groups of the process at the other end, as of when it connected.
func peerGroups(fd uintptr) ([]int, error) {
	list := make([]uint32, 64)
	for {
		size := uint32(len(list) * 4)
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case e == unix.ERANGE && len(list) < int(size/4):
			list = make([]uint32, size/4)
		case e != 0:
			return nil, e
		default:
			groups := make([]int, size/4)
			for i := range groups {
				groups[i] = int(list[i])
			}
			return groups, nil
		}
	}
}

// letIn gives the socket the mode that the policy in force asks for.
func (s *server) letIn() {
	open := s.agent.control.Admitted.OpenToOthers()
	if open == s.open {
		return
	}
	mode := os.FileMode(shut)
	if open {
		mode = unlocked
	}
	if err := os.Chmod(s.agent.o.Socket, mode); err != nil {
		s.agent.o.Log.Error("the socket does not let in whom the policy names; trying again", "err", err)
		return
	}
	s.open = open
}

// peerOf is who sent a request; somebody without any right when that is not known.
func peerOf(r *http.Request) connPeer {
	if c, known := r.Context().Value(peerKey{}).(*conn); known {
		return c.connPeer
	}
	return connPeer{caller: api.Caller{Identity: procfs.Identity{UID: -1}}, user: &userQuota{}}
}

// asker is the caller whose rights a request has; nil is root.
func (v connPeer) asker() *api.Caller {
	if v.root {
		return nil
	}
	return &v.caller
}

// admit turns away whom the policy in force does not let in, before anything is read of what they ask, whatever mode
// somebody gave the socket, and sees to it that a user changes one thing at a time, and not too many.
func (s *server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := peerOf(r)
		if who.root {
			next.ServeHTTP(w, r)
			return
		}
		owns, reads := s.agent.control.Admitted.Admits(who.caller)
		greets := r.Method == http.MethodGet && r.URL.Path == "/v1/hello"
		changes := r.Method != http.MethodGet
		if changes && !owns || !changes && !reads && (!owns || !greets) {
			w.Header().Set("Connection", "close")
			wire.Write(w, wire.Answer{Error: &wire.Error{Code: api.CodeRefused,
				Message: "only root may ask the agent for this, and whom the policy names",
				Hint: "run it with sudo; `owner` of a group says who may do something there, `agent: {read: …}` " +
					"who may look"}})
			return
		}
		if !changes {
			next.ServeHTTP(w, r)
			return
		}
		s.oneByOne(w, r, who, next)
	})
}

// oneByOne takes what a user asks for in its turn. It is read before that, so that nothing waits for a client with the
// turn taken, and one that goes away meanwhile is noticed.
func (s *server) oneByOne(w http.ResponseWriter, r *http.Request, who connPeer, next http.Handler) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxOthers))
	if err != nil {
		wire.Write(w, wire.Answer{Error: unreadable(err)})
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	late := time.NewTimer(ownTurn)
	defer late.Stop()
	select {
	case who.user.busy <- struct{}{}:
		defer func() { <-who.user.busy }()
	case <-r.Context().Done():
		return
	case <-late.C:
		wire.Write(w, wire.Answer{Error: &wire.Error{Code: api.CodeLocked,
			Message: fmt.Sprintf("other requests of uid %d are under way", who.caller.UID), Hint: "try again later"}})
		return
	}
	most, every := 0, time.Duration(0)
	switch {
	case !who.user.requests.Allow():
		most, every = requestsAtOnce, requestEvery
	case r.URL.Path == "/v1/do" && who.user.changes.Tokens() < 1:
		most, every = changesAtOnce, changeEvery
	}
	if most > 0 {
		wire.Write(w, wire.Answer{Error: &wire.Error{
			Code: api.CodeRefused, Hint: fmt.Sprintf("one more is taken every %s", every),
			Message: fmt.Sprintf("uid %d has asked for %d changes in a short time", who.caller.UID, most),
		}})
		return
	}
	next.ServeHTTP(w, r)
}

// read reads what is asked, and answers when that cannot be read.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, wire.MaxRequest)).Decode(into)
	if err != nil {
		wire.Write(w, wire.Answer{Error: unreadable(err)})
	}
	return err == nil
}

func unreadable(err error) *wire.Error {
	return &wire.Error{Code: api.CodeUsage, Message: "the request cannot be read: " + err.Error()}
}

// name is who asks, for the history: root may say who it is on behalf of.
func (s *server) name(who connPeer, says string) string {
	uid := 0
	switch {
	case !who.root:
		uid = who.caller.UID
		says = s.agent.control.Host.Users.UserName(uid)
	case says == "":
		says = "root"
	}
	if says != "" {
		says += " "
	}
	return fmt.Sprintf("%s(uid %d, pid %d)", says, uid, who.pid)
}

// enter puts the process at the other end into a group.
func (s *server) enter(w http.ResponseWriter, r *http.Request) {
	s.changing.Add(1)
	defer s.changing.Add(-1)
	who := peerOf(r)
	var e wire.Entry
	if !read(w, r, &e) {
		return
	}
	if who.pid <= 0 {
		text := "the agent cannot see the process that asks: it is in another PID namespace"
		wire.Write(w, wire.Answer{Error: &wire.Error{Code: api.CodeFailed, Message: text}})
		return
	}
	into := control.Entry{
		Group: e.Group, Command: e.Command, By: s.name(who, e.By), PID: who.pid, Caller: who.asker(), Turn: s.takeTurn,
	}
	err := control.Enter(r.Context(), s.agent.control.Controller, into)
	if err == nil {
		s.agent.Changed([]int{who.pid})
	}
	wire.Write(w, wire.Answer{Error: wire.ErrorOf(err)})
}

type server struct {
	agent *Agent
	http  *http.Server
	socks []net.Listener // the public one, and root's own
	alone *journal.AgentLock

	turn chan struct{} // held by the verb that is done now
	// changing is how many who asked are changing something.
	changing atomic.Int32
	open     bool // whether others than root may connect; the loop's alone

	mu    sync.Mutex // guards the last answer to status
	last  wire.Answer
	given time.Time

	recordReader sync.Mutex // held by somebody else than root who reads the record

	past     sync.Mutex // guards the last answer to history
	pastText []byte
	told     time.Time
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
