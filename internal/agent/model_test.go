package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procevents"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/transaction"
)

// modelSite is an agent on a host that is files below a directory, over the model of the kernel.
type modelSite struct {
	t       *testing.T
	root    string
	state   string
	socket  string
	kernel  *cgroupfake.Kernel
	control *transaction.Controller
	client  *client.Client
	events  *modelEvents
	uid     atomic.Int64 // of who connects
	stop    func()
	// cancel ends the agent, and ended gives its error: for who does not use stop.
	cancel   func()
	ended    chan error
	stopTime time.Duration // see Options.stop

	mu    sync.Mutex
	alive []int // processes of the model, which are in /proc
}

// modelEvents is a source of process events.
type modelEvents struct {
	next chan []procevents.Event
	end  chan struct{}
	once sync.Once
}

func (e *modelEvents) Read(to []procevents.Event) ([]procevents.Event, int, error) {
	select {
	case events := <-e.next:
		return append(to, events...), 0, nil
	case <-e.end:
		return to, 0, errors.New("the source has ended")
	}
}

func (e *modelEvents) Within(time.Duration) {}

func (e *modelEvents) Close() error {
	e.once.Do(func() { close(e.end) })
	return nil
}

func newModelSite(t *testing.T) *modelSite {
	t.Helper()
	s := &modelSite{t: t, root: linuxtest.Unpack(t, linuxtest.Text(t, "hybrid")), state: t.TempDir()}
	dir, err := os.MkdirTemp("", "bh") // the path of a socket is short (unix(7))
	s.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.socket = filepath.Join(dir, "s")
	facts, err := host.New(s.root).Facts()
	s.must(err)
	s.kernel = cgroupfake.New(facts.Hierarchies, cgroupfake.Options{Kernel: facts.Kernel})
	s.kernel.Intercept(func(cgroupfake.Operation) error { s.refresh(); return nil })
	s.process(os.Getpid(), 77, "/usr/bin/bulkhead agent")
	return s
}

func (s *modelSite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// process writes a process into /proc, made after the captured one.
func (s *modelSite) process(pid int, start uint64, command string) {
	s.t.Helper()
	linuxtest.Process(s.t, s.root, 4845, pid, 0, start, command)
}

// start makes a process of the model, and tells of it where events are read.
func (s *modelSite) start(command string) int {
	s.t.Helper()
	id := s.kernel.Spawn()
	s.process(id.PID, id.Start, command)
	s.mu.Lock()
	s.alive = append(s.alive, id.PID)
	s.mu.Unlock()
	if s.events != nil {
		s.events.next <- []procevents.Event{{Kind: procevents.Exec, PID: id.PID}}
	}
	return id.PID
}

// refresh writes into /proc where the model's processes are.
func (s *modelSite) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range s.alive {
		groups := s.kernel.Membership(pid)
		name := filepath.Join(s.root, "proc", strconv.Itoa(pid), "cgroup")
		old, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		var b strings.Builder
		for line := range strings.Lines(string(old)) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			id := f[1]
			if id == "" {
				id = procfs.UnifiedID
			}
			fmt.Fprintf(&b, "%s:%s:%s\n", f[0], f[1], groups[id])
		}
		_ = os.WriteFile(name, []byte(b.String()), 0o644)
	}
}

// run runs the agent; it ends with the test, or by stop.
func (s *modelSite) run(events *modelEvents) {
	s.t.Helper()
	c, err := transaction.Open(transaction.Options{State: s.state, Root: s.root, Tree: s.kernel.Tree})
	s.must(err)
	s.control, s.events = c, events
	none := func() (source, error) { return nil, errors.New("none here") }
	o := Options{
		Socket: s.socket, Every: 10 * time.Millisecond, Full: 30 * time.Millisecond, events: none, traces: none,
		stop: s.stopTime,
	}
	if events != nil {
		o.events = func() (source, error) { return events, nil }
	}
	o.peer = func(net.Conn) (*api.Caller, error) {
		uid := int(s.uid.Load())
		if uid < 0 {
			return nil, errors.New("nobody knows")
		}
		return &api.Caller{Identity: procfs.Identity{UID: uid}, PID: os.Getpid()}, nil
	}
	a := New(c, o)
	ctx, cancel := context.WithCancel(s.t.Context())
	s.cancel, s.ended = cancel, make(chan error, 1)
	go func(ended chan error) { ended <- a.Run(ctx); close(ended) }(s.ended)
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-s.ended; err != nil {
			s.t.Errorf("the agent ended: %v", err)
		}
		_ = c.Close()
	})
	s.t.Cleanup(s.stop)
	s.until("the agent", func() bool {
		s.client, err = client.Dial(s.t.Context(), s.socket, s.state)
		return err == nil && s.client != nil
	})
}

func (s *modelSite) until(what string, is func() bool) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited in vain for %s", what)
		}
		s.refresh()
	}
}

func (s *modelSite) do(q api.Request) *api.Reply {
	s.t.Helper()
	reply, err := s.client.Do(s.t.Context(), q)
	if err != nil {
		s.t.Fatalf("%s: %v", q.Verb, err)
	}
	return reply
}

func sourcesOf(text string) []policy.Source { return []policy.Source{{Path: "test.yaml", Text: text}} }

func (s *modelSite) apply(groups string) {
	s.t.Helper()
	s.do(api.Request{Verb: "apply", Sources: sourcesOf("version: 1\ngroups:\n" + groups)})
}

// tasks is the limit on tasks that is in force for a group, "" for none.
func (s *modelSite) tasks(group string) string {
	dir := cgroup.Dir{Hierarchy: "pids", Path: "/bulkhead." + group}
	text, err := s.kernel.Tree.Read(dir.File("pids.max"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

func (s *modelSite) status() *api.Status {
	s.t.Helper()
	st, err := s.client.Status(s.t.Context())
	s.must(err)
	return st
}

const jobs = "  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n"

// Verbs over the socket, and what the looks at fixed times put right.
func TestModelVerbsAndLooks(t *testing.T) {
	s := newModelSite(t)
	s.run(nil)
	s.apply(jobs)
	if got := s.tasks("jobs"); got != "50" {
		t.Fatalf("the limit in force is %q, want 50", got)
	}
	pid := s.start("/usr/bin/backup all")
	in := func() bool { return s.kernel.Membership(pid)["pids"] == "/bulkhead.jobs" }
	s.until("the process to be placed", in)
	s.kernel.Set(cgroup.File{Dir: cgroup.Dir{Hierarchy: "pids", Path: "/bulkhead.jobs"}, Name: "pids.max"}, "max")
	s.until("the limit to be put back", func() bool { return s.tasks("jobs") == "50" })
	s.until("status to tell of it", func() bool { return s.status().Agent.Repaired > 0 && s.status().Agent.Moved > 0 })
	if st := s.status(); !st.Agent.Running || st.Agent.PID != os.Getpid() ||
		!strings.Contains(st.Agent.Source, "a look every") ||
		!strings.Contains(st.Agent.Source, "none here") {
		t.Errorf("status of the agent: %+v", st.Agent)
	}
	placed, err := s.client.Placed(t.Context(), pid)
	if err != nil {
		t.Errorf("placed: %+v, %v", placed, err)
	}
	s.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=90"}, For: 300 * time.Millisecond})
	if got := s.tasks("jobs"); got != "90" {
		t.Errorf("after a set the limit is %q, want 90", got)
	}
	s.until("the end of the set", func() bool { return s.tasks("jobs") == "50" })
	history, err := s.client.History(t.Context())
	if err != nil || len(history) < 2 || history[0].Verb != "apply" {
		t.Errorf("history: %+v, %v", history, err)
	}
	s.do(api.Request{Verb: "release", All: true})
	if got := s.tasks("jobs"); got != "" || in() {
		t.Errorf("after a release the limit is %q, and the process in %v", got, s.kernel.Membership(pid))
	}
}

// What is wrong comes over the socket as it is: positioned problems, refusals, codes and hints.
func TestModelErrors(t *testing.T) {
	s := newModelSite(t)
	s.run(nil)
	bad := sourcesOf("version: 1\ngroups: {a: {tasks: many}}\n")
	_, err := s.client.Do(t.Context(), api.Request{Verb: "apply", Sources: bad})
	var problems policy.Problems
	if !errors.As(err, &problems) || len(problems) == 0 {
		t.Errorf("a policy that is wrong: %T %v", err, err)
	}
	_, err = s.client.Do(t.Context(), api.Request{Verb: "set", Assign: []string{"nowhere:tasks=1"}})
	if err == nil || api.HintOf(err) == "" {
		t.Errorf("a group that is not there: %v", err)
	}
	if _, err := s.client.Do(t.Context(), api.Request{Verb: "dance"}); err == nil {
		t.Error("a verb that is not there is done")
	}
	err = s.client.Enter(t.Context(), "jobs", "sh", "")
	if err == nil || !strings.Contains(err.Error(), "no policy is applied") {
		t.Errorf("root enters without a policy: %v", err)
	}
	_, err = client.Dial(t.Context(), s.socket, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "works on the state directory") {
		t.Errorf("another state directory: %v", err)
	}
	if c, err := client.Dial(t.Context(), s.socket+".none", s.state); c != nil || err != nil {
		t.Errorf("no agent: %v, %v", c, err)
	}
	s.stop()
	if _, err := s.client.Status(t.Context()); !errors.Is(err, client.ErrSilent) {
		t.Errorf("an agent that has ended: %v", err)
	}
}

// One agent for a state directory, one for a socket, and a socket takes the place of a dead agent's alone.
func TestModelIsAlone(t *testing.T) {
	s := newModelSite(t)
	s.run(nil)
	for _, c := range []struct{ name, state, socket, want string }{
		{"same state", s.state, s.socket + "2", "already works on"},
		{"same socket", t.TempDir(), s.socket, "already listens on"},
		{"no socket", t.TempDir(), filepath.Join(s.root, "proc", "meminfo"), "is no socket"},
	} {
		other, err := transaction.Open(transaction.Options{State: c.state, Root: s.root, Tree: s.kernel.Tree})
		s.must(err)
		err = New(other, Options{Socket: c.socket}).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || api.HintOf(err) == "" {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		_ = other.Close()
	}
	s.stop()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket, Net: "unix"})
	s.must(err)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	s.run(nil) // over the socket that was left
}

// Events place what starts at once, and without their source the looks go on.
func TestModelEvents(t *testing.T) {
	s := newModelSite(t)
	events := &modelEvents{next: make(chan []procevents.Event), end: make(chan struct{})}
	s.run(events)
	s.apply(jobs)
	pid := s.start("/usr/bin/backup all")
	s.until("the process to be placed", func() bool { return s.kernel.Membership(pid)["pids"] == "/bulkhead.jobs" })
	s.until("its event to be counted", func() bool { return s.status().Agent.Events > 0 })
	_ = events.Close()
	s.until("the end of the events to be told", func() bool {
		return strings.Contains(s.status().Agent.Source, "ended")
	})
	s.events = nil
	late := s.start("/usr/bin/backup more")
	s.until("one that no event tells of", func() bool { return s.kernel.Membership(late)["pids"] == "/bulkhead.jobs" })
}

// Others than root: the socket opens with the policy, and owners change what is theirs, each change in its turn and not
// too many.
func TestModelVisitors(t *testing.T) {
	s := newModelSite(t)
	s.run(nil)
	mode := func() os.FileMode {
		info, err := os.Stat(s.socket)
		s.must(err)
		return info.Mode().Perm()
	}
	if mode() != shut {
		t.Errorf("without owners the socket has mode %o", mode())
	}
	set := func(assign string) error {
		q := api.Request{Verb: "set", Assign: []string{assign}, For: time.Hour, By: "root"}
		_, err := s.client.Do(t.Context(), q)
		return err
	}
	s.apply("  jobs:\n    {role: helper, match: [{exe: backup}], tasks: 50,\n" +
		"     owner: {user: 4242, may: [set], bounds: {tasks: 10..60}}}\n" +
		"  web: {match: [{exe: httpd}], tasks: 60}\n")
	s.until("the socket to open", func() bool { return mode() == unlocked })
	s.uid.Store(4242)
	if err := set("jobs:tasks=40"); err != nil || s.tasks("jobs") != "40" {
		t.Errorf("within its bounds: %v, and in force is %q", err, s.tasks("jobs"))
	}
	if err := set("jobs:tasks=61"); err == nil || s.tasks("jobs") != "40" {
		t.Errorf("beyond its bounds: %v, and in force is %q", err, s.tasks("jobs"))
	}
	if err := set("web:tasks=40"); err == nil || s.tasks("web") != "60" {
		t.Errorf("another's group: %v, and in force is %q", err, s.tasks("web"))
	}
	if err := s.client.Enter(t.Context(), "jobs", "sh", ""); err == nil {
		t.Error("it enters, which it may not")
	}
	limited := false
	for i := range changesAtOnce + 1 {
		err := set(fmt.Sprintf("jobs:tasks=%d", 20+i))
		if err != nil && strings.Contains(err.Error(), "in a short time") {
			limited = true
		}
	}
	if !limited {
		t.Errorf("more than %d changes are taken", changesAtOnce)
	}
	s.uid.Store(4243)
	if _, err := s.client.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "only root") {
		t.Errorf("a stranger asks for the status: %v", err)
	}
	if err := set("jobs:tasks=40"); err == nil || !strings.Contains(err.Error(), "only root") {
		t.Errorf("a stranger sets: %v", err)
	}
	s.uid.Store(-1)
	if _, err := s.client.Status(t.Context()); err == nil {
		t.Error("whom the kernel does not know is answered")
	}
	s.uid.Store(0)
	history, err := s.client.History(t.Context())
	s.must(err)
	if by := history[len(history)-1].By; !strings.Contains(by, "uid 4242") {
		t.Errorf("the last change is by %q, want the owner", by)
	}
}

// What is refused costs a look at the host, too: who asks for too much too often is turned away without one, and root
// is answered meanwhile.
func TestModelRefusedRequestsAreCounted(t *testing.T) {
	s := newModelSite(t)
	s.run(nil)
	s.apply("  jobs:\n    {role: helper, match: [{exe: backup}], tasks: 50,\n" +
		"     owner: {user: 4242, may: [set], bounds: {tasks: 10..60}}}\n")
	s.until("the socket to open", func() bool {
		info, err := os.Stat(s.socket)
		return err == nil && info.Mode().Perm() == unlocked
	})
	const more = 15
	set := func() error {
		q := api.Request{Verb: "set", Assign: []string{"jobs:tasks=61"}, For: time.Hour}
		_, err := s.client.Do(t.Context(), q)
		if err == nil || strings.Contains(err.Error(), "only root") {
			t.Fatalf("out of its bounds, and in its group: %v", err)
		}
		return err
	}
	s.uid.Store(4242)
	began, looked, turned := time.Now(), 0, 0
	for range requestsAtOnce + more {
		if strings.Contains(set().Error(), "in a short time") {
			turned++
		} else {
			looked++
		}
	}
	if most := requestsAtOnce + 1 + int(time.Since(began)/requestEvery); looked > most {
		t.Errorf("%d requests were looked at and %d turned away, want at most %d", looked, turned, most)
	}
	s.uid.Store(0)
	if _, err := s.client.Status(t.Context()); err != nil {
		t.Errorf("root is turned away: %v", err)
	}
	if s.tasks("jobs") != "50" {
		t.Errorf("in force is %q", s.tasks("jobs"))
	}
}
