package systemdfake

import (
	"errors"
	"maps"
	"slices"
)

// Hang has the model take calls and never answer, as a PID 1 that is stuck does.
func (m *Manager) Hang(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hung = on
}

// GoDown has the model say that the machine goes down.
func (m *Manager) GoDown() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = true
}

func (m *Manager) hangs() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hung
}

// Stall has the start of a unit never end.
func (m *Manager) Stall(unit string, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stalled == nil {
		m.stalled = map[string]bool{}
	}
	m.stalled[unit] = on
}

// ErrDenied is the answer that polkit has systemd give, for Intercept.
var ErrDenied = errors.New("Access denied") //nolint:staticcheck // systemd's own words

// Drop closes every connection, as a daemon-reexec does to the private ones.
func (m *Manager) Drop() {
	m.mu.Lock()
	clients := slices.Collect(maps.Keys(m.clients))
	m.mu.Unlock()
	for _, c := range clients {
		c.Close()
	}
}

// Away has the model refuse connections, until it is told otherwise, and drops those there are.
func (m *Manager) Away(on bool) {
	m.mu.Lock()
	m.away = on
	m.mu.Unlock()
	if on {
		m.Drop()
	}
}

// Clients is how many connections there are.
func (m *Manager) Clients() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.clients)
}

// Calls are the method calls that came in, in order.
func (m *Manager) Calls() []Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

// Intercept has f called before every method. An error of f is its answer. nil takes it away.
func (m *Manager) Intercept(f func(Call) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.intercept = f
}
