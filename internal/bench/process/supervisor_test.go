package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// alive says whether a process of ours is still there, a zombie of our own not counted. A negative
// number is a process group.
func alive(pid int) bool {
	var status syscall.WaitStatus
	if got, _ := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); got == pid {
		return false
	}
	return syscall.Kill(pid, 0) == nil
}

func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if !alive(pid) {
			return
		}
	}
	t.Errorf("process %d is still there", pid)
}

func TestSupervisorClose(t *testing.T) {
	n := NewSupervisor()
	var pids []int
	for _, session := range []bool{false, true} {
		// The shell's own child has to go too.
		c, err := n.Start(Spec{Args: []string{"sh", "-c", "trap '' TERM INT; sleep 60 & wait"}, Session: session})
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, c.PID())
		if sid, err := sessionOf(c.PID()); err != nil || (sid == c.PID()) != session {
			t.Errorf("session of %d is %d (%v), asked for its own: %v", c.PID(), sid, err, session)
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		gone(t, pid)
		gone(t, -pid) // its process group
	}
	if err := n.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if _, err := n.Start(Spec{Args: []string{"true"}}); err == nil {
		t.Error("a closed supervisor started something")
	}
}

func TestSupervisorRun(t *testing.T) {
	n := NewSupervisor()
	defer n.Close()
	var out bytes.Buffer
	if err := n.Run(t.Context(), Spec{Args: []string{"echo", "hello"}, Stdout: &out}); err != nil ||
		out.String() != "hello\n" {
		t.Errorf("echo said %q, %v", out.String(), err)
	}
	var exit *exec.ExitError
	if err := n.Run(t.Context(), Spec{Args: []string{"false"}}); !errors.As(err, &exit) {
		t.Errorf("false gave %v", err)
	}
	if err := n.Run(t.Context(), Spec{Args: []string{"/no/such/program"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there gave %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := n.Run(ctx, Spec{Args: []string{"sleep", "60"}}); !errors.Is(err, context.DeadlineExceeded) ||
		time.Since(start) > 30*time.Second {
		t.Errorf("a cancelled run gave %v after %v", err, time.Since(start))
	}
}

func TestChildStop(t *testing.T) {
	n := NewSupervisor()
	defer n.Close()
	polite, err := n.Start(Spec{Args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	polite.Stop(5 * time.Second)
	if polite.Killed() {
		t.Error("a program that ends when asked was killed")
	}
	var ready bytes.Buffer
	deaf, err := n.Start(Spec{Args: []string{"sh", "-c", "trap '' TERM; sleep 60 & wait; wait"}, Stdout: &ready})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // until the trap is set
	deaf.Stop(100 * time.Millisecond)
	if !deaf.Killed() {
		t.Error("a program that does not end when asked was not killed")
	}
}

// Nothing survives the demo, even one that is killed itself.
func TestSupervisorParentKilled(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), actAs+"=parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !alive(pid) {
		t.Fatalf("the child %q is not there: %v", line, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	gone(t, pid)
}

// The test binary serves as a program that tests start.
const actAs = "BULKHEAD_BENCH_TEST_ACT_AS"

func TestMain(m *testing.M) {
	if os.Getenv(actAs) != "parent" {
		os.Exit(m.Run())
	}
	// Starts a child, says its pid, and waits to be killed.
	n := NewSupervisor()
	c, err := n.Start(Spec{Args: []string{"sleep", "60"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(c.PID())
	time.Sleep(time.Minute)
}

func sessionOf(pid int) (int, error) {
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(sid), nil
}
