//go:build root

// These tests use bulkhead as a person does, as a program with arguments, on the real kernel: each with a
// root group, a state directory and a socket of its own.
package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/cli"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// TestMain makes this binary the program itself when it is called by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "bulkhead" {
		os.Exit(cli.Main(os.Args[1:], os.Exit))
	}
	if len(os.Args) > 2 && (os.Args[1] == askArg || os.Args[1] == trickleArg) {
		begin := askMain
		if os.Args[1] == trickleArg {
			begin = trickleMain
		}
		if err := begin(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := testhost.SetSurroundings(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// site is a test's own host.
type site struct {
	t       testing.TB
	root    string // name of the root group
	dir     string
	state   string
	socket  string
	policy  string
	program string
	tree    *cgroup.Tree
	weight  int    // of the root group; 0: the kernel's
	stdin   []byte // of the next commands
}

func newSite(t testing.TB) *site {
	t.Helper()
	testhost.RequireRoot(t)
	dir := t.TempDir()
	s := &site{
		t: t, root: testhost.Root(t), dir: dir, tree: testhost.Tree(t),
		state: filepath.Join(dir, "state"), policy: filepath.Join(dir, "policy.yaml"),
		program: filepath.Join(dir, "bulkhead"),
	}
	// A socket's path is short (unix(7)); a test's directory may be long.
	short, err := os.MkdirTemp("", "bh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	s.socket = filepath.Join(short, "s")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, s.program); err != nil {
		t.Fatal(err)
	}
	return s
}

// write makes a policy of the site's own root group and these groups.
func (s *site) write(groups string) {
	s.t.Helper()
	weight := ""
	if s.weight > 0 {
		weight = fmt.Sprintf(", weight: %d", s.weight)
	}
	text := "version: 1\nhost: {root: " + s.root + weight + "}\n" + groups
	if err := os.WriteFile(s.policy, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// command is bulkhead with the site's own surroundings; it dies with the test binary.
func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.program, append([]string{"--policy", s.policy, "--state", s.state, "--socket", s.socket},
		args...)...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// result is what a command said and how it ended.
type result struct {
	args     []string
	code     int
	out, err string
}

func (s *site) run(args ...string) result {
	s.t.Helper()
	var out, errw bytes.Buffer
	cmd := s.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errw
	if s.stdin != nil {
		cmd.Stdin = bytes.NewReader(s.stdin)
	}
	err := cmd.Run()
	r := result{args: args, out: out.String(), err: errw.String()}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		r.code = failed.ExitCode()
	} else if err != nil {
		s.t.Fatalf("run bulkhead %q: %v", args, err)
	}
	if strings.Contains(r.err, "goroutine ") {
		s.t.Fatalf("bulkhead %q panicked:\n%s", args, r.err)
	}
	return r
}

// exits runs a command that ends in an exit code and says some words on either output.
func (s *site) exits(code int, words []string, args ...string) result {
	s.t.Helper()
	r := s.run(args...)
	if r.code != code {
		s.t.Fatalf("bulkhead %q: exit code %d, want %d\n%s%s", args, r.code, code, r.out, r.err)
	}
	for _, w := range words {
		if !strings.Contains(r.out+r.err, w) {
			s.t.Errorf("bulkhead %q does not say %q:\n%s%s", args, w, r.out, r.err)
		}
	}
	return r
}

// must runs a command that succeeds and gives its answer.
func (s *site) must(args ...string) string {
	s.t.Helper()
	return s.exits(0, nil, args...).out
}

// verified has every limit of the groups read back, all of them when none is named, whether an agent runs or not.
func (s *site) verified(groups ...string) {
	s.t.Helper()
	r := s.run(append([]string{"verify"}, groups...)...)
	if r.code != 0 && r.code != int(api.CodeUnplaced) {
		s.t.Fatalf("bulkhead verify %q: exit code %d\n%s%s", groups, r.code, r.out, r.err)
	}
}

// status asks for everything.
func (s *site) status() *api.Status {
	s.t.Helper()
	var st api.Status
	if err := json.Unmarshal([]byte(s.must("status", "--json")), &st); err != nil {
		s.t.Fatal(err)
	}
	return &st
}

func (s *site) group(name string) api.GroupStatus {
	s.t.Helper()
	st := s.status()
	for _, g := range st.Groups {
		if g.Group == name {
			return g
		}
	}
	s.t.Fatalf("no group %q in status: %+v", name, st.Groups)
	return api.GroupStatus{}
}

// soon waits until something is true, for half a minute on a machine that has other things to do.
func soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// background is a command that runs beside the test.
type background struct {
	*exec.Cmd
	t    testing.TB
	err  *os.File
	done chan struct{}
}

// start starts a command; it is killed at the end of the test.
func (s *site) start(args ...string) *background {
	s.t.Helper()
	return s.startCommand(s.command(args...))
}

// said is what a command printed so far.
func (b *background) said() string {
	text, _ := os.ReadFile(b.err.Name())
	return string(text)
}

// ends waits for the end and gives the exit code; -1 after a signal.
func (b *background) ends() int {
	b.t.Helper()
	select {
	case <-b.done:
	case <-time.After(20 * time.Second):
		b.t.Fatalf("%q does not end:\n%s", b.Args, b.said())
	}
	return b.ProcessState.ExitCode()
}

func (b *background) signal(sig syscall.Signal) {
	b.t.Helper()
	if err := b.Process.Signal(sig); err != nil {
		b.t.Fatalf("signal %q: %v", b.Args, err)
	}
}

// agent starts the agent, with 100 ms between two looks, and waits until it listens.
func (s *site) agent(args ...string) *background {
	s.t.Helper()
	return s.listens(s.start(append([]string{"agent", "--every", "100ms", "--full", "1s"}, args...)...))
}

// listens waits until an agent does.
func (s *site) listens(b *background) *background {
	s.t.Helper()
	soon(s.t, "the agent to listen", func() bool {
		if b.ended() {
			s.t.Fatalf("the agent ended:\n%s", b.said())
		}
		c, err := net.Dial("unix", s.socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return b
}

func (s *site) snapshot(processes ...procfs.ID) string {
	s.t.Helper()
	return testhost.Snapshot(s.t, s.tree, s.root, processes...)
}

// same holds the site to an earlier snapshot.
func (s *site) same(what, before string, processes ...procfs.ID) {
	s.t.Helper()
	if now := s.snapshot(processes...); now != before {
		s.t.Errorf("%s:\n%s\nbefore:\n%s", what, now, before)
	}
}

// at is a directory of a group.
func (s *site) at(hierarchy, group string) cgroup.Dir {
	return cgroup.Dir{Hierarchy: hierarchy, Path: filepath.Join("/", s.root, group)}
}

func (s *site) read(hierarchy, group, file string) string {
	s.t.Helper()
	text, err := s.tree.Read(cgroup.File{Dir: s.at(hierarchy, group), Name: file})
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// where is the directory of a process in each hierarchy.
func where(t testing.TB, pid int) map[string]string {
	t.Helper()
	procs, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{pid}})
	if err != nil || len(procs) != 1 {
		t.Fatalf("process %d: %v, %v", pid, procs, err)
	}
	return procs[0].Cgroups
}

// inside lists the hierarchies in which a process is below the site's root group.
func (s *site) inside(pid int) map[string]string {
	s.t.Helper()
	found := map[string]string{}
	for hierarchy, p := range where(s.t, pid) {
		if group, ok := strings.CutPrefix(p, "/"+s.root+"/"); ok {
			found[hierarchy] = group
		}
	}
	return found
}
