package notify

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"
)

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Send(Ready); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	for _, test := range []struct {
		words []string
		want  string
	}{
		{[]string{Ready, Saying("two\nlines  of it\n")}, "^READY=1\nSTATUS=two lines of it$"},
		{[]string{Reloading()}, "^RELOADING=1\nMONOTONIC_USEC=[0-9]+$"},
		{[]string{Alive}, "^WATCHDOG=1$"},
		{[]string{Stopping}, "^STOPPING=1$"},
	} {
		if err := Send(test.words...); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 256)
		n, err := socket.Read(buf)
		if err != nil || !regexp.MustCompile(test.want).Match(buf[:n]) {
			t.Errorf("said %q (%v), want %q", buf[:n], err, test.want)
		}
	}
	_ = socket.Close()
	if err := Send(Ready); err == nil {
		t.Error("a service manager that is gone heard it")
	}
}

func TestPatience(t *testing.T) {
	for _, test := range []struct {
		usec, pid string
		want      time.Duration
		bad       bool
	}{
		{"", "", 0, false},
		{"60000000", strconv.Itoa(os.Getpid()), time.Minute, false},
		{"60000000", "1", 0, false}, // another process's
		{"x", "", 0, true},
	} {
		t.Setenv("WATCHDOG_USEC", test.usec)
		t.Setenv("WATCHDOG_PID", test.pid)
		if got, err := WatchdogTimeout(); got != test.want || (err != nil) != test.bad {
			t.Errorf("%q, %q: %v, %v", test.usec, test.pid, got, err)
		}
	}
}
