package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// ProcRootFile returns a file as a process sees it: below that process's own root directory, which
// a container or chroot(2) has elsewhere, and a relative path from its working directory. Every
// symbolic link is followed inside that root. The file must be a regular one of at most limit bytes;
// anything else is not even opened, for a pipe would hold the reader up.
func (h *Host) ProcRootFile(pid int, name string, limit int64) ([]byte, error) {
	data, err := ask(h, fmt.Sprintf("%d %s", pid, name), func() ([]byte, error) { return h.procRootFile(pid, name, limit) })
	if err != nil {
		return nil, fmt.Errorf("read %q as process %d sees it: %w", name, pid, err)
	}
	return data, nil
}

func (h *Host) procRootFile(pid int, name string, limit int64) ([]byte, error) {
	root, err := h.readLink(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil && (h.live || !errors.Is(err, fs.ErrNotExist)) {
		return nil, exited(err)
	}
	if !path.IsAbs(name) {
		cwd, err := h.Cwd(pid)
		if err != nil {
			return nil, err
		}
		if root != "/" {
			cwd = strings.TrimPrefix(cwd, root)
		}
		name = path.Join("/", cwd, name)
	}
	tree, err := h.procTree(pid, root)
	if err != nil {
		return nil, exited(err)
	}
	defer tree.Close()
	inside, err := resolve(tree, name)
	if err != nil {
		return nil, cause(err)
	}
	return readRegular(tree, inside, limit)
}

// procTree opens the root directory of a process. A captured host has one tree for all.
func (h *Host) procTree(pid int, root string) (*os.Root, error) {
	if h.live {
		return os.OpenRoot(fmt.Sprintf("/proc/%d/root", pid)) // the link leads into its mount namespace
	}
	tree, err := h.tree()
	if err != nil {
		return nil, err
	}
	inside, err := resolve(tree, root)
	if err != nil {
		return nil, err
	}
	return tree.OpenRoot(inside)
}

func exited(err error) error {
	if isGone(err) {
		return ErrExited
	}
	return cause(err)
}

func readRegular(tree *os.Root, inside string, limit int64) ([]byte, error) {
	info, err := tree.Lstat(inside)
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is no regular file (%s)", info.Mode().Type())
	}
	// Somebody may put a pipe there between the two calls.
	f, err := tree.OpenFile(inside, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		return nil, errors.New("it changed while it was opened")
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, cause(err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("it is larger than %d bytes", limit)
	}
	return data, nil
}
