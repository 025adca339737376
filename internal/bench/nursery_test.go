package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
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

func TestNurseryClose(t *testing.T) {
	n := newNursery()
	var pids []int
	for _, session := range []bool{false, true} {
		// The shell's own child has to go too.
		c, err := n.start(spec{args: []string{"sh", "-c", "trap '' TERM INT; sleep 60 & wait"}, session: session})
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, c.pid())
		if sid, err := getsid(c.pid()); err != nil || (sid == c.pid()) != session {
			t.Errorf("session of %d is %d (%v), asked for its own: %v", c.pid(), sid, err, session)
		}
	}
	if err := n.close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		gone(t, pid)
		gone(t, -pid) // its process group
	}
	if err := n.close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if _, err := n.start(spec{args: []string{"true"}}); err == nil {
		t.Error("a closed nursery started something")
	}
}

func getsid(pid int) (int, error) {
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(sid), nil
}

func TestNurseryRun(t *testing.T) {
	n := newNursery()
	defer n.close()
	var out bytes.Buffer
	if err := n.run(t.Context(), spec{args: []string{"echo", "hello"}, stdout: &out}); err != nil || out.String() != "hello\n" {
		t.Errorf("echo said %q, %v", out.String(), err)
	}
	var exit *exec.ExitError
	if err := n.run(t.Context(), spec{args: []string{"false"}}); !errors.As(err, &exit) {
		t.Errorf("false gave %v", err)
	}
	if err := n.run(t.Context(), spec{args: []string{"/no/such/program"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there gave %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := n.run(ctx, spec{args: []string{"sleep", "60"}}); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 30*time.Second {
		t.Errorf("a cancelled run gave %v after %v", err, time.Since(start))
	}
}

func TestChildStop(t *testing.T) {
	n := newNursery()
	defer n.close()
	polite, err := n.start(spec{args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	polite.stop(5 * time.Second)
	if polite.killed() {
		t.Error("a program that ends when asked was killed")
	}
	var ready bytes.Buffer
	deaf, err := n.start(spec{args: []string{"sh", "-c", "trap '' TERM; sleep 60 & wait; wait"}, stdout: &ready})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // until the trap is set
	deaf.stop(100 * time.Millisecond)
	if !deaf.killed() {
		t.Error("a program that does not end when asked was not killed")
	}
}

// Nothing survives the demo, even one that is killed itself.
func TestNurseryParentKilled(t *testing.T) {
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
