package systemdfake

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"
)

// client is one connection to the model.
type client struct {
	m   *Manager
	bus bool // over the system bus's socket: signals only for matches, and after Subscribe

	net.Conn
	mu      sync.Mutex // of what follows, and of writing
	serial  uint32
	ready   bool // past the handshake
	matches []string
}

// serve accepts connections until the listener is closed.
func (m *Manager) serve(l net.Listener, bus bool) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		c := &client{m: m, bus: bus, Conn: conn}
		m.mu.Lock()
		refuse := m.away
		if !refuse {
			m.clients[c] = true
		}
		m.mu.Unlock()
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
		c.m.mu.Lock()
		delete(c.m.clients, c)
		c.m.mu.Unlock()
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
		if c.m.hangs() {
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
	if c.m.hangs() {
		return
	}
	text := func(f dbus.HeaderField) string {
		s, _ := call.Headers[f].Value().(string)
		return s
	}
	path, _ := call.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	body, after, err := c.m.do(c, Call{Path: string(path), Interface: text(dbus.FieldInterface),
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
	if !c.bus {
		return c.ready // systemd sends its private clients everything
	}
	for _, rule := range c.matches {
		if strings.Contains(rule, "member='"+member+"'") {
			// The end of a job goes to all while the one who asked for it is there; the rest only once somebody
			// subscribed.
			return member == "JobRemoved" || c.m.anySubscribed.Load()
		}
	}
	return false
}

// emit sends a signal to all who want it.
func (m *Manager) emit(path, iface, member string, body ...any) {
	m.mu.Lock()
	clients := make([]*client, 0, len(m.clients))
	for c := range m.clients {
		clients = append(clients, c)
	}
	m.mu.Unlock()
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
