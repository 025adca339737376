//go:build root

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// site is a running agent with a root group, a state directory and a socket of its own.
type site struct {
	t      testing.TB
	root   string
	state  string
	socket string
	tree   *cgroup.Tree
	client *client.Client
	stop   func() // ends the agent and waits
}

// every is the time between two looks of a test's agent.
const every = 50 * time.Millisecond

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{t: t, root: testhost.Root(t), state: t.TempDir(), tree: testhost.Tree(t)}
	// Others than root must get as far as the socket, whose path is short (unix(7)).
	dir, err := os.MkdirTemp("", "bh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.socket = filepath.Join(dir, "s")
	return s
}

// start runs an agent; it ends with the test, or by stop.
func (s *site) start(full time.Duration) {
	s.t.Helper()
	s.startWith(Options{Every: every, Full: full})
}

func (s *site) startWith(o Options) {
	s.t.Helper()
	o.Socket = s.socket
	c, err := transaction.Open(transaction.Options{State: s.state})
	if err != nil {
		s.t.Fatal(err)
	}
	a := New(c, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	ended := false
	s.stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				s.t.Errorf("the agent ended: %v", err)
			}
		case <-time.After(10 * time.Second):
			s.t.Error("the agent does not end")
		}
		_ = c.Close()
	}
	s.t.Cleanup(s.stop)
	soon(s.t, "the agent", func() bool {
		s.client, err = client.Dial(context.Background(), s.socket, s.state)
		return err == nil && s.client != nil
	})
}

func (s *site) try(r api.Request) (*api.Reply, error) {
	return s.client.Do(context.Background(), r)
}

func (s *site) must(r api.Request) *api.Reply {
	s.t.Helper()
	reply, err := s.try(r)
	if err != nil {
		s.t.Fatalf("%s: %v", r.Verb, err)
	}
	return reply
}

func (s *site) sources(groups string) []policy.Source {
	return []policy.Source{{Path: "test.yaml", Text: "version: 1\nhost: {root: " + s.root + "}\n" + groups}}
}

func (s *site) apply(groups string) *api.Reply {
	s.t.Helper()
	return s.must(api.Request{Verb: "apply", Sources: s.sources(groups)})
}

func (s *site) status() *api.Status {
	s.t.Helper()
	st, err := s.client.Status(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

func (s *site) file(group, name string) cgroup.File {
	return cgroup.File{Dir: cgroup.Dir{Hierarchy: "cpu", Path: "/" + filepath.Join(s.root, group)}, Name: name}
}

// quota is the CPU limit in force of a group.
func (s *site) quota(group string) string {
	s.t.Helper()
	text, err := s.tree.Read(s.file(group, "cpu.cfs_quota_us"))
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// group is where a process is in the cpu hierarchy, below the site's root.
func (s *site) group(pid int) string {
	s.t.Helper()
	procs, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{pid}})
	if err != nil || len(procs) != 1 {
		s.t.Fatalf("process %d: %v %v", pid, procs, err)
	}
	at, inside := strings.CutPrefix(procs[0].Cgroups["cpu"], "/"+s.root+"/")
	if !inside {
		return "-"
	}
	return at
}

// looked waits for so many more looks.
func (s *site) looked(n int64) {
	s.t.Helper()
	from := s.status().Agent.Looks
	soon(s.t, "looks", func() bool { return s.status().Agent.Looks >= from+n })
}

// soon waits until something is true, for half a minute on a machine that has other things to do.
func soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// mark is a command line that no other test has, and the rule that matches it.
func mark(n int) (argument, rule string) {
	argument = fmt.Sprintf("%d.%d", n, os.Getpid())
	return argument, "^sleep " + strings.ReplaceAll(argument, ".", "[.]") + "$"
}

func TestPlacesWhatStartsLater(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(61001)
	s.start(time.Hour)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	s.looked(2)
	before := s.status().Agent
	id := testhost.Spawn(t, "sleep", argument)
	s.looked(2)
	if got := s.group(id.PID); got != "a" {
		// A look that was under way when it started has not seen it yet.
		s.looked(1)
		if got = s.group(id.PID); got != "a" {
			t.Errorf("after three looks it is in %s", got)
		}
	}
	soon(t, "the move to be counted", func() bool { return s.status().Agent.Moved == before.Moved+1 })
	if a := s.status().Agent; a.Repaired != before.Repaired || a.Error != "" || !a.Running || a.PID != os.Getpid() {
		t.Errorf("agent: %+v", a)
	}
	soon(t, "status to show it", func() bool {
		g := s.status().Groups
		return len(g) == 1 && len(g[0].Members) == 1 && g[0].Members[0].Placed
	})
}

// The looks of the agent read no supplementary groups, unless a rule asks for them.
func TestPlacesByUnixGroup(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(61002)
	s.start(time.Hour)
	s.apply("groups:\n  a: {match: [{unix_group: 4123471, cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	other := testhost.Spawn(t, "setpriv", "--regid", "4123470", "--groups", "4123472", "sleep", argument)
	member := testhost.Spawn(t, "setpriv", "--regid", "4123470", "--groups", "4123471", "sleep", argument)
	soon(t, "the process to be placed", func() bool { return s.group(member.PID) == "a" })
	s.looked(2)
	if got := s.group(other.PID); got != "-" {
		t.Errorf("one that is not in the group is in %s", got)
	}
}

func TestPutsBackWhatSomebodyChanged(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(61002)
	id := testhost.Spawn(t, "sleep", argument)
	s.start(200 * time.Millisecond)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	if err := s.tree.Write(s.file("a", "cpu.cfs_quota_us"), "30000"); err != nil {
		t.Fatal(err)
	}
	soon(t, "the limit to be put back", func() bool { return s.quota("a") == "100000" })
	soon(t, "it to be counted", func() bool { return s.status().Agent.Repaired == 1 })
	if err := s.tree.Move(cgroup.Dir{Hierarchy: "cpu", Path: "/"}, id); err != nil {
		t.Fatal(err)
	}
	soon(t, "the process to be put back", func() bool { return s.group(id.PID) == "a" })
	st := s.status()
	if st.Differs != 0 {
		t.Errorf("still differs by %d", st.Differs)
	}
}

func TestEndsOverridesAndFreezesOnTime(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(61003)
	id := testhost.Spawn(t, "sleep", argument)
	s.start(time.Hour) // the end comes without a full look
	s.apply("groups:\n  a: {role: batch, match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	began := time.Now()
	s.must(api.Request{Verb: "set", Assign: []string{"a:cpu.limit=0.5"}, For: 400 * time.Millisecond})
	if got := s.quota("a"); got != "50000" {
		t.Fatalf("quota %s after set", got)
	}
	soon(t, "the end of the override", func() bool { return s.quota("a") == "100000" })
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("the override ended after %v", took)
	}
	if st := s.status(); len(st.Overrides) != 0 {
		t.Errorf("overrides %q", st.Overrides)
	}

	frozen := func() bool {
		procs, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{id.PID}})
		if err != nil || len(procs) != 1 {
			t.Fatal(err)
		}
		return procs[0].Cgroups["freezer"] == "/"+s.root+"/a"
	}
	began = time.Now()
	s.must(api.Request{Verb: "freeze", Groups: []string{"a"}, For: 400 * time.Millisecond})
	if !frozen() || s.status().Groups[0].Frozen == "" {
		t.Error("not frozen")
	}
	soon(t, "the thaw", func() bool { return !frozen() })
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("the freeze ended after %v", took)
	}
	soon(t, "status to know", func() bool { return s.status().Groups[0].Frozen == "" })

	other := testhost.Spawn(t, "sleep", "61099")
	s.must(api.Request{Verb: "move", Group: "a", PIDs: []int{other.PID}, For: 2 * time.Second})
	if got := s.group(other.PID); got != "a" {
		t.Errorf("moved by hand: in %s", got)
	}
	soon(t, "the placement by hand to end", func() bool { return s.group(other.PID) == "-" })
}

// One that comes to a frozen group stops, and the end lets it go.
func TestStopsWhoComesToAFrozenGroup(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(61007)
	s.start(time.Hour)
	s.apply("groups:\n  a: {role: batch, match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	s.must(api.Request{Verb: "freeze", Groups: []string{"a"}, For: time.Hour})
	id := testhost.Spawn(t, "sleep", argument)
	soon(t, "it to be placed", func() bool { return s.group(id.PID) == "a" })
	freezer := func() string {
		procs, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{id.PID}})
		if err != nil || len(procs) != 1 {
			t.Fatal(procs, err)
		}
		return procs[0].Cgroups["freezer"]
	}
	soon(t, "it to be stopped", func() bool { return freezer() == "/"+s.root+"/a" })
	if is, err := s.tree.Frozen(cgroup.Dir{Hierarchy: "freezer", Path: freezer()}); !is || err != nil {
		t.Errorf("stopped %t, %v", is, err)
	}
	s.looked(3)
	if text := s.agentError(); text != "" {
		t.Errorf("the agent says %s", text)
	}
	s.must(api.Request{Verb: "thaw", Groups: []string{"a"}})
	if at := freezer(); at != "/" || s.group(id.PID) != "a" {
		t.Errorf("thawed, it is in %s, of group %s", at, s.group(id.PID))
	}
}

func TestSurvivesAPolicyThatNoLongerParses(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(61004)
	id := testhost.Spawn(t, "sleep", argument)
	s.start(200 * time.Millisecond)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	name := filepath.Join(s.state, "applied.json")
	sound, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range []string{strings.ReplaceAll(string(sound), "cpu:", "cpuu:"), "{", ""} {
		if err := os.WriteFile(name, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		soon(t, "the agent to say so", func() bool { return s.agentError() != "" })
		s.pause()
		if got, at := s.quota("a"), s.group(id.PID); got != "100000" || at != "a" {
			t.Errorf("with a broken policy: quota %s, process in %s", got, at)
		}
		if err := os.WriteFile(name, sound, 0o600); err != nil {
			t.Fatal(err)
		}
		soon(t, "the error to go", func() bool { return s.agentError() == "" })
	}
	// The way out works in this state too.
	if err := os.WriteFile(name, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(api.Request{Verb: "release", All: true})
	if got := s.group(id.PID); got != "-" {
		t.Errorf("released: in %s", got)
	}
}

// agentError is the error of the last look; status itself fails while the policy is broken.
func (s *site) agentError() string {
	st, err := s.client.Status(context.Background())
	if err != nil {
		return err.Error()
	}
	return st.Agent.Error
}

// pause lets the agent look some times.
func (s *site) pause() { time.Sleep(10 * every) }

func TestStopsAndStartsAgain(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(61005)
	id := testhost.Spawn(t, "sleep", argument)
	s.start(200 * time.Millisecond)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	applied := testhost.Snapshot(t, s.tree, s.root, id)
	s.stop()
	if got := testhost.Snapshot(t, s.tree, s.root, id); got != applied {
		t.Errorf("the agent stopped:\n%s\nbefore:\n%s", got, applied)
	}
	if _, err := os.Stat(s.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it left its socket: %v", err)
	}
	if c, err := client.Dial(context.Background(), s.socket, s.state); c != nil || err != nil {
		t.Errorf("dial without an agent: %v, %v", c, err)
	}
	s.start(200 * time.Millisecond)
	s.looked(8)
	if a := s.status().Agent; a.Moved != 0 || a.Repaired != 0 || a.Error != "" {
		t.Errorf("started again it did something: %+v", a)
	}
	if got := testhost.Snapshot(t, s.tree, s.root, id); got != applied {
		t.Errorf("the agent started again:\n%s\nbefore:\n%s", got, applied)
	}
}
