// Package systemdfake is a model of PID 1 behind real sockets, for tests without systemd: the client's own code
// runs against it, byte for byte on the wire.
//
// Its state is what the real one's is. Settings live in unit files below a root directory of its own (fragments,
// drop-ins, the files that SetUnitProperties writes), and a daemon-reload is a second reading of them, so that what is
// lost and what is kept there follows from the files and is not said twice. The rules were measured on systemd 252 in a
// virtual machine; the package conformance runs the same assertions on the model and on a real systemd.
//
// Not modelled: unit types beyond service, scope, slice and target, aliases, templates, ordering, conditions, timers,
// reload jobs, users, the Startup… variants, percentages, polkit.
package systemdfake

import (
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/systemd"
)

// Manager is the model. It is safe for concurrent use.
type Manager struct{ *pid1 }

// New starts a model that ends with the test.
func New(tb testing.TB, o Options) *Manager {
	tb.Helper()
	if o.Version == "" {
		o.Version = "252.39-1~deb12u2"
	}
	if o.Cgroups == 0 {
		o.Cgroups = 2
	}
	version, err := systemd.ParseVersion(o.Version)
	if err != nil {
		tb.Fatal(err)
	}
	root, err := os.MkdirTemp("", "sd") // short: a socket's path has room for 107 bytes
	if err != nil {
		tb.Fatal(err)
	}
	m := &Manager{&pid1{
		host: host{options: o, version: version, root: root, units: map[string]*unit{}, processes: map[int]*process{},
			nextPID: 100_000},
		nextJob: 86, jobs: map[uint32]*job{}, stalled: map[string]bool{},
	}}
	m.clients, m.handle = map[*client]bool{}, m.do
	for _, dir := range []string{"run/systemd/system", "run/dbus", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	var listeners []net.Listener
	for _, socket := range []string{"run/systemd/private", "run/dbus/system_bus_socket"} {
		l, err := net.Listen("unix", filepath.Join(root, socket))
		if err != nil {
			tb.Fatal(err)
		}
		listeners = append(listeners, l)
		go m.serve(l, strings.Contains(socket, "dbus"))
	}
	m.units["-.slice"] = &unit{name: "-.slice", load: "loaded", active: "active", sub: "active", group: "/",
		files: map[string]string{}, subgroups: map[string]bool{}}
	m.startParents("system.slice")
	m.units["system.slice"] = m.loaded("system.slice")
	m.activateSlice(m.units["system.slice"])
	tb.Cleanup(func() {
		for _, l := range listeners {
			l.Close()
		}
		m.Drop()
		os.RemoveAll(root)
	})
	return m
}

// Options are those that reach the model; times are short.
func (m *Manager) Options() systemd.Options {
	return systemd.Options{Root: m.root, Timeout: 5 * time.Second, JobTimeout: 5 * time.Second}
}

// Root is the directory that stands for "/".
func (m *Manager) Root() string { return m.root }

// Spawn makes a process in no unit.
func (m *Manager) Spawn() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spawn("")
}

// Alive says whether a process is there.
func (m *Manager) Alive(pid int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.processes[pid] != nil
}

// GroupOf gives the directory a process is in, "/" for one in no unit.
func (m *Manager) GroupOf(pid int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.processes[pid]
	if p == nil {
		return ""
	}
	if u := m.units[p.unit]; u != nil {
		return path.Join(u.group, p.sub)
	}
	return "/"
}

// Kill ends a process with SIGKILL, and systemd sees it.
func (m *Manager) Kill(pid int) {
	m.mu.Lock()
	m.see()
	p := m.processes[pid]
	m.finish(pid)
	var after []func()
	if p != nil {
		if u := m.units[p.unit]; u != nil {
			after = m.exited(u, pid)
		}
	}
	m.mu.Unlock()
	run(after)
}

// ReadFile reads a knob file of a unit's directory, as the kernel holds it.
func (m *Manager) ReadFile(group, file string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.unitIn(group); u != nil {
		if text, ok := u.files[file]; ok {
			return text, nil
		}
		return defaultOf(file), nil
	}
	return "", fmt.Errorf("read %q: %w", group, os.ErrNotExist)
}

// WriteFile writes one behind systemd's back.
func (m *Manager) WriteFile(group, file, text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.unitIn(group); u != nil {
		if file == subtreeControl {
			text = handed(u.files[file], text)
		}
		u.files[file] = text
		return nil
	}
	return fmt.Errorf("write %q: %w", group, os.ErrNotExist)
}

// MakeGroup makes a sub-group of a unit's directory.
func (m *Manager) MakeGroup(group string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.unitIn(path.Dir(group)); u != nil {
		u.subgroups["/"+path.Base(group)] = true
		return nil
	}
	return fmt.Errorf("make %q: %w", group, os.ErrNotExist)
}

// Adopt makes a process of the kernel's known to systemd, in no unit.
func (m *Manager) Adopt(pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.processes[pid] = &process{}
	m.see()
}

// GoDown has the model say that the machine goes down.
func (m *Manager) GoDown() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = true
}

// Stall has the start of a unit never end.
func (m *Manager) Stall(unit string, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stalled[unit] = on
}
