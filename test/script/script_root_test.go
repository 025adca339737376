//go:build root

package script

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// The scripts that change the host: each has a root group, a state directory and a socket of its own,
// and whatever it started or made is gone at its end.
func TestRoot(t *testing.T) {
	testhost.RequireRoot(t)
	each(t, "root", func(t *testing.T, file string) {
		if filepath.Base(file) != "probe.txtar" { // which measures; the others mostly wait
			t.Parallel()
		}
		s := &site{t: t, root: testhost.Root(t), tree: testhost.Tree(t), snapshots: map[string]string{}}
		run(t, file, s.root, map[string]func(*testscript.TestScript, bool, []string){
			"spawn": s.spawn, "in": s.in, "knob": s.knob, "tweak": s.tweak, "gone": s.gone,
			"snapshot": s.snapshot, "same": s.same, "agent": s.agent, "soon": s.soon, "loop": s.loop,
			"public": s.public, "as": s.as,
		})
	})
}

// site is the host as one script sees it.
type site struct {
	t         *testing.T
	root      string
	tree      *cgroup.Tree
	processes []procfs.ID
	snapshots map[string]string
}

// marks makes the processes of different scripts different.
var marks atomic.Int64

// spawn starts a process that sleeps. $NAME is its id, $NAME_RULE a cmdline rule that matches nothing else:
//
//	spawn DB
func (s *site) spawn(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		mark := fmt.Sprintf("%d.%d", 50000+marks.Add(1), os.Getpid())
		id := testhost.Spawn(s.t, "sleep", mark)
		s.processes = append(s.processes, id)
		ts.Setenv(name, strconv.Itoa(id.PID))
		ts.Setenv(name+"_RULE", "^sleep "+strings.ReplaceAll(mark, ".", "[.]")+"$")
		ts.Setenv(name+"_COMMAND", "sleep "+mark)
	}
}

// loop makes a loop device of 16 MiB: $LOOP is its path.
func (s *site) loop(ts *testscript.TestScript, _ bool, _ []string) {
	device, _ := testhost.LoopDevice(s.t, 16<<20)
	ts.Setenv("LOOP", device)
}

// public makes a directory that every user may enter, with the program in it, and puts the agent's socket there:
// $PUBLIC.
func (s *site) public(ts *testscript.TestScript, _ bool, _ []string) {
	dir, err := os.MkdirTemp("/var/tmp", "bulkhead-script-")
	ts.Check(err)
	ts.Defer(func() { _ = os.RemoveAll(dir) })
	ts.Check(os.Chmod(dir, 0o755))
	program, err := os.ReadFile("/proc/self/exe")
	ts.Check(err)
	ts.Check(os.WriteFile(filepath.Join(dir, "bulkhead"), program, 0o755))
	ts.Setenv("PUBLIC", dir)
	ts.Setenv("SOCKET", filepath.Join(dir, "s"))
}

// as runs bulkhead, or with "sh" a command of the shell, as another user and in one Unix group, and holds it to an exit
// code:
//
//	as 54321:54330 5 set shop:cpu.limit=9
//	as 54321:54330 0 sh '$BULKHEAD move shop $$'
func (s *site) as(ts *testscript.TestScript, _ bool, args []string) {
	user, group, _ := strings.Cut(args[0], ":")
	bulkhead := []string{filepath.Join(ts.Getenv("PUBLIC"), "bulkhead"), "--state", ts.Getenv("STATE"), "--socket",
		ts.Getenv("SOCKET")}
	line := append(bulkhead, args[2:]...)
	if args[2] == "sh" {
		line = []string{"env", "BULKHEAD=" + strings.Join(bulkhead, " "), "sh", "-c", args[3]}
	}
	ends(ts, args[1], "setpriv", append([]string{"--reuid", user, "--regid", group, "--clear-groups", "--"},
		line...)...)
}

// in says where a process is. "-" is outside of the script's root group:
//
//	in $DB cpu db1/db
func (s *site) in(ts *testscript.TestScript, neg bool, args []string) {
	if err := s.isIn(args); (err == nil) == neg {
		ts.Fatalf("in %v: %v", args, err)
	}
}

func (s *site) isIn(args []string) error {
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	procs, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{pid}})
	if err != nil || len(procs) != 1 {
		return fmt.Errorf("process %d is not there: %v", pid, err)
	}
	at, below := strings.CutPrefix(procs[0].Cgroups[args[1]], "/"+s.root)
	if !below {
		at = "-"
	}
	if got := strings.TrimPrefix(at, "/"); got != args[2] {
		return fmt.Errorf("process %d is in %q of %s", pid, got, args[1])
	}
	return nil
}

func (s *site) file(args []string) cgroup.File {
	d := cgroup.Dir{Hierarchy: args[0], Path: strings.TrimSuffix("/"+s.root+"/"+strings.TrimPrefix(args[1], "."), "/")}
	return cgroup.File{Dir: d, Name: args[2]}
}

// knob holds a file of a group to a value; the script's root group is ".":
//
//	knob cpu db1 cpu.shares 5120
func (s *site) knob(ts *testscript.TestScript, neg bool, args []string) {
	if err := s.holds(args); (err == nil) == neg {
		ts.Fatalf("knob %v: %v", args, err)
	}
}

func (s *site) holds(args []string) error {
	got, err := s.tree.Read(s.file(args))
	if err == nil && got != args[3] {
		err = fmt.Errorf("it holds %q", got)
	}
	return err
}

// tweak writes a file of a group behind bulkhead's back.
func (s *site) tweak(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(s.tree.Write(s.file(args), args[3]))
}

// gone says that no hierarchy has the script's root group any more, or none a group of it:
//
//	gone
//	gone cpu reports
func (s *site) gone(ts *testscript.TestScript, neg bool, args []string) {
	if err := s.isGone(args); (err == nil) == neg {
		ts.Fatalf("gone %v: %v", args, err)
	}
}

func (s *site) isGone(args []string) error {
	if len(args) == 0 {
		return groupsOf(s.root)
	}
	d := s.file([]string{args[0], args[1], ""}).Dir
	there, err := s.tree.Exists(d)
	if err == nil && there {
		err = fmt.Errorf("%s is there", d)
	}
	return err
}

// snapshot keeps the state of the script's groups and processes under a name, same holds it to that.
func (s *site) snapshot(_ *testscript.TestScript, _ bool, args []string) {
	s.snapshots[args[0]] = testhost.Snapshot(s.t, s.tree, s.root, s.processes...)
}

func (s *site) same(ts *testscript.TestScript, neg bool, args []string) {
	now := testhost.Snapshot(s.t, s.tree, s.root, s.processes...)
	if was := s.snapshots[args[0]]; (now == was) == neg {
		ts.Fatalf("now:\n%s\n%s:\n%s", now, args[0], was)
	}
}

// soon waits until in, knob or gone holds, until the history has a line like a pattern, or the socket a mode, for half
// a minute at most.
func (s *site) soon(ts *testscript.TestScript, _ bool, args []string) {
	history := func(args []string) error {
		err := ts.Exec("bulkhead", "--state", ts.Getenv("STATE"), "--socket", ts.Getenv("SOCKET"), "history")
		if text := ts.ReadFile("stdout"); err == nil && !regexp.MustCompile("(?m)"+args[0]).MatchString(text) {
			return fmt.Errorf("no %q in the history:\n%s", args[0], text)
		}
		return err
	}
	socket := func(args []string) error {
		info, err := os.Stat(ts.Getenv("SOCKET"))
		if mode := strconv.FormatUint(uint64(info.Mode().Perm()), 8); err == nil && mode != args[0] {
			return fmt.Errorf("the socket has mode %s", mode)
		}
		return err
	}
	check, ok := map[string]func([]string) error{"socket": socket, "in": s.isIn, "knob": s.holds, "gone": s.isGone,
		"history": history}[args[0]]
	if !ok {
		ts.Fatalf("soon does not know %q", args[0])
	}
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = check(args[1:]); err == nil {
			return
		}
	}
	ts.Fatalf("after half a minute: %v", err)
}

// agent starts the agent in the background, with 100 ms between two looks, and waits until it listens.
// It is stopped at the end of the script, or by `kill -TERM agent` and `wait agent`.
func (s *site) agent(ts *testscript.TestScript, _ bool, args []string) {
	log, err := os.Create(ts.MkAbs("agent.log"))
	ts.Check(err)
	defer log.Close()
	binary, err := exec.LookPath("bulkhead")
	if err != nil {
		binary = "/proc/self/exe"
	}
	cmd := exec.Command(binary)
	cmd.Args = append([]string{"bulkhead", "--state", ts.Getenv("STATE"), "--socket", ts.Getenv("SOCKET"), "agent",
		"--every", "100ms", "--full", "500ms"}, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	ts.Check(cmd.Start())
	ts.Setenv("AGENT", strconv.Itoa(cmd.Process.Pid))
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	ts.Defer(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			s.t.Error("the agent does not end on SIGTERM")
		}
		said, _ := os.ReadFile(log.Name())
		s.t.Logf("the agent said:\n%s", said)
	})
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", ts.Getenv("SOCKET")); err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("the agent does not listen: %s", ts.ReadFile("agent.log"))
		}
	}
}
