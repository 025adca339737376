//go:build root

package procevents

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/host"

	"golang.org/x/sys/unix"
)

func openEvents(t *testing.T, o Options) *Connector {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// events are those of the connector or of the tracepoints.
type events interface {
	Read(to []Event) ([]Event, int, error)
	Close() error
}

// heard reads until is answers true, for at most ten seconds, and gives how many events were lost meanwhile.
func heard(t *testing.T, s events, what string, is func(e Event) bool) (lost int) {
	t.Helper()
	late := time.AfterFunc(10*time.Second, func() { _ = s.Close() })
	defer late.Stop()
	var events []Event
	for {
		var n int
		var err error
		if events, n, err = s.Read(events); err != nil {
			t.Fatalf("waited in vain for %s: %v", what, err)
		}
		lost += n
		for _, e := range events {
			if is(e) {
				return lost
			}
		}
	}
}

func TestLiveProcEvents(t *testing.T) {
	s := openEvents(t, Options{})
	cmd := exec.Command("sh", "-c", "echo renamed >/proc/self/comm; exec sleep 0.1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: 12345}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var order []string
	heard(t, s, "the end of a process", func(e Event) bool {
		if e.PID != pid {
			return false
		}
		if e.Kind == Fork && e.Parent != os.Getpid() {
			t.Errorf("forked by %d, not by %d", e.Parent, os.Getpid())
		}
		order = append(order, e.Kind.String())
		return e.Kind == Exit
	})
	want := "fork gid exec comm exec exit"
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if v, err := host.ParseVersion(strings.TrimSpace(string(release))); err != nil {
		t.Error(err)
	} else if !v.AtLeast(5, 16) { // 5.10 tells of prctl(2) alone
		want = "fork gid exec exec exit"
	}
	if got := strings.Join(order, " "); got != want {
		t.Errorf("heard %q, want %q", got, want)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// With a mask the kernel (6.6 and later) or the reader keeps the rest away, and gaps are no losses.
func TestLiveProcEventMask(t *testing.T) {
	s := openEvents(t, Options{Kinds: Exec})
	for range 20 {
		if err := exec.Command("true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	execs, events := 0, []Event(nil)
	for execs < 20 {
		var lost int
		var err error
		if events, lost, err = s.Read(events); err != nil || lost != 0 {
			t.Fatalf("%d lost, %v", lost, err)
		}
		for _, e := range events {
			if e.Kind != Exec {
				t.Fatalf("heard %+v", e)
			}
			execs++
		}
	}
}

func TestLiveProcEventsOverrun(t *testing.T) {
	s := openEvents(t, Options{Buffer: 1}) // the kernel makes the smallest of it
	for range 20 {
		if err := exec.Command("true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	total, overruns := 0, 0
	var events []Event
	for overruns == 0 {
		var lost int
		var err error
		if events, lost, err = s.Read(events); err != nil {
			t.Fatal(err)
		}
		if total += len(events); lost > 0 {
			overruns++
		}
	}
	cmd := exec.Command("true") // and goes on
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	heard(t, s, "an event after the overrun", func(e Event) bool { return e.Kind == Exec })
	if total >= 60 {
		t.Errorf("%d events fitted into the smallest buffer", total)
	}
}

// Only what the kernel sends is believed.
func TestLiveProcEventsForeignSender(t *testing.T) {
	s := openEvents(t, Options{})
	var us unix.Sockaddr
	var err error
	if control := s.conn.Control(func(fd uintptr) { us, err = unix.Getsockname(int(fd)) }); control != nil ||
		err != nil {
		t.Fatal(control, err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	forged := capturedEvents(t)[0]
	binary.NativeEndian.PutUint32(forged[68-16:], 1<<22) // process numbers that no kernel here gives
	for at := 52; at < 68; at += 4 {
		binary.NativeEndian.PutUint32(forged[at:], 1<<23)
	}
	if err := unix.Sendto(fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Pid: us.(*unix.SockaddrNetlink).Pid}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	heard(t, s, "the true event", func(e Event) bool {
		if e.PID >= 1<<22 {
			t.Errorf("a forged event was believed: %+v", e)
		}
		return e.Kind == Exit && e.PID == cmd.Process.Pid
	})
}

func TestLiveProcEventsClose(t *testing.T) { endsWithClose(t, openEvents(t, Options{})) }

// endsWithClose sees that Close ends a Read that waits, and may come twice.
func endsWithClose(t *testing.T, s events) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		for {
			if _, _, err := s.Read(nil); err != nil {
				done <- err
				return
			}
		}
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("the reader ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the reader does not end")
	}
	if err := s.Close(); err != nil {
		t.Errorf("a second close: %v", err)
	}
}

// listensVariable has a copy of the test binary try to listen where there are no events, in the way that it names.
const listensVariable = "BULKHEAD_TEST_NO_EVENTS"

// TestNoProcEventsInACopy does nothing on its own.
func TestNoProcEventsInACopy(t *testing.T) {
	var err error
	switch os.Getenv(listensVariable) {
	case "connector":
		_, err = Open(Options{Timeout: 50 * time.Millisecond})
	case "tracepoints":
		_, err = OpenTrace(Options{})
	default:
		return
	}
	if !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	t.Log(err)
}

func TestLiveProcEventsMissing(t *testing.T) {
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	for _, test := range []struct {
		way, where string
		attr       syscall.SysProcAttr
		want       string
	}{
		{"connector", "a network namespace", syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET},
			"no process events: "},
		{"connector", "a pid namespace", syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "does not confirm"},
		{"tracepoints", "a pid namespace", syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID},
			"a pid namespace of its own"},
		{"tracepoints", "nobody's process", syscall.SysProcAttr{Credential: nobody}, "operation not permitted"},
	} {
		t.Run(test.way+" in "+test.where, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestNoProcEventsInACopy$", "-test.v")
			cmd.Env = append(os.Environ(), listensVariable+"="+test.way)
			cmd.SysProcAttr = &test.attr
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), test.want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
