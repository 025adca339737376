package agent

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/linux/procevents"
)

// An event source that ended is opened again, at growing intervals while that fails. All processes are looked at then.
func TestEventsThatEndAreOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened, broken := 0, false
		var stream *scripted
		open := func() (source, error) {
			opened++
			if broken {
				return nil, errors.New("broken for a test")
			}
			stream = &scripted{reads: make(chan []procevents.Event), within: make(chan time.Duration, 100)}
			return stream, nil
		}
		o := Options{Every: time.Second, Log: slog.New(slog.DiscardHandler), events: open, traces: open}
		a := &Agent{held: newBatch(), o: o}
		a.listenEvents()
		close(stream.reads)
		synctest.Wait()
		broken = true
		for range 30 {
			a.takeEvents(false, becauseRetry)
			time.Sleep(time.Second)
		}
		if opened < 1+2*3 || opened > 1+2*5 || !strings.HasPrefix(a.status.Source, "a look every 1s") {
			t.Errorf("tried %d times in 30 s; %s", opened, a.status.Source)
		}
		a.held = newBatch()
		broken = false
		for range 40 {
			a.takeEvents(false, becauseRetry)
			time.Sleep(time.Second)
		}
		if a.queue == nil || a.status.Source != "events of the kernel" || !a.held.whole {
			t.Errorf("not opened again: %s, everything is looked at: %t", a.status.Source, a.held.whole)
		}
		if a.queue != nil {
			close(stream.reads)
		}
	})
}

// A queue of connections that is full is no sign that no agent listens.
func TestDialWithAFullQueue(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), socket)
	defer f.Close()
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: socket}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.DialTimeout("unix", socket, time.Second)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if c, err := Dial(t.Context(), socket, t.TempDir()); c != nil || !errors.Is(err, ErrSilent) {
		t.Errorf("a full queue: %v, %v", c, err)
	}
	if c, err := Dial(t.Context(), socket+"-not-there", t.TempDir()); c != nil || err != nil {
		t.Errorf("no socket: %v, %v", c, err)
	}
}
