//go:build root

package procfs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

func TestLiveForeignNamespace(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	startCommand(t, cmd)
	if p := live(t, cmd.Process.Pid); !p.ForeignNamespace || p.Comm != "sleep" {
		t.Errorf("a process in a pid namespace of its own: %+v", p)
	}
}

// ownerVariable makes a copy of the test binary a process that is not dumpable and belongs to somebody with other
// groups.
const ownerVariable = "BULKHEAD_TEST_HOST_OWNER"

// The numbers that it takes on are in no file of the host.
const ownerUID, ownerGID, ownerGroup = 4123461, 4123462, 4123463

func init() {
	if os.Getenv(ownerVariable) == "" {
		return
	}
	err := errors.Join(syscall.Setgroups([]int{ownerGroup}), syscall.Setresgid(ownerGID, ownerGID, ownerGID),
		syscall.Setresuid(ownerUID, ownerUID, ownerUID),
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	if err == nil {
		_, err = fmt.Println("ready")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	time.Sleep(time.Hour)
}

// A scanner reads no status, and tells owners and namespaces all the same.
func TestLiveScannerTellsOwners(t *testing.T) {
	owned := exec.Command("/proc/self/exe")
	owned.Env, owned.Stderr = append(os.Environ(), ownerVariable+"=1"), os.Stderr
	out, err := owned.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	startCommand(t, owned)
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatal(err)
	}
	foreign := exec.Command("sleep", "600")
	foreign.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	startCommand(t, foreign)
	pids := []int{owned.Process.Pid, foreign.Process.Pid, start(t, "sleep", "600")}
	h := host.New("/")
	s := h.Proc.NewScanner()
	defer s.Close()
	all, _, err := s.Look(true)
	if err != nil {
		t.Fatal(err)
	}
	for i, pid := range pids {
		whole, seen := live(t, pid), procfs.Process{}
		for _, p := range all {
			if p.PID == pid {
				seen = p
			}
		}
		if seen.UID != whole.UID || seen.GID != whole.GID || seen.ForeignNamespace != whole.ForeignNamespace ||
			seen.Groups != nil {
			t.Errorf("process %d: %+v, its status says %+v", i, seen, whole)
		}
		if seen.ForeignNamespace != (pid == foreign.Process.Pid) ||
			(seen.UID == ownerUID && seen.GID == ownerGID) != (pid == owned.Process.Pid) {
			t.Errorf("process %d: %+v", i, seen)
		}
	}
	if groups, err := h.Proc.Groups(owned.Process.Pid); err != nil || !slices.Equal(groups, []int{ownerGroup}) {
		t.Errorf("groups %v, %v", groups, err)
	}
	if _, err := h.Proc.Groups(1 << 30); !errors.Is(err, procfs.ErrExited) {
		t.Errorf("groups of no process: %v", err)
	}
}

func TestLiveRealtime(t *testing.T) {
	pid := start(t, "sleep", "600")
	if live(t, pid).RT {
		t.Error("an ordinary process is real-time")
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(pid, &attr, 0); err != nil {
		t.Fatal(err)
	}
	h := host.New("/")
	tasks, err := h.Proc.Tasks(pid)
	if err != nil || len(tasks) != 1 || !tasks[0].RT || !live(t, pid).RT {
		t.Errorf("under SCHED_FIFO: %+v, %v, %+v", tasks, err, live(t, pid))
	}
}

// rootVariable makes a copy of the test binary a process that has that root directory and waits there.
const rootVariable = "BULKHEAD_TEST_HOST_ROOT"

func init() {
	root := os.Getenv(rootVariable)
	if root == "" {
		return
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir("/home")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	time.Sleep(time.Hour)
}

// A process with another root directory: its absolute links count from there, not from ours.
func TestLiveProcRootFile(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"etc", "home"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/hostname"), []byte("inner"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(root, "home/link")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = append(os.Environ(), rootVariable+"="+root), os.Stderr
	startCommand(t, cmd)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", cmd.Process.Pid)); cwd == root+"/home" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the process does not change its root directory")
		}
	}
	for _, name := range []string{"/home/link", "link", "../home/link", "/../../../home/link"} {
		got, err := host.New("/").Proc.ReadRootFile(cmd.Process.Pid, name, 100)
		if err != nil || string(got) != "inner" {
			t.Errorf("%s is %q, %v, want inner", name, got, err)
		}
	}
}

// Who is held is told apart from whoever comes after it, by then without a number to go by.
func TestLiveHeld(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	startCommand(t, cmd)
	pid := cmd.Process.Pid
	list, held, err := host.New("/").Proc.NewScanner().ReadHeld([]int{pid}, func(string) bool { return false })
	defer held.Close()
	if err != nil || len(list) != 1 || list[0].Comm != "sleep" || list[0].Args != nil || !held.Same(pid) {
		t.Fatalf("%+v, %v, the same: %t", list, err, held.Same(pid))
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if held.Same(pid) {
		t.Error("it is gone, and the same")
	}
}
