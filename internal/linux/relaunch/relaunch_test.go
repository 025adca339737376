package relaunch

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// A process is started again with its arguments, environment, directory, limit and output, and stopped by a signal.
func TestOfAndStart(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a process of another user is started by root alone")
	}
	dir, err := os.MkdirTemp("", "relaunch") // where any user gets to
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	output := filepath.Join(dir, "output")
	out, err := os.OpenFile(output, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Chmod(0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(shell, "-c", `echo "$1 $NOTE $(pwd) $(id -u) $(ulimit -n)" >&2; read x <fifo`, "name",
		"an argument")
	cmd.Dir, cmd.Env, cmd.Stderr = dir, []string{"NOTE=two words", "PATH=/usr/bin:/bin"}, out
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	proc := procfs.New(sysroot.New("/"))
	lines := func(n int) []string {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			text, _ := os.ReadFile(output)
			if list := strings.Split(strings.TrimSpace(string(text)), "\n"); len(list) >= n && list[0] != "" {
				return list
			}
			if time.Now().After(end) {
				t.Fatalf("no line %d in %q", n, text)
			}
		}
	}
	lines(1)
	procs, err := proc.Processes(procfs.Options{PIDs: []int{cmd.Process.Pid}})
	if err != nil || len(procs) != 1 {
		t.Fatalf("%v, %v", procs, err)
	}
	c, err := Of(proc, procs[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := Signal(proc, procs[0].ID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := Signal(proc, procs[0].ID, syscall.SIGKILL); err != nil {
		t.Errorf("a signal to one that is gone: %v", err)
	}
	c.Files, c.UID, c.GID, c.Groups = 333, 65534, 65534, nil
	pid, err := c.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	for name, want := range map[string]string{output: output, "/etc/shadow": os.DevNull, "": os.DevNull} {
		c.Output = name
		if f, err := c.output(); err != nil || f.Name() != want {
			t.Errorf("for %q it has %v, %v", name, f, err)
		} else if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if got, want := lines(2)[1], "an argument two words "+dir+" 65534 333"; got != want {
		t.Errorf("it was started as %q, want %q", got, want)
	}
	if _, err := Of(proc, procs[0]); err == nil {
		t.Error("one that is gone can be started again")
	}
}
