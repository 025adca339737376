package agent

import (
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// manager is a service manager that hears what the agent says of itself.
type manager struct {
	t      testing.TB
	socket *net.UnixConn
}

// newManager makes this process one that a service manager started.
func newManager(t *testing.T, watchdog string) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", watchdog)
	t.Setenv("WATCHDOG_PID", "")
	return &manager{t, socket}
}

// heard gives the lines of the messages that came until now, or until the wanted line came.
func (m *manager) heard(want string) (lines []string) {
	m.t.Helper()
	wait := time.Second / 20
	if want != "" {
		wait = 30 * time.Second
	}
	_ = m.socket.SetReadDeadline(time.Now().Add(wait))
	buf := make([]byte, 4096)
	for want == "" || !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, want) }) {
		n, err := m.socket.Read(buf)
		if err != nil {
			if want != "" {
				m.t.Fatalf("waited in vain for %q, heard %q", want, lines)
			}
			return lines
		}
		lines = append(lines, strings.Split(string(buf[:n]), "\n")...)
	}
	return lines
}

func TestHerald(t *testing.T) {
	m := newManager(t, "8000000")
	readies := 0
	h := newNotifier(func() { readies++ }, slog.New(slog.DiscardHandler), time.Unix(100, 0))
	at := func(s float64) time.Time { return time.Unix(100, 0).Add(time.Duration(s * float64(time.Second))) }
	steps := []struct {
		name string
		do   func()
		want []string
	}{
		{"a sign of life", func() { h.alive(at(0)) }, []string{"WATCHDOG=1"}},
		{"not one at each turn", func() { h.alive(at(0.5)) }, nil},
		{"the next", func() { h.alive(at(2)) }, []string{"WATCHDOG=1"}},
		{"an apply before it is ready", func() { h.reloading()() }, nil},
		{"trouble at first", func() { h.looked("revision 1", "disk\ngone", at(2)) },
			[]string{"STATUS=enforcing revision 1; not everything is in force: disk gone"}},
		{"it does not go", func() { h.looked("revision 1", "disk\ngone", at(9)) }, nil},
		{"the time to start is over", func() { h.looked("revision 1", "disk\ngone", at(10)) }, []string{"READY=1"}},
		{"it has gone", func() { h.looked("revision 1", "", at(30)) }, []string{"STATUS=enforcing revision 1"}},
		{"nothing new", func() { h.looked("revision 1", "", at(60)) }, nil},
		{"the end", func() { h.stopping() }, []string{"STOPPING=1", "STATUS=every limit stays in force"}},
	}
	for _, s := range steps {
		s.do()
		if got := m.heard(""); !slices.Equal(got, s.want) {
			t.Errorf("%s: heard %q, want %q", s.name, got, s.want)
		}
	}
	done := h.reloading()
	if got := m.heard(""); len(got) != 2 || got[0] != "RELOADING=1" || !strings.HasPrefix(got[1], "MONOTONIC_USEC=") {
		t.Errorf("an apply begins: %q", got)
	}
	if done(); !slices.Equal(m.heard(""), []string{"READY=1"}) {
		t.Error("its end is not told")
	}
	if readies != 1 {
		t.Errorf("ready %d times", readies)
	}
}

func TestHeraldWithoutListeners(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	h := newNotifier(nil, slog.New(slog.DiscardHandler), time.Unix(100, 0))
	h.alive(time.Unix(200, 0))
	h.looked("revision 1", "", time.Unix(200, 0))
	h.stopping()
	if !h.isReady() || h.beat != 0 || !h.beaten.IsZero() {
		t.Errorf("%+v", h)
	}
}
