package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"bulkhead/internal/agent/wire"
	"bulkhead/internal/api"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/observe/record"
)

// safe is a buffer for several goroutines.
type safe struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// place is a directory with a socket at which something answers like an agent.
type place struct {
	t           *testing.T
	dir, socket string
	log         safe
	asked       atomic.Int64 // how often the agent was asked for a sample
	greeted     atomic.Int64 // how often it was asked who it is
	older       bool         // of a version that knows no figures
	every       string       // the time between two samples, in ns; "" is that of the file
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "bh") // the path of a socket is short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &place{t: t, dir: dir, socket: filepath.Join(dir, "agent")}
}

// agent answers with the sample of the table's tests until the test ends, or stop.
func (p *place) agent() (stop func()) {
	p.t.Helper()
	text, err := os.ReadFile("../../observe/observetest/sample.json")
	if err != nil {
		p.t.Fatal(err)
	}
	if p.every != "" {
		text = bytes.Replace(text, []byte(`"every_ns": 10000000000`), []byte(`"every_ns": `+p.every), 1)
	}
	var one observe.Sample
	if err := json.Unmarshal(text, &one); err != nil {
		p.t.Fatal(err)
	}
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		p.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hello", func(w http.ResponseWriter, _ *http.Request) {
		p.greeted.Add(1)
		_ = json.NewEncoder(w).Encode(map[string]string{"state": p.dir})
	})
	mux.HandleFunc("GET /v1/samples", func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		if r.Header.Get("Accept") == figures.Type && !p.older {
			wire.Send(w, figures.Type, figures.Of(&one).Append(nil))
			return
		}
		_, _ = fmt.Fprintf(w, `{"sample":%s}`, text)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	stop = func() { _ = server.Close() }
	p.t.Cleanup(stop)
	return stop
}

// run runs the verb until stop, which gives its error.
func (p *place) run(args ...string) (stop func() error) {
	p.t.Helper()
	log := slog.New(slog.NewTextHandler(&p.log, nil))
	c := Command(Session{Socket: &p.socket, State: &p.dir, Version: "1.2.3", Log: func() *slog.Logger { return log },
		Segments: func(_ context.Context, file string, from, to time.Time) (io.ReadCloser, error) {
			return record.Open(file, from, to)
		},
		Reach: func(_ context.Context, file string) (record.Reach, error) { return record.Survey(file) }})
	c.SetArgs(args)
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	c.SilenceUsage, c.SilenceErrors = true, true
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.ExecuteContext(ctx) }()
	once := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(30 * time.Second):
			p.t.Error("it does not end")
			return nil
		}
	})
	p.t.Cleanup(func() { _ = once() })
	return once
}

// soon waits until something is true.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// address is where it listens, by its log.
func (p *place) address() (at string) {
	p.t.Helper()
	soon(p.t, "the port", func() bool {
		found := regexp.MustCompile(`msg="Listening on" address=(\S+)`).FindStringSubmatch(p.log.String())
		if found != nil {
			at = found[1]
		}
		return found != nil
	})
	return at
}

func get(t *testing.T, client *http.Client, url, password string) (int, string) {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if password != "" {
		r.SetBasicAuth("prometheus", password)
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func TestPort(t *testing.T) { testPort(t, false) }

// An agent of an older version gives its samples in JSON: they are shown, too.
func TestOlderAgent(t *testing.T) { testPort(t, true) }

func testPort(t *testing.T, older bool) {
	p := newPlace(t)
	p.older = older
	stopAgent := p.agent()
	stop := p.run("--listen", "127.0.0.1:0")
	base := "http://" + p.address()
	code, text := get(t, http.DefaultClient, base+"/metrics", "")
	if code != 200 || !strings.Contains(text, "bulkhead_up 1\n") ||
		!strings.Contains(text, `bulkhead_group_threads{engine="mysql",group="mysql3306",role="database"}`) ||
		!strings.Contains(text, `bulkhead_build_info{version="1.2.3"} 1`) {
		t.Errorf("answered %d %s", code, text)
	}
	if code, text := get(t, http.DefaultClient, base+"/metrics?collect[]=weather", ""); code != 400 ||
		!strings.Contains(text, "weather") {
		t.Errorf("an unknown kind is answered %d %s", code, text)
	}
	stopAgent()
	soon(t, "the agent to be missed", func() bool {
		_, text := get(t, http.DefaultClient, base+"/metrics", "")
		return strings.Contains(text, "bulkhead_up 0\n") && !strings.Contains(text, "bulkhead_group_threads")
	})
	if !strings.Contains(p.log.String(), "no agent answers") || strings.Contains(p.log.String(), "everybody who") {
		t.Errorf("said %s", &p.log)
	}
	if err := stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestUnixSocket(t *testing.T) {
	p := newPlace(t)
	p.agent()
	path := filepath.Join(p.dir, "metrics")
	stop := p.run("--listen", "unix:"+path)
	p.address()
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn,
		error) {
		return net.Dial("unix", path)
	}}}
	if code, text := get(t, client, "http://socket/metrics", ""); code != 200 ||
		!strings.Contains(text, "bulkhead_up 1\n") {
		t.Errorf("answered %d %s", code, text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v %v", info.Mode(), err)
	}
	_, err := listen("unix:" + path)
	if api.CodeOf(err) != api.CodeFailed || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second one on the same socket: %v", err)
	}
	if err := stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = dead.Close()
	l, err := listen("unix:" + path)
	if err != nil {
		t.Fatalf("beside the socket of a dead one: %v", err)
	}
	_ = l.Close()
	busy(t, path)
	if _, err := listen("unix:" + path); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("on the socket of one that is too busy to answer: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Errorf("its socket was taken away: %v", err)
	}
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen("unix:" + path); err == nil || api.HintOf(err) == "" {
		t.Errorf("in the place of a file: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "kept" {
		t.Errorf("the file holds %q, %v", text, err)
	}
}

// busy listens on a socket until the test ends, and answers nobody: as many wait as may.
func busy(t *testing.T, path string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		waits, err := net.Dial("unix", path)
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = waits.Close() })
	}
	t.Fatal("there is no end of those who may wait")
}

// Users are those of the web file.
func TestUsers(t *testing.T) {
	p := newPlace(t)
	p.agent()
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	config := filepath.Join(p.dir, "web.yml")
	if err == nil {
		err = os.WriteFile(config, []byte("basic_auth_users: {prometheus: '"+string(hash)+"'}\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.run("--listen", "127.0.0.1:0", "--web.config.file", config)
	base := "http://" + p.address()
	for password, want := range map[string]int{"": 401, "wrong": 401, "secret": 200} {
		if code, text := get(t, http.DefaultClient, base+"/metrics", password); code != want ||
			strings.Contains(text, "bulkhead_up") != (want == 200) {
			t.Errorf("with the password %q: %d %.80s", password, code, text)
		}
	}
}

// The file is there whole while the verb runs, and goes with it.
func TestTextfile(t *testing.T) {
	p := newPlace(t)
	stopAgent := p.agent()
	file := filepath.Join(p.dir, "bulkhead.prom")
	stop := p.run("--textfile", file, "--every", "20ms")
	holds := func(what string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), what)
	}
	soon(t, "the file", func() bool { return holds("bulkhead_up 1\n") && holds("bulkhead_group_threads{") })
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the file: %v, %v", info, err)
	}
	stopAgent()
	soon(t, "the agent to be missed", func() bool {
		return holds("bulkhead_up 0\n") && !holds("bulkhead_group_threads{")
	})
	if err := stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	left, err := filepath.Glob(filepath.Join(p.dir, "*.prom*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it left %q, %v", left, err)
	}
	if err := p.run("--textfile", file, "--listen", "127.0.0.1:0")(); err == nil {
		t.Error("a file and a port at once")
	}
}

// What it has not written it does not take away.
func TestTextfileOfOthers(t *testing.T) {
	p := newPlace(t)
	p.agent()
	directory := filepath.Join(p.dir, "bulkhead.prom")
	if err := os.Mkdir(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	stop := p.run("--textfile", directory, "--every", "20ms")
	soon(t, "the trouble", func() bool { return strings.Contains(p.log.String(), "cannot be written") })
	if err := stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if _, err := os.Stat(directory); err != nil {
		t.Errorf("it took a directory away: %v", err)
	}
}

// It asks the agent also while nobody scrapes: a scrape that cannot wait for a busy agent has a young sample then.
func TestAsksByItself(t *testing.T) {
	p := newPlace(t)
	p.every = "1000"
	p.agent()
	p.run("--listen", "127.0.0.1:0")
	soon(t, "two questions without a scrape", func() bool { return p.asked.Load() > 1 })
}

// It asks the agent who it is once, and anew after it was away.
func TestAsksOneAgent(t *testing.T) {
	p := newPlace(t)
	stopAgent := p.agent()
	p.run("--listen", "127.0.0.1:0")
	url := "http://" + p.address() + "/metrics"
	shown := func() bool {
		_, text := get(t, http.DefaultClient, url, "")
		return strings.Contains(text, "bulkhead_group_threads")
	}
	soon(t, "three answers", func() bool { return shown() && p.asked.Load() > 2 })
	if n := p.greeted.Load(); n != 1 {
		t.Errorf("it asked %d times who answers", n)
	}
	stopAgent()
	soon(t, "the agent to be missed", func() bool { return !shown() })
	p.agent()
	soon(t, "the agent that came back", shown)
	if n := p.greeted.Load(); n != 2 {
		t.Errorf("it asked %d times who answers", n)
	}
}

func TestBadFlags(t *testing.T) {
	p := newPlace(t)
	bad := filepath.Join(p.dir, "web.yml")
	if err := os.WriteFile(bad, []byte("basic_auth_users: {a: short}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  []string
		usage bool
		want  string
	}{
		{[]string{"--max-series", "-1"}, true, "--max-series"},
		{[]string{"--max-series-per-group", "0"}, true, "--max-series-per-group"},
		{[]string{"--listen", "unix:"}, true, "path"},
		{[]string{"--listen", "unix:@name"}, true, "path"},
		{[]string{"--listen", "127.0.0.1:0", "--web.config.file", bad}, false, bad},
	} {
		err := p.run(c.args...)()
		if err == nil || !strings.Contains(err.Error(), c.want) || (usage.HintOf(err) != "") != c.usage ||
			!c.usage && api.HintOf(err) == "" {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}

func TestOpenToOthers(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:0": false, ":0": true, "0.0.0.0:0": true} {
		l, err := listen(address)
		if err != nil {
			t.Fatal(err)
		}
		if open(l) != want {
			t.Errorf("%s is open to others: %v", address, !want)
		}
		_ = l.Close()
	}
	if _, err := listen("127.0.0.1:port"); api.CodeOf(err) != api.CodeFailed || api.HintOf(err) == "" {
		t.Errorf("a bad address: %v", err)
	}
	if _, err := listen("unix:/no/such/directory/socket"); err == nil || api.HintOf(err) == "" {
		t.Errorf("a bad path: %v", err)
	}
}
