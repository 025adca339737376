package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/bench/pagesize"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/host"
)

// benchName names the lock of a run, the link to what it left, and what it makes beside groups.
const benchName = "bulkhead-bench"

// workPrefix begins the name of every work directory.
const workPrefix = "bulkhead-bench-"

// lockMachine makes sure that one run goes on at a time, whoever started it and wherever: two would
// measure each other, and they share their root group. The lock is a name in the abstract namespace of
// unix sockets (unix(7)), which is gone with the process and leaves no file behind.
func lockMachine(name string) (io.Closer, error) {
	l, err := net.Listen("unix", "@"+name)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &process.RequirementError{Reason: "another proof is running on this machine",
			Hint: "wait until it has ended", Reach: process.EveryScenario}
	}
	if err != nil {
		return nil, fmt.Errorf("lock out other runs: %w", err)
	}
	return l, nil
}

// newWorkDir makes a work directory below parent and locks it for as long as the returned file is
// open: a lock that is free marks a directory whose run was killed. Others may enter it, because
// the server runs as another user; what is in it decides for itself.
func newWorkDir(parent string) (dir string, lock *os.File, err error) {
	dir, err = os.MkdirTemp(parent, workPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("make the work directory: %w", err)
	}
	lock, err = lockDir(dir)
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		return "", nil, fmt.Errorf("make the work directory: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	return dir, lock, nil
}

// errLocked says that the run which made a directory is still running.
var errLocked = errors.New("locked by a run that goes on")

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errLocked
		}
		return nil, errors.Join(fmt.Errorf("lock %q: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

// pointer is a link to the work directory of the run that goes on, for the next one, which may be told to work
// elsewhere. One runs at a time. It is gone after a reboot, and so are the groups then.
const pointer = "/run/" + benchName

// pointAt leaves the link. Without a /run that can be written to the next run looks only where it works itself.
func pointAt(dir string) error {
	err := os.Symlink(dir, pointer)
	if errors.Is(err, fs.ErrExist) {
		err = errors.Join(os.Remove(pointer), os.Symlink(dir, pointer))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EROFS) {
		return nil
	}
	return err
}

// unpoint takes the link away, if it is there.
func unpoint() error {
	if err := os.Remove(pointer); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EROFS) {
		return err
	}
	return nil
}

// sweep takes away what runs that were killed left below parent or where the last one worked: first the groups, by the
// originals they kept, then the directory. One that still runs is an error: two of them would measure each other.
func sweep(ctx context.Context, parent, binary string, n *process.Supervisor) error {
	left, err := filepath.Glob(filepath.Join(parent, workPrefix+"*"))
	if err != nil {
		return fmt.Errorf("look for leftovers in %q: %w", parent, err)
	}
	last, err := os.Readlink(pointer)
	if err == nil && strings.HasPrefix(filepath.Base(last), workPrefix) && !slices.Contains(left, last) {
		left = append(left, last)
	}
	for _, dir := range left {
		if err := sweepOne(ctx, dir, binary, n); err != nil {
			return fmt.Errorf("take away what an earlier run left in %q: %w", dir, err)
		}
	}
	return nil
}

func sweepOne(ctx context.Context, dir, binary string, n *process.Supervisor) (err error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.IsDir() {
		return err
	}
	// Anybody may make a name in /var/tmp; only root's are ours.
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != 0 {
		return nil
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := process.EndMarked(ctx, dir); err != nil {
		return err
	}
	apart, err := markedApart(dir)
	if err != nil {
		return err
	}
	if apart {
		// Its interfaces are gone with their namespaces: one of the same name here would be another one.
		if n, err = process.NewIsolated(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, n.Close()) }()
	}
	p := newSystemUnderTest(binary, dir, n)
	_, err = os.Stat(p.state)
	p.unreleased = err == nil
	if err := p.releaseAll(ctx); err != nil {
		return err
	}
	if err := pagesize.Recover(ctx, host.New("/"), dir); err != nil {
		return err
	}
	swap := process.Programs{}
	if swap.AddIfThere("swapon") && swap.AddIfThere("swapoff") {
		if err := takeSwap(ctx, filepath.Join(dir, swapName), swap, n); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}
