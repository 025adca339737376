//go:build root

package packaging

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/testhost"
)

// service is the installed init script with a root group, a policy and files of its own.
type service struct {
	t        *testing.T
	dir      string
	root     string
	pidFile  string
	policy   string
	defaults string
	tree     *cgroup.Tree
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), root: testhost.Root(t), tree: testhost.Tree(t)}
	s.pidFile, s.policy, s.defaults = filepath.Join(s.dir, "pid"), filepath.Join(s.dir, "policy.yaml"),
		filepath.Join(s.dir, "defaults")
	// A unix socket's path is short (unix(7)).
	sockets, err := os.MkdirTemp("", "bh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	s.write(s.defaults, fmt.Sprintf("DAEMON=%s\nPIDFILE=%s\nLOGFILE=%s/log\nBULKHEAD_OPTIONS='--state %s/state "+
		"--socket %s/s --policy %s'\n",
		path(t, binary), s.pidFile, s.dir, s.dir, sockets, s.policy))
	t.Cleanup(func() {
		_, _ = s.try("stop")
		if out, err := s.bulkhead("release", "--all"); err != nil {
			t.Errorf("release: %v\n%s", err, out)
		}
		if t.Failed() {
			log, _ := os.ReadFile(s.dir + "/log")
			t.Logf("the log:\n%s", log)
		}
	})
	return s
}

func (s *service) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// try does a verb of the script and gives its exit code.
func (s *service) try(verb string) (out string, code int) {
	s.t.Helper()
	cmd := exec.Command(path(s.t, script), verb)
	cmd.Env = append(os.Environ(), "BULKHEAD_DEFAULTS="+s.defaults)
	// To a file: the agent that it leaves behind would hold a pipe open.
	to, err := os.CreateTemp(s.dir, "out")
	if err != nil {
		s.t.Fatal(err)
	}
	defer to.Close()
	cmd.Stdout, cmd.Stderr = to, to
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	text, err := os.ReadFile(to.Name())
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

func (s *service) want(verb string, code int, says string) {
	s.t.Helper()
	if out, got := s.try(verb); got != code || !strings.Contains(out, says) {
		s.t.Fatalf("%s: exit code %d, want %d and %q\n%s", verb, got, code, says, out)
	}
}

// bulkhead runs a verb on the service's state directory.
func (s *service) bulkhead(args ...string) (string, error) {
	out, err := exec.Command("sh", append([]string{"-c", `. "$0"; exec $DAEMON $BULKHEAD_OPTIONS "$@"`, s.defaults},
		args...)...).CombinedOutput()
	return string(out), err
}

func (s *service) pid() int {
	s.t.Helper()
	text, err := os.ReadFile(s.pidFile)
	if err != nil {
		s.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		s.t.Fatal(err)
	}
	return pid
}

func (s *service) limit(cores string) {
	s.write(s.policy, "version: 1\nhost: {root: "+s.root+"}\ngroups:\n  a: {cpu: {limit: "+cores+"}}\n")
}

// quota is the limit in force of the group a.
func (s *service) quota() string {
	for _, h := range testhost.Hierarchies(s.t) {
		d := cgroup.Dir{Hierarchy: h.ID, Path: "/" + s.root + "/a"}
		switch {
		case !h.Has("cpu"):
		case h.Version == 2:
			text, _ := s.tree.Read(d.File("cpu.max"))
			return strings.Fields(text + " -")[0]
		default:
			text, err := s.tree.Read(d.File("cpu.cfs_quota_us"))
			if err != nil {
				return "-"
			}
			return text
		}
	}
	s.t.Fatal("no hierarchy holds cpu")
	return ""
}

func TestInitScript(t *testing.T) {
	s := newService(t)
	s.limit("1")
	s.want("status", 3, "not running")
	s.want("reload", 7, "not running")
	s.want("stop", 0, "not running")
	s.want("start", 0, "running (process ")
	first := s.pid()
	s.want("status", 0, fmt.Sprintf("running (process %d)", first))

	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", first))
	if err != nil {
		t.Fatal(err)
	}
	if nice := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))[17]; nice != "-10" {
		t.Errorf("its niceness is %s", nice)
	}

	// Twice.
	s.want("start", 0, fmt.Sprintf("already running (process %d)", first))
	if s.pid() != first {
		t.Error("a second agent")
	}

	// A reload is check and apply.
	s.want("reload", 0, "")
	if got := s.quota(); got != "100000" {
		t.Errorf("quota %s after a reload", got)
	}
	s.limit("2 dozen")
	s.want("reload", 2, "policy.yaml:4:")
	if out, code := s.try("status"); code != 0 || s.quota() != "100000" {
		t.Errorf("a bad policy: quota %s, %s", s.quota(), out)
	}
	s.limit("2")
	s.want("force-reload", 0, "")
	if got := s.quota(); got != "200000" {
		t.Errorf("quota %s after a reload", got)
	}

	// After a release nothing stays, and stop says so.
	if out, err := s.bulkhead("release", "--all"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.want("stop", 0, "stopped; everything is released: no limit is in force")
	s.want("status", 3, "not running; everything is released")
	s.want("start", 0, "running")
	s.want("reload", 0, "")
	first = s.pid()

	// Stopped, restarted: every limit stays.
	s.want("try-restart", 0, "running")
	if s.pid() == first {
		t.Error("the same process after a restart")
	}
	s.want("stop", 0, "stopped; every limit stays in force")
	if got := s.quota(); got != "200000" {
		t.Errorf("quota %s after a stop", got)
	}
	if _, err := os.Stat(s.pidFile); err == nil {
		t.Error("the pid file is left")
	}
	s.want("try-restart", 0, "")
	s.want("status", 3, "not running")
	s.want("bogus", 2, "usage:")
}

// As after a reboot: nothing is there but the record. start returns when all of it is.
func TestInitScriptReturnsWhenEverythingIsInForce(t *testing.T) {
	s := newService(t)
	s.limit("1")
	if out, err := s.bulkhead("apply"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, h := range testhost.Hierarchies(t) {
		if err := testhost.RemoveTree(s.tree, cgroup.Dir{Hierarchy: h.ID, Path: "/" + s.root}); err != nil &&
			!errors.Is(err, cgroup.ErrGone) {
			t.Fatal(err)
		}
	}
	s.want("start", 0, "running")
	if got := s.quota(); got != "100000" {
		t.Errorf("quota %s when start has returned", got)
	}
}

func TestInitScriptAfterACrash(t *testing.T) {
	s := newService(t)
	s.limit("1")
	s.want("start", 0, "running")
	pid := s.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testhost.WaitFor(t, "the agent to be gone", func() bool { _, code := s.try("status"); return code != 0 })
	s.want("status", 1, "not running, but "+s.pidFile+" is there")
	s.want("start", 0, "running")
	s.want("stop", 0, "stopped")

	// The number is another program's by now.
	other := testhost.Spawn(t, "sleep", "600")
	s.write(s.pidFile, strconv.Itoa(other.PID)+"\n")
	s.want("status", 1, "not running, but")
	s.want("stop", 0, "not running")
	if !host.New("/").Proc.Alive(other) {
		t.Error("stop has killed a stranger")
	}
	s.write(s.pidFile, strconv.Itoa(other.PID)+"\n")
	s.want("start", 0, "running")
	for _, text := range []string{"", "x\n", "-1\n"} {
		s.want("stop", 0, "")
		s.write(s.pidFile, text)
		s.want("status", 1, "not running, but")
	}
}

func TestInitScriptSaysWhyItDidNotStart(t *testing.T) {
	s := newService(t)
	s.write(s.dir+"/state", "no directory\n")
	s.want("start", 1, "state")
	s.want("status", 3, "not running")
	if err := os.Remove(s.dir + "/state"); err != nil {
		t.Fatal(err)
	}
	defaults, err := os.ReadFile(s.defaults)
	if err != nil {
		t.Fatal(err)
	}
	s.write(s.defaults, string(defaults)+"DAEMON=/nowhere/bulkhead\n")
	s.want("start", 5, "/nowhere/bulkhead is not there")
	s.write(s.defaults, string(defaults))
}

// The agent as the unit starts it: with the capabilities of CapabilityBoundingSet= and no others. It has to move
// processes of root and of others, into cpusets too, and to write their oom_score_adj.
func TestCapabilitiesOfTheUnitSuffice(t *testing.T) {
	program, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatal("setpriv is missing: apt-get install util-linux")
	}
	s := newService(t)
	var names []string
	for _, name := range strings.Fields(strings.Join(settings(read(t, unit))["CapabilityBoundingSet"], " ")) {
		names = append(names, "+"+strings.ToLower(strings.TrimPrefix(name, "CAP_")))
	}
	mark := strconv.Itoa(os.Getpid())
	mine := testhost.Spawn(t, "sleep", "70001."+mark)
	other := exec.Command("sleep", "70002."+mark)
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
		Pdeathsig: syscall.SIGKILL}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	s.write(s.policy, "version: 1\nhost: {root: "+s.root+"}\ngroups:\n  a: {match: [{cmdline: '^sleep 7000[12][.]"+mark+
		"$'}], cpu: {limit: 1, cpus: \"0\"}, tasks: 100, memory: {max: 1GiB}, oom_score_adj: 500}\n")
	wrapper := filepath.Join(s.dir, "confined")
	s.write(wrapper, "#!/bin/sh\nexec "+program+" --bounding-set=-all,"+strings.Join(names, ",")+" --no-new-privs "+
		path(t, binary)+" \"$@\"\n")
	if err := os.Chmod(wrapper, 0o755); err != nil {
		t.Fatal(err)
	}
	ready, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	agent := exec.Command("sh", "-c", `. "$0"; exec "$1" $BULKHEAD_OPTIONS agent --ready-fd 3`, s.defaults, wrapper)
	agent.ExtraFiles = []*os.File{tell}
	log, err := os.Create(s.dir + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	agent.Stderr = log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	_ = tell.Close()
	t.Cleanup(func() { _ = agent.Process.Signal(unix.SIGTERM); _ = agent.Wait() })
	if n, err := ready.Read(make([]byte, 1)); n != 1 {
		t.Fatalf("it did not become ready: %v", err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", agent.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("its capabilities: %s", status[strings.Index(string(status), "CapEff"):][:24])
	if out, err := s.bulkhead("apply"); err != nil {
		t.Fatalf("apply: %v\n%s", err, out)
	}
	out, err := s.bulkhead("verify")
	if err != nil {
		t.Errorf("verify: %v\n%s", err, out)
	}
	needed := 0 // hierarchies that hold what the group asks for
	for _, h := range testhost.Hierarchies(t) {
		if slices.ContainsFunc([]string{"cpu", "cpuset", "memory", "pids"}, h.Has) {
			needed++
		}
	}
	for _, pid := range []int{mine.PID, other.Process.Pid} {
		where, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || strings.Count(string(where), "/"+s.root+"/a\n") < needed {
			t.Errorf("process %d is not in %d groups:\n%s(%v)", pid, needed, where, err)
		}
		score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if err != nil || string(score) != "500\n" {
			t.Errorf("oom_score_adj of %d is %q, %v", pid, score, err)
		}
	}
	st, err := s.bulkhead("status", "--json")
	if err != nil || !strings.Contains(st, `"source": "events of the kernel"`) {
		t.Errorf("status: %v\n%.2000s", err, st)
	}
}
