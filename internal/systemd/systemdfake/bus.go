package systemdfake

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/godbus/dbus/v5"

	"bulkhead/internal/systemd/unitname"
)

const (
	managerPath  = "/org/freedesktop/systemd1"
	managerIface = "org.freedesktop.systemd1.Manager"
)

func objectPath(unit string) dbus.ObjectPath { return dbus.ObjectPath(unitname.ObjectPath(unit)) }

// Call is one method call that came in.
type Call struct {
	Path, Interface, Method string
	Args                    []any
}

// bus answers on the sockets.
type bus struct {
	mu            sync.Mutex
	clients       map[*client]bool
	anySubscribed atomic.Bool
	hung, away    bool
	calls         []Call
	intercept     func(Call) error
	// handle answers one call; after runs once the reply is sent.
	handle func(c *client, call Call) (body []any, after func(), err *dbus.Error)
}

// intercepted notes a call and gives what the interceptor says of it.
func (b *bus) intercepted(call Call) error {
	b.mu.Lock()
	b.calls = append(b.calls, call)
	intercept := b.intercept
	b.mu.Unlock()
	if intercept == nil {
		return nil
	}
	return intercept(call)
}

// Hang has the model take calls and never answer, as a PID 1 that is stuck does.
func (b *bus) Hang(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hung = on
}

func (b *bus) hangs() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hung
}

// Away has the model refuse connections, until it is told otherwise, and drops those there are.
func (b *bus) Away(on bool) {
	b.mu.Lock()
	b.away = on
	b.mu.Unlock()
	if on {
		b.Drop()
	}
}

// Drop closes every connection, as a daemon-reexec does to the private ones.
func (b *bus) Drop() {
	b.mu.Lock()
	clients := slices.Collect(maps.Keys(b.clients))
	b.mu.Unlock()
	for _, c := range clients {
		c.Close()
	}
}

// Clients is how many connections there are.
func (b *bus) Clients() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.clients)
}

// Calls are the method calls that came in, in order.
func (b *bus) Calls() []Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// Intercept has f called before every method. An error of f is its answer. nil takes it away.
func (b *bus) Intercept(f func(Call) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.intercept = f
}

// ErrDenied is the answer that polkit has systemd give, for Intercept.
var ErrDenied = errors.New("Access denied") //nolint:staticcheck // systemd's own words

// client is one connection to the model.
type client struct {
	b     *bus
	onBus bool // over the system bus's socket: signals only for matches, and after Subscribe

	net.Conn
	mu      sync.Mutex // of what follows, and of writing
	serial  uint32
	ready   bool // past the handshake
	matches []string
}

// serve accepts connections until the listener is closed.
func (b *bus) serve(l net.Listener, onBus bool) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		c := &client{b: b, onBus: onBus, Conn: conn}
		b.mu.Lock()
		refuse := b.away
		if !refuse {
			b.clients[c] = true
		}
		b.mu.Unlock()
		if refuse {
			conn.Close()
			continue
		}
		go c.run()
	}
}

func (c *client) run() {
	defer func() {
		c.Close()
		c.b.mu.Lock()
		delete(c.b.clients, c)
		c.b.mu.Unlock()
	}()
	in := bufio.NewReader(c)
	if err := c.handshake(in); err != nil {
		return
	}
	c.mu.Lock()
	c.ready = true
	c.mu.Unlock()
	for {
		message, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		if message.Type == dbus.TypeMethodCall {
			c.answer(message) // in order, as PID 1 does
		}
	}
}

// handshake is the server's half of the authentication protocol of the D-Bus specification, EXTERNAL only.
func (c *client) handshake(in *bufio.Reader) error {
	if zero, err := in.ReadByte(); err != nil || zero != 0 {
		return errors.New("no credentials byte")
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		if c.b.hangs() {
			_, err := io.Copy(io.Discard, in) // until the client gives up
			return err
		}
		reply := "ERROR"
		switch words := strings.Fields(line); {
		case len(words) == 1 && words[0] == "BEGIN":
			return nil
		case len(words) >= 2 && words[0] == "AUTH" && words[1] == "EXTERNAL", len(words) >= 1 && words[0] == "DATA":
			reply = "OK 0123456789abcdef0123456789abcdef"
		case len(words) == 1 && words[0] == "AUTH":
			reply = "REJECTED EXTERNAL"
		}
		if _, err := c.Write([]byte(reply + "\r\n")); err != nil {
			return err
		}
	}
}

// answer does one call. A nil body with no error of a method that waits is sent by the method itself.
func (c *client) answer(call *dbus.Message) {
	if c.b.hangs() {
		return
	}
	text := func(f dbus.HeaderField) string {
		s, _ := call.Headers[f].Value().(string)
		return s
	}
	path, _ := call.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	body, after, err := c.b.handle(c, Call{Path: string(path), Interface: text(dbus.FieldInterface),
		Method: text(dbus.FieldMember), Args: call.Body})
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
		dbus.FieldSender:      dbus.MakeVariant("org.freedesktop.systemd1"),
	}, Body: body}
	if err != nil {
		reply.Type, reply.Body = dbus.TypeError, err.Body
		reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant(err.Name)
	}
	if call.Flags&dbus.FlagNoReplyExpected == 0 {
		c.send(reply)
	}
	if after != nil {
		go after() // a job does not hold up the next call
	}
}

// send writes a message with a serial of its own, which the library has no way to set.
func (c *client) send(message *dbus.Message) {
	if len(message.Body) > 0 {
		message.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(message.Body...))
	}
	var b bytes.Buffer
	if err := message.EncodeTo(&b, binary.LittleEndian); err != nil {
		panic("systemdfake: " + err.Error())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	binary.LittleEndian.PutUint32(b.Bytes()[8:], c.serial)
	c.Write(b.Bytes()) //nolint:errcheck // a client that went away
}

// wants says whether a signal goes to this client.
func (c *client) wants(member string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.onBus {
		return c.ready // systemd sends its private clients everything
	}
	for _, rule := range c.matches {
		if strings.Contains(rule, "member='"+member+"'") {
			// The end of a job goes to all while the one who asked for it is there; the rest only once somebody
			// subscribed.
			return member == "JobRemoved" || c.b.anySubscribed.Load()
		}
	}
	return false
}

// busMethod is the bus daemon's part; on the private socket there is none.
func (c *client) busMethod(call Call) ([]any, func(), *dbus.Error) {
	switch {
	case !c.onBus:
		return nil, nil, fail("org.freedesktop.DBus.Error.UnknownObject", "Unknown object '%s'.", call.Path)
	case call.Method == "Hello":
		return []any{":1.1"}, nil, nil
	case call.Method == "AddMatch":
		c.mu.Lock()
		defer c.mu.Unlock()
		c.matches = append(c.matches, call.Args[0].(string))
		return nil, nil, nil
	}
	return nil, nil, fail("org.freedesktop.DBus.Error.UnknownMethod", "Unknown method %s.", call.Method)
}

// emit sends a signal to all who want it.
func (b *bus) emit(path, iface, member string, body ...any) {
	b.mu.Lock()
	clients := make([]*client, 0, len(b.clients))
	for c := range b.clients {
		clients = append(clients, c)
	}
	b.mu.Unlock()
	for _, c := range clients {
		if !c.wants(member) {
			continue
		}
		c.send(&dbus.Message{Type: dbus.TypeSignal, Flags: dbus.FlagNoReplyExpected,
			Headers: map[dbus.HeaderField]dbus.Variant{
				dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath(path)),
				dbus.FieldInterface: dbus.MakeVariant(iface),
				dbus.FieldMember:    dbus.MakeVariant(member),
				dbus.FieldSender:    dbus.MakeVariant("org.freedesktop.systemd1"),
			}, Body: body})
	}
}

func (b *bus) emitChanged(name, active, sub string) {
	b.emit(string(objectPath(name)), "org.freedesktop.DBus.Properties", "PropertiesChanged",
		"org.freedesktop.systemd1.Unit",
		map[string]dbus.Variant{"ActiveState": dbus.MakeVariant(active), "SubState": dbus.MakeVariant(sub)}, []string{})
}
