// Package relaunch starts a server again as it was started before, where no service manager does: the same program with
// the same arguments, environment, directory, user, groups and limit of open files.
//
//	cmd, err := relaunch.Of(host.Proc, host.Root, process)   // while it runs
//	pid, err := cmd.Start()                                  // after it has stopped
//
// A Command is a plain value, which may be stored.
package relaunch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/rlimit"
)

// Command is how a process was started.
type Command struct {
	Path   string   `json:"path"` // of the program
	Args   []string `json:"args"` // with its name
	Env    []string `json:"env,omitempty"`
	Dir    string   `json:"dir"`
	UID    int      `json:"uid"`
	GID    int      `json:"gid"`
	Groups []int    `json:"groups"`
	// Files and FilesM are the soft and the hard limit of open files.
	Files  uint64 `json:"files"`
	FilesM uint64 `json:"files_hard"`
	Output string `json:"output"` // the regular file that its standard error goes to; "" for none
}

// Of reads how a process was started. The error says what could not be read, or cannot be done again.
func Of(proc procfs.FS, p procfs.Process) (c Command, err error) {
	switch {
	case p.ArgsTruncated || len(p.Args) == 0:
		return c, errors.New("its arguments cannot be read whole")
	case !filepath.IsAbs(p.Exe) || strings.HasSuffix(p.Exe, " (deleted)"):
		return c, errors.New("its program was removed or replaced since it was started")
	case p.ForeignNamespace:
		return c, errors.New("it runs in a container")
	}
	c = Command{Path: p.Exe, Args: p.Args}
	if _, err := os.Stat(c.Path); err != nil {
		return c, fmt.Errorf("its program cannot be found: %w", err)
	}
	who, err := proc.Identity(p.PID)
	if err != nil {
		return c, err
	}
	if !who.Sole {
		return c, errors.New("it changes between two users")
	}
	c.UID, c.GID, c.Groups = who.UID, who.Groups[0], who.Groups[1:]
	if c.Dir, err = proc.Cwd(p.PID); err == nil {
		c.Env, err = proc.Environ(p.PID)
	}
	if err != nil {
		return c, err
	}
	if c.Files, c.FilesM, err = openFiles(p.PID); err != nil {
		return c, fmt.Errorf("read its limit of open files: %w", err)
	}
	if name, err := os.Readlink(procfs.DescriptorPath(p.PID, 2)); err == nil && filepath.IsAbs(name) {
		if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
			c.Output = name
		}
	}
	return c, nil
}

// openFiles reads the limit of open files in /proc/PID/limits (proc_pid_limits(5)), which asks for no right of its own.
func openFiles(pid int) (soft, hard uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return 0, 0, err
	}
	l, there := rlimit.Parse(string(text))["Max open files"]
	if !there {
		return 0, 0, errors.New("it has no such line")
	}
	return l.Soft, l.Hard, nil
}

// output opens the file for its standard error with the rights of its user, in whose directories any link may lie. What
// cannot be opened so is done without.
func (c Command) output() (*os.File, error) {
	if c.Output != "" {
		runtime.LockOSThread() // these rights are of one thread
		defer runtime.UnlockOSThread()
		gid, err := unix.SetfsgidRetGid(c.GID)
		if err != nil {
			return nil, err
		}
		uid, err := unix.SetfsuidRetUid(c.UID)
		if err != nil {
			return nil, err
		}
		out, failed := os.OpenFile(c.Output, os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		_, err = unix.SetfsuidRetUid(uid)
		_, err2 := unix.SetfsgidRetGid(gid)
		if err := errors.Join(err, err2); err != nil || failed == nil {
			return out, err
		}
	}
	return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
}

// Start starts it in a session of its own, and does not wait for it.
func (c Command) Start() (pid int, err error) {
	out, err := c.output()
	if err != nil {
		return 0, fmt.Errorf("start %q: %w", c.Path, err)
	}
	defer out.Close()
	groups := []uint32{}
	for _, g := range c.Groups {
		groups = append(groups, uint32(g)) //nolint:gosec // of the kernel
	}
	cmd := &exec.Cmd{Path: c.Path, Args: c.Args, Env: c.Env, Dir: c.Dir, Stdout: out, Stderr: out,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{
			Uid: uint32(c.UID), Gid: uint32(c.GID), Groups: groups}}} //nolint:gosec // of the kernel
	var own syscall.Rlimit // a server reads its limit as it starts: it is born with it
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: c.Files, Max: c.FilesM}); err != nil {
		return 0, fmt.Errorf("give %q its limit of open files: %w", c.Path, err)
	}
	err = cmd.Start()
	err = errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &own))
	if err != nil {
		return 0, fmt.Errorf("start %q: %w", c.Path, err)
	}
	go func() { _ = cmd.Wait() }() // so that no zombie stays while this program runs
	return cmd.Process.Pid, nil
}

// Signal sends a signal to a process, if its number is still its own. One that is gone is no error.
func Signal(proc procfs.FS, id procfs.ID, signal syscall.Signal) error {
	hold, err := proc.Hold(id)
	if errors.Is(err, procfs.ErrExited) {
		return nil
	}
	if err != nil {
		return err
	}
	defer hold.Close()
	if err := syscall.Kill(id.PID, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send a signal to process %d: %w", id.PID, err)
	}
	return nil
}
