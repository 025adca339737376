package sepolicy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/linux/sysroot"
)

// Host says where the store is, and how it is changed.
type Host struct {
	Root *sysroot.FS
	// Dir is the directory to write below; "" is a captured host, which cannot be changed.
	Dir string
	// Run runs a program by its full path; nil is the program itself.
	Run func(ctx context.Context, program string, args ...string) error
	// Files reads and writes labels; nil is the kernel.
	Files Labeller
}

// errNone is of a host without a policy.
var errNone = change.Gone("there is no policy store of SELinux here")

// Limit is for how long a program may work on the store: it compiles the whole policy.
const Limit = 15 * time.Minute

// store is the directory of the policy's store, "/var/lib/selinux/targeted".
func (h Host) store() (string, error) {
	from := selinux.Host{Root: h.Root}
	config, err := from.Store()
	if err != nil {
		return "", fmt.Errorf("read /etc/selinux/config: %w", err)
	}
	if config == "" {
		return "", errNone
	}
	dir, err := from.Kept(config)
	if err != nil {
		return "", errNone
	}
	return dir, nil
}

// local gives a file of the store with local settings, without comments, line by line as words. It waits for nobody:
// libsemanage puts a store that is complete in place of the one before.
func (h Host) local(name string) ([][]string, error) {
	dir, err := h.store()
	if err != nil {
		return nil, err
	}
	file := dir + "/active/" + name
	text, err := h.Root.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	var lines [][]string
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			lines = append(lines, words)
		}
	}
	return lines, nil
}

// idle gives the store once nobody changes it. libsemanage holds a lock (flock(2)) meanwhile, and a program that run
// has started one on the directory of the store, from before it begins until it has ended: also where whoever started
// it is gone.
func (h Host) idle(ctx context.Context) (string, error) {
	dir, err := h.store()
	if err != nil || h.Dir == "" {
		return dir, err
	}
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	for _, name := range []string{"", "/semanage.trans.LOCK", "/modules/semanage.trans.LOCK"} {
		if err := free(ctx, filepath.Join(h.Dir, dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// free waits until nobody has locked a file. One that is not there, or that this process may not open, is not locked.
func free(ctx context.Context, file string) error {
	lock, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer lock.Close()
	return locked(ctx, lock, unix.LOCK_SH)
}

// locked takes a lock as soon as nobody else has one that excludes it.
func locked(ctx context.Context, f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another program changes the policy: `fuser -v %s` says which: %w", f.Name(), ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Waiting is an actuator of this package as others write for it: what still changes the policy, for whoever is gone, is
// waited for before something is written or undone, and not ended in the middle. Reading waits for nobody.
type Waiting struct {
	change.Actuator
	Host
}

// Write sets the value.
func (w Waiting) Write(ctx context.Context, addr, value string) error {
	if _, err := w.idle(ctx); err != nil {
		return err
	}
	return w.Actuator.Write(ctx, addr, value)
}

// Undo gives the old value back.
func (w Waiting) Undo(ctx context.Context, c change.Change) (bool, error) {
	if _, err := w.idle(ctx); err != nil && !errors.Is(err, change.ErrGone) {
		return false, err
	}
	return w.Actuator.Undo(ctx, c)
}

// AfterBoot is the change: all of it outlives a boot.
func (Waiting) AfterBoot(c change.Change) change.Change { return c }

// programs by name, with where distributions have them and the package that brings them.
var programs = map[string]string{
	"semanage": "policycoreutils-python-utils (on EL 7 policycoreutils-python)", "semodule": "policycoreutils",
}

// run has a program change the store. One that was started is let end: a policy that is half written would be worse.
func (h Host) run(ctx context.Context, program string, args ...string) error {
	if h.Dir == "" {
		return change.ErrCaptured
	}
	dir, err := h.idle(ctx)
	if err != nil {
		return err
	}
	full := ""
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if full == "" && h.Root.Exists(dir+program) {
			full = dir + program
		}
	}
	switch {
	case full == "":
		return fmt.Errorf("%s is not in /usr/sbin: install %s", program, programs[program])
	case h.Run != nil:
		return h.Run(ctx, full, args...)
	case !h.Root.Live():
		return change.ErrCaptured
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Limit)
	defer cancel()
	busy, err := os.Open(filepath.Join(h.Dir, dir))
	if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	defer busy.Close()
	if err := locked(ctx, busy, unix.LOCK_EX); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, full, args...)
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) } // with all that it has started
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.ExtraFiles = []*os.File{busy}                     // the lock lasts as long as the program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us alone
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %q: %s: %w", strings.Join(append([]string{full}, args...), " "),
			strings.Join(strings.Fields(said.String()), " "), err)
	}
	return nil
}
