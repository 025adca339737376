package client

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/agent/wire"
	"bulkhead/internal/api"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/observe/observetest"
)

// An agent of an older version would take all settings of SELinux back where only domains are to be enforced: it is not
// asked, and what to do is said. One that knows it is asked, and so is any for the rest.
func TestAgentOfAnOlderVersion(t *testing.T) {
	enforce := api.Request{Verb: "tune rollback", Rules: []string{"selinux"}, Enforce: []string{"mysqld_t"}}
	for name, c := range map[string]struct {
		knows []string
		q     api.Request
		asked bool
	}{
		"older":                   {nil, enforce, false},
		"of today":                {api.Known, enforce, true},
		"older, for another verb": {nil, api.Request{Verb: "tune rollback", Rules: []string{"selinux"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			state, asked := t.TempDir(), false
			socket := listen(t, func(w http.ResponseWriter, r *http.Request) {
				asked = asked || r.URL.Path == "/v1/do"
				wire.Write(w, wire.Answer{State: state, Knows: c.knows, Reply: &api.Reply{}})
			})
			client, err := Dial(t.Context(), socket, state)
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.Do(t.Context(), c.q)
			if asked != c.asked || c.asked != (err == nil) || !c.asked && (api.CodeOf(err) != api.CodeRefused ||
				!strings.Contains(err.Error(), "not only that mysqld_t is permissive") ||
				!strings.Contains(api.HintOf(err), "systemctl restart bulkhead")) {
				t.Errorf("asked: %v, %v (%s)", asked, err, api.HintOf(err))
			}
		})
	}
}

// listen serves on a socket, whose path is given.
func listen(t *testing.T, serve http.HandlerFunc) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bh") // the path of a socket is short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: serve}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

// An agent that was stopped while somebody waits for a sample does not keep that one waiting.
func TestNewerSampleOfAStoppedAgent(t *testing.T) {
	socket := listen(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c := New(socket)
	c.patience = 20 * time.Millisecond
	if one, err := c.NewerSample(t.Context(), time.Time{}); !errors.Is(err, ErrCut) {
		t.Errorf("it gives %+v, %v", one, err)
	}
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

// Figures come as such of an agent that knows them, with the sample in JSON of an older one, and as an age where they
// are there already. Both come to the same.
func TestFigures(t *testing.T) {
	one := observetest.Sample(t)
	row := observe.RowOf("bulkhead_group_cpu_seconds_total")
	tell := func(set *figures.Set) (told []string) {
		set.Layout.Each(row, func(at int, labels []string) { told = append(told, fmt.Sprint(set.Values[at], labels)) })
		return told
	}
	want := tell(figures.Of(one))
	for name, newer := range map[string]bool{"of today": true, "older": false} {
		t.Run(name, func(t *testing.T) {
			c := New(listen(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.RawQuery != "":
					wire.Write(w, wire.Answer{Sample: &observe.Sample{At: one.At, Age: time.Hour, Same: true}})
				case newer && r.Header.Get("Accept") == figures.Type:
					wire.Send(w, figures.Type, figures.Of(one).Append(nil))
				default:
					wire.Write(w, wire.Answer{Sample: one})
				}
			}))
			got, err := c.Figures(t.Context(), nil)
			if err != nil || !got.At.Equal(one.At) || got.Age != one.Age || !slices.Equal(tell(got), want) {
				t.Fatalf("it gives %+v, %v", got, err)
			}
			again, err := c.Figures(t.Context(), got)
			if err != nil || !again.At.Equal(one.At) || again.Age != time.Hour || !slices.Equal(tell(again), want) {
				t.Errorf("the same again is %+v, %v", again, err)
			}
		})
	}
	if len(want) == 0 {
		t.Error("nothing was compared")
	}
}

// What is no answer is said, with what to do.
func TestStrangeFigures(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter)
		says   string
		hint   string
	}{
		"damaged": {func(w http.ResponseWriter) { wire.Send(w, figures.Type, []byte{0x80}) }, "damaged",
			"restart the agent"},
		"nothing": {func(w http.ResponseWriter) { wire.Write(w, wire.Answer{}) }, "no figures", "restart the agent"},
		"none yet": {func(w http.ResponseWriter) {
			wire.Write(w, wire.Answer{Error: &wire.Error{Code: api.CodeFailed, Message: "no sample yet",
				Hint: "later"}})
		}, "no sample yet", "later"},
	} {
		c := New(listen(t, func(w http.ResponseWriter, _ *http.Request) { test.answer(w) }))
		set, err := c.Figures(t.Context(), nil)
		if set != nil || err == nil || !strings.Contains(err.Error(), test.says) ||
			!strings.Contains(api.HintOf(err), test.hint) {
			t.Errorf("%s: %+v, %v (%s)", name, set, err, api.HintOf(err))
		}
	}
}
