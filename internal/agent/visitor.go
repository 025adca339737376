package agent

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/control"
)

// The modes of the socket: for root alone, and where the policy lets others in, who are told apart by what the kernel says of them.
const (
	shut     = 0o600
	unlocked = 0o666
)

// How many connections others than root may have at a time, so that they cannot use up the agent's descriptors.
const (
	connsOfUser   = 64
	connsOfOthers = 256
)

// ownTurn is how long what a user asks for waits for what the same user asked for before: as long as commands wait for each other
// that cron starts at once.
const ownTurn = time.Minute

// peerKey is the context key of the connection.
type peerKey struct{}

// visitor is the process at the other end of a connection.
type visitor struct {
	uid, pid int
	caller   *control.Caller // nil for root
	busy     chan struct{}   // of all connections of a user: held while one of them changes something
}

// reception takes connections and turns away whom it cannot tell, and others than root who have too many.
type reception struct {
	net.Listener

	mu    sync.Mutex // guards what follows
	count map[int]int
	busy  map[int]chan struct{}
	total int
}

func newReception(l net.Listener) *reception {
	return &reception{Listener: l, count: map[int]int{}, busy: map[int]chan struct{}{}}
}

// conn is a connection of a visitor.
type conn struct {
	net.Conn

	visitor visitor
	once    sync.Once
	leave   func()
}

// Close counts the visitor out.
func (c *conn) Close() error {
	c.once.Do(c.leave)
	return c.Conn.Close()
}

// Accept gives the next connection that is let in.
func (r *reception) Accept() (net.Conn, error) {
	for {
		c, err := r.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in := r.receive(c); in != nil {
			return in, nil
		}
		_ = c.Close()
	}
}

// receive counts a connection in; nil: it is not let in.
func (r *reception) receive(c net.Conn) *conn {
	cred := peer(c)
	if cred == nil {
		return nil
	}
	uid := int(cred.Uid)
	in := &conn{Conn: c, visitor: visitor{uid: uid, pid: int(cred.Pid)}, leave: func() {}}
	if uid == 0 {
		return in
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count[uid] >= connsOfUser || r.total >= connsOfOthers {
		return nil
	}
	if r.count[uid] == 0 {
		r.busy[uid] = make(chan struct{}, 1)
	}
	r.count[uid]++
	r.total++
	in.visitor.busy = r.busy[uid]
	in.leave = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.total--
		if r.count[uid]--; r.count[uid] == 0 {
			delete(r.count, uid)
			delete(r.busy, uid)
		}
	}
	return in
}

// peer reads the credentials the kernel vouches for (unix(7), SO_PEERCRED); nil when it gives none.
func peer(c net.Conn) *unix.Ucred {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return nil
	}
	return cred
}

// letIn gives the socket the mode that the policy in force asks for.
func (s *server) letIn() {
	open := s.agent.control.OpenToOthers()
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

// visitorOf is who sent a request; one of nobody, who is not root, when that is not known.
func visitorOf(r *http.Request) visitor {
	if c, known := r.Context().Value(peerKey{}).(*conn); known {
		return c.visitor
	}
	return visitor{uid: -1}
}

// admit turns away whom the policy in force does not let in, before anything is read of what they ask, whatever mode somebody gave
// the socket, and sees to it that a user changes one thing at a time.
func (s *server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, known := r.Context().Value(peerKey{}).(*conn)
		if known && c.visitor.uid == 0 {
			next.ServeHTTP(w, r)
			return
		}
		var owns, reads bool
		if known {
			caller := control.Caller{PID: c.visitor.pid}
			caller.UID = c.visitor.uid
			// Its Unix groups are those of the process; if that has ended, its number may be another's by now.
			if whose, err := s.agent.control.Host.Identity(c.visitor.pid); err == nil && whose.UID == caller.UID {
				caller.Identity = whose
			}
			c.visitor.caller = &caller
			owns, reads = s.agent.control.Admits(caller)
		}
		changes := r.Method != http.MethodGet
		if !owns && (changes || !reads) {
			w.Header().Set("Connection", "close")
			write(w, answer{Error: &wireError{Code: control.CodeRefused, Message: "only root may ask the agent for this, and owners of groups that the policy names", Hint: "run it with sudo"}})
			return
		}
		if changes {
			late := time.NewTimer(ownTurn)
			defer late.Stop()
			select {
			case c.visitor.busy <- struct{}{}:
				defer func() { <-c.visitor.busy }()
			case <-r.Context().Done():
				return
			case <-late.C:
				write(w, answer{Error: &wireError{Code: control.CodeLocked, Message: fmt.Sprintf("other requests of uid %d are under way", c.visitor.uid), Hint: "try again later"}})
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// read reads what is asked, and answers when that cannot be read.
func read(w http.ResponseWriter, r *http.Request, who visitor, into any) bool {
	most := int64(maxRequest)
	if who.caller != nil {
		most = maxOthers
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, most)).Decode(into); err != nil {
		write(w, answer{Error: &wireError{Code: control.CodeUsage, Message: "the request cannot be read: " + err.Error()}})
		return false
	}
	return true
}

// name is who asks, for the history: root may say who it is on behalf of.
func (s *server) name(who visitor, says string) string {
	switch {
	case who.caller != nil:
		says = s.agent.control.Host.UserName(who.uid)
	case says == "":
		says = "root"
	}
	if says != "" {
		says += " "
	}
	return fmt.Sprintf("%s(uid %d, pid %d)", says, who.uid, who.pid)
}

// entry is a process that asks to be put into a group before it runs a command.
type entry struct {
	Group   string `json:"group"`
	Command string `json:"command"`
}

// enter puts the process at the other end into a group.
func (s *server) enter(w http.ResponseWriter, r *http.Request) {
	who := visitorOf(r)
	var e entry
	if !read(w, r, who, &e) {
		return
	}
	if who.caller == nil {
		write(w, answer{Error: &wireError{Code: control.CodeUsage, Message: "root enters a group by itself: `bulkhead run`"}})
		return
	}
	err := s.agent.control.Enter(control.Entry{Group: e.Group, Command: e.Command, By: s.name(who, ""), Caller: who.caller})
	if err == nil {
		s.agent.Changed([]int{who.pid})
	}
	write(w, answer{Error: onWire(err)})
}
