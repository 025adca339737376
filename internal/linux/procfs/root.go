package procfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// inRoot resolves a path below the root directory of a process, which a container or chroot(2) has elsewhere, and hands
// on that directory with what the path leads to: no symbolic link is left in it, and none led outside. A relative path
// begins at the working directory. Whatever waits for a dead disk or server gives ErrNoAnswer.
func inRoot[T any](h FS, pid int, name string, do func(tree *os.Root, inside string) (T, error)) (T, error) {
	return sysroot.WithTimeout(h.Root, fmt.Sprintf("%d %s", pid, name), func() (none T, err error) {
		root, err := h.Root.Readlink(fmt.Sprintf("/proc/%d/root", pid))
		if err != nil && (h.Root.Live() || !errors.Is(err, fs.ErrNotExist)) {
			return none, exited(err)
		}
		name := name
		if !path.IsAbs(name) {
			cwd, err := h.Cwd(pid)
			if err != nil {
				return none, err
			}
			if root != "/" {
				cwd = strings.TrimPrefix(cwd, root)
			}
			name = path.Join("/", cwd, name)
		}
		tree, err := rootOf(h.Root, pid, root)
		if err != nil {
			return none, exited(err)
		}
		defer tree.Close()
		inside, err := sysroot.Resolve(tree, name)
		if err != nil {
			return none, sysroot.Cause(err)
		}
		return do(tree, inside)
	})
}

// EvalSymlinks returns the real path behind a path, as a process sees it: below its own root directory. For a block
// device it gives the number too. Process 0 is the caller.
func (h FS) EvalSymlinks(pid int, name string) (real, device string, err error) {
	if pid == 0 && h.Root.Live() {
		pid = unix.Getpid()
	}
	type found struct{ real, device string }
	f, err := inRoot(h, pid, name, func(tree *os.Root, inside string) (f found, err error) {
		info, err := tree.Lstat(inside)
		if err != nil {
			return f, sysroot.Cause(err)
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Mode&syscall.S_IFMT == syscall.S_IFBLK {
			f.device = fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
		}
		f.real = path.Join("/", inside)
		return f, nil
	})
	return f.real, f.device, err
}

// ReadRootDir returns at most limit entries of a directory as a process sees it, by name.
func (h FS) ReadRootDir(pid int, name string, limit int) ([]fs.DirEntry, error) {
	entries, err := inRoot(h, pid, name, func(tree *os.Root, inside string) ([]fs.DirEntry, error) {
		// A pipe there is not opened.
		f, err := tree.OpenFile(inside, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, sysroot.Cause(err)
		}
		defer f.Close()
		entries, err := f.ReadDir(limit)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, sysroot.Cause(err)
		}
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		return entries, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list %q as process %d sees it: %w", name, pid, err)
	}
	return entries, nil
}

// ReadRootFile returns a file as a process sees it. It must be a regular one of at most limit bytes; anything else is
// not even opened, for a pipe would hold the reader up.
func (h FS) ReadRootFile(pid int, name string, limit int64) ([]byte, error) {
	data, err := inRoot(h, pid, name, func(tree *os.Root, inside string) ([]byte, error) {
		return readRegular(tree, inside, limit)
	})
	if err != nil {
		return nil, fmt.Errorf("read %q as process %d sees it: %w", name, pid, err)
	}
	return data, nil
}

// Sees says whether a process finds the same file or directory under a path, which has no symbolic links, as the
// caller.
func (h FS) Sees(pid int, name string) bool {
	own, err := os.Stat(h.Root.Path(name))
	if err != nil {
		return false
	}
	its, err := os.Stat(h.Root.Path(fmt.Sprintf("/proc/%d/root", pid)) + name)
	return err == nil && os.SameFile(own, its)
}

// rootOf opens the root directory of a process. A captured host has one tree for all.
func rootOf(r *sysroot.FS, pid int, root string) (*os.Root, error) {
	if r.Live() {
		return os.OpenRoot(fmt.Sprintf("/proc/%d/root", pid)) // the link leads into its mount namespace
	}
	tree, err := r.Tree()
	if err != nil {
		return nil, err
	}
	inside, err := sysroot.Resolve(tree, root)
	if err != nil {
		return nil, err
	}
	return tree.OpenRoot(inside)
}

func exited(err error) error {
	if sysroot.IsGone(err) {
		return ErrExited
	}
	return sysroot.Cause(err)
}

func readRegular(tree *os.Root, inside string, limit int64) ([]byte, error) {
	info, err := tree.Lstat(inside)
	if err != nil {
		return nil, sysroot.Cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is no regular file (%s)", info.Mode().Type())
	}
	// Somebody may put a pipe there between the two calls.
	f, err := tree.OpenFile(inside, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, sysroot.Cause(err)
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		return nil, errors.New("it changed while it was opened")
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, sysroot.Cause(err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("it is larger than %d bytes", limit)
	}
	return data, nil
}
