// Package systemd alone speaks to systemd: units, jobs, properties, drop-ins and signals of PID 1 over D-Bus. It
// knows how systemd behaves, not what a policy wants.
//
// A Manager is a connection that makes itself anew when it was lost; every call ends within a time. The table of
// properties (Table) is data: which release brought which, its D-Bus type, the file that systemd writes it to on either
// version of cgroups. A Watcher says when to look again. The package systemdfake is a model of the manager behind a
// real socket; the package conformance holds the model against a real systemd.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/systemd/unitname"

	api "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	busName      = "org.freedesktop.systemd1"
	managerPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerIface = busName + ".Manager"

	privateSocket = "/run/systemd/private"
	systemBus     = "/run/dbus/system_bus_socket"
	// bootedDir is there when systemd is PID 1 (sd_booted(3)).
	bootedDir = "/run/systemd/system"
)

// Options of a Manager. The zero value is the live host.
type Options struct {
	// Root is put before every path, sockets and unit directories alike; a fixture's directory.
	Root string
	// Bus goes over the system bus also as root. Root's way is systemd's private socket, which needs no bus daemon and
	// is there before one runs.
	Bus bool
	// Timeout bounds every call; 0 is 25 s, sd-bus's own.
	Timeout time.Duration
	// JobTimeout bounds the wait for a job's end and for a daemon-reload; 0 is 100 s, a little more than systemd's own
	// limit for a start or stop (DefaultTimeoutStartSec= is 90 s, systemd-system.conf(5)).
	JobTimeout time.Duration
}

// Manager talks to systemd. It is safe for concurrent use.
type Manager struct {
	Files
	options Options
	version Version

	mu   sync.Mutex
	link *link // nil when closed
	shut bool
}

// link is one pair of connections: calls go over one, signals come over the other.
type link struct {
	*api.Conn
	calls, signals *dbus.Conn
	cancel         context.CancelFunc
}

func (l *link) close() {
	l.Conn.Close()
	l.cancel()
}

// Running says whether systemd is PID 1 of the host below root ("" for the live one).
func Running(root string) bool {
	info, err := os.Lstat(filepath.Join("/", root, bootedDir))
	return err == nil && info.IsDir()
}

// Connect connects to systemd and asks for its version.
func Connect(ctx context.Context, o Options) (m *Manager, err error) {
	ctx, answered := asking(ctx)
	defer func() { err = answered(err) }()
	if o.Timeout == 0 {
		o.Timeout = 25 * time.Second
	}
	if o.JobTimeout == 0 {
		o.JobTimeout = 100 * time.Second
	}
	if !Running(o.Root) {
		return nil, &Error{Op: "connect to systemd", Kind: ErrNotRunning,
			Cause: fmt.Errorf("%q is not there", filepath.Join("/", o.Root, bootedDir)), Hint: hints[ErrNotRunning]}
	}
	m = &Manager{Files: Files{o.Root}, options: o}
	l, err := m.connected(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	var text string
	if err := managerProperty(ctx, l.calls, "Version", &text); err != nil {
		m.Close()
		return nil, failed("ask systemd for its version", "", err)
	}
	if m.version, err = ParseVersion(text); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Version is that of the systemd connected to first.
func (m *Manager) Version() Version { return m.version }

// Ping gives nil when systemd answers.
func (m *Manager) Ping(ctx context.Context) error {
	return m.call(ctx, "ask systemd", "", func(ctx context.Context, l *link) error {
		var text string
		return managerProperty(ctx, l.calls, "Version", &text)
	})
}

type patienceKey struct{}

// patience is how long questions wait for answers, together.
type patience struct {
	mu     sync.Mutex
	left   time.Duration
	silent bool // a question got no answer
}

// WithPatience bounds how long questions with the context wait for their answers, together: for a caller with other
// work, who can ask again later. Changes take their time all the same. Silent says whether a question got no answer.
func WithPatience(ctx context.Context, wait time.Duration) (bound context.Context, silent func() bool) {
	p := &patience{left: wait}
	return context.WithValue(ctx, patienceKey{}, p), func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.silent
	}
}

// asking gives the context of a question, or of a connection. Whoever gets it says at the end how that went.
func asking(ctx context.Context) (bound context.Context, answered func(error) error) {
	p, bounded := ctx.Value(patienceKey{}).(*patience)
	if !bounded {
		return ctx, func(err error) error { return err }
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	begun := time.Now()
	bound, cancel := context.WithTimeout(ctx, p.left)
	return bound, func(err error) error {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.left, p.silent = max(p.left-time.Since(begun), 0), p.silent || errors.Is(err, ErrNoAnswer)
		return err
	}
}

// Close ends the connection; what still waits fails with ErrGone.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shut = true
	if m.link != nil {
		m.link.close()
		m.link = nil
	}
}

// connected gives a live link, a new one when the old one was lost: a daemon-reexec drops every private connection.
func (m *Manager) connected(ctx context.Context) (*link, error) {
	if l, err := usable(m, nil); l != nil || err != nil {
		return l, err
	}
	const op = "connect to systemd" // nothing is locked meanwhile: it may take its time
	ctx, cancel := context.WithTimeout(ctx, m.options.Timeout)
	defer cancel()
	l := &link{}
	var life context.Context
	life, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, l.cancel) // ends a handshake that hangs
	var err error
	l.Conn, err = api.NewConnection(func() (*dbus.Conn, error) {
		conn, err := m.options.dial(life)
		if l.calls == nil {
			l.calls = conn
		} else {
			l.signals = conn
		}
		return conn, err
	})
	if !stop() && err == nil {
		l.Conn.Close()
		err = ctx.Err()
	}
	if err != nil {
		l.cancel()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, failed(op, "", err)
	}
	return usable(m, l)
}

// usable gives the live link, and makes a new one the link when there is none. It gives nil when there is neither.
func usable(m *Manager, made *link) (*link, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link != nil && !m.link.Connected() {
		m.link.close()
		m.link = nil
	}
	switch {
	case made != nil && (m.shut || m.link != nil):
		made.close()
	case made != nil:
		m.link = made
	}
	if m.shut {
		return nil, failed("connect to systemd", "", dbus.ErrClosed)
	}
	return m.link, nil
}

// dial opens one connection that lives as long as life.
func (o Options) dial(life context.Context, more ...dbus.ConnOption) (*dbus.Conn, error) {
	path, isBus := filepath.Join("/", o.Root, privateSocket), false
	if o.Bus || os.Geteuid() != 0 || !exists(path) {
		path, isBus = filepath.Join("/", o.Root, systemBus), true
	}
	conn, err := dbus.Dial("unix:path="+escapeAddress(path), append(more, dbus.WithContext(life))...)
	if err != nil {
		return nil, err
	}
	// The uid as a number: a name would be looked up.
	if err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))}); err == nil && isBus {
		err = conn.Hello()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// escapeAddress writes a path as a value of a D-Bus address: other bytes than these become %NN.
func escapeAddress(path string) string {
	var b strings.Builder
	for i := range len(path) {
		if c := path[i]; strings.IndexByte(unitname.Alphanumeric+`-_/.\*`, c) < 0 {
			fmt.Fprintf(&b, "%%%02x", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func managerProperty(ctx context.Context, conn *dbus.Conn, name string, value any) error {
	var v dbus.Variant
	err := conn.Object(busName, managerPath).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0,
		managerIface, name).Store(&v)
	if err != nil {
		return err
	}
	return v.Store(value)
}

// call asks one question over a live link, in the time allowed.
func (m *Manager) call(ctx context.Context, op, unit string, f func(context.Context, *link) error) error {
	ctx, answered := asking(ctx)
	return answered(m.callFor(ctx, m.options.Timeout, op, unit, f))
}

func (m *Manager) callFor(ctx context.Context, limit time.Duration, op, unit string,
	f func(context.Context, *link) error) error {
	l, err := m.connected(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = failed(op, unit, f(ctx, l))
	if errors.Is(err, ErrGone) { // its reader may not have noticed yet, and the next question is to go over a new one
		m.lost(l)
	}
	return err
}

// lost drops a link that is cut.
func (m *Manager) lost(l *link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link == l {
		m.link.close()
		m.link = nil
	}
}

// checked is a call for a unit's name that was checked first.
func (m *Manager) checked(ctx context.Context, op, unit string, f func(context.Context, *link) error) error {
	if err := unitname.CheckName(unit); err != nil {
		return &Error{Op: op, Unit: unit, Kind: ErrInvalid, Cause: err}
	}
	return m.callFor(ctx, m.options.Timeout, op, unit, f)
}
