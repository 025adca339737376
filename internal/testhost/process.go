package testhost

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// sessions are the processes started here that have not been waited for; each leads a session.
type sessions struct {
	sync.Mutex
	leaders map[int]bool
}

var spawned = sessions{leaders: make(map[int]bool)}

func (s *sessions) set(pid int, on bool) {
	s.Lock()
	defer s.Unlock()
	if delete(s.leaders, pid); on {
		s.leaders[pid] = true
	}
}

// session says whether a process belongs to a session that was started here.
func (s *sessions) session(pid int) bool {
	leader, err := unix.Getsid(pid)
	s.Lock()
	defer s.Unlock()
	return s.leaders[pid] || err == nil && s.leaders[leader]
}

// Spawn starts a program, found in PATH, in a session of its own, with stdin from and output to
// /dev/null. It and its process group are killed at the end of the test.
func Spawn(t testing.TB, name string, args ...string) procfs.ID {
	t.Helper()
	return SpawnAs(t, name, name, args...)
}

// SpawnAs is Spawn with an argv[0] of its own: a process that looks like another program.
func SpawnAs(t testing.TB, argv0, name string, args ...string) procfs.ID {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("open %q: %v", os.DevNull, err)
	}
	defer null.Close()
	return start(t, look(t, name), append([]string{argv0}, args...), os.Environ(), null, null)
}

// Spin starts a process that burns one CPU.
func Spin(t testing.TB) procfs.ID {
	t.Helper()
	return Spawn(t, "sh", "-c", "while :; do :; done")
}

// start starts a program; stderr is the test's.
func start(t testing.TB, program string, argv, env []string, stdin, stdout *os.File) procfs.ID {
	t.Helper()
	p, err := os.StartProcess(program, argv, &os.ProcAttr{
		Env:   env,
		Files: []*os.File{stdin, stdout, os.Stderr},
		// The kernel kills it too when the test binary is killed and runs no clean-up. Go ends no idle
		// thread, so the thread that starts it lives as long as the binary.
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		t.Fatalf("start %q: %v", program, err)
	}
	spawned.set(p.Pid, true)
	t.Cleanup(func() { stop(t, p) })
	return Identify(t, p.Pid)
}

// stop kills a process with its process group and waits for it, for a limited time.
func stop(t testing.TB, p *os.Process) {
	_ = unix.Kill(-p.Pid, unix.SIGKILL) // gone already is fine
	done := make(chan struct{})
	go func() {
		_, _ = p.Wait() // how it ended does not matter
		close(done)
	}()
	for _, try := range []struct {
		wait time.Duration
		then func()
	}{
		{cleanupTime / 10, thawAll},
		// To die takes CPU time, of which a limit may leave little on a busy machine.
		{2 * cleanupTime, func() { t.Errorf("clean up: process %d does not die", p.Pid) }},
	} {
		select {
		case <-done:
			spawned.set(p.Pid, false)
			return
		case <-time.After(try.wait):
			try.then()
		}
	}
}

// Identify gives the number and start time of a running process.
func Identify(t testing.TB, pid int) procfs.ID {
	t.Helper()
	list, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{pid}})
	if err != nil || len(list) != 1 {
		t.Fatalf("look at process %d: not there (%v)", pid, err)
	}
	return list[0].ID
}

// Kill ends a process that Spawn started and returns when it is gone or a zombie.
func Kill(t testing.TB, id procfs.ID) {
	t.Helper()
	if !spawned.session(id.PID) {
		t.Fatalf("process %d was not started by this test", id.PID)
	}
	if err := unix.Kill(id.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatalf("kill process %d: %v", id.PID, err)
	}
	h := host.New("/")
	WaitFor(t, fmt.Sprintf("process %d to end", id.PID), func() bool { return !h.Proc.Alive(id) })
}

// WaitFor polls until is answers true; it fails the test after ten seconds.
func WaitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	WaitLong(t, 10*time.Second, what, is)
}

// WaitLong is WaitFor with a limit of its own, for what takes long on a slow machine.
func WaitLong(t testing.TB, most time.Duration, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(most); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", most, what)
		}
	}
}

// look finds a program in PATH.
func look(t testing.TB, name string) string {
	t.Helper()
	if strings.Contains(name, "/") {
		return name
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file
		}
	}
	t.Fatalf("find %q: not in PATH", name)
	return ""
}

// child is a running copy of the test binary. It reads a command a line and answers each with one.
type child struct {
	ID procfs.ID

	t        testing.TB
	commands io.Writer
	answers  *bufio.Reader
}

// copyOfSelf starts a helper process; it waits for its first command.
func copyOfSelf(t testing.TB, how string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("find the test binary: %v", err)
	}
	stdin, commands, err1 := os.Pipe()
	answers, stdout, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		t.Fatalf("make a pipe: %v %v", err1, err2)
	}
	t.Cleanup(func() { commands.Close(); answers.Close() })
	defer stdin.Close()
	defer stdout.Close()
	id := start(t, self, []string{self}, append(os.Environ(), childVariable+"="+how), stdin, stdout)
	return &child{ID: id, t: t, commands: commands, answers: bufio.NewReader(answers)}
}

// errEnded says that the helper process ended instead of answering.
var errEnded = errors.New("the helper process ended")

// ask sends a command and waits for its answer.
func (c *child) ask(command string, limit time.Duration) (string, error) {
	if _, err := fmt.Fprintln(c.commands, command); err != nil {
		return "", errEnded
	}
	type answer struct {
		line string
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		line, err := c.answers.ReadString('\n')
		got <- answer{strings.TrimSpace(line), err}
	}()
	select {
	case a := <-got:
		if a.err != nil {
			return "", errEnded
		}
		return a.line, nil
	case <-time.After(limit):
		return "", fmt.Errorf("no answer to %q within %v", command, limit)
	}
}

// childVariable makes a test binary the helper process that its value describes.
const childVariable = "BULKHEAD_TESTHOST_CHILD"
