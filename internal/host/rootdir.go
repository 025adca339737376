package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
)

// ProcRootDir returns at most limit entries of a directory as a process sees it, by name: see ProcRootFile.
func (h *Host) ProcRootDir(pid int, name string, limit int) ([]fs.DirEntry, error) {
	entries, err := ask(h, fmt.Sprintf("%d %s", pid, name), func() ([]fs.DirEntry, error) { return h.procRootDir(pid, name, limit) })
	if err != nil {
		return nil, fmt.Errorf("list %q as process %d sees it: %w", name, pid, err)
	}
	return entries, nil
}

func (h *Host) procRootDir(pid int, name string, limit int) ([]fs.DirEntry, error) {
	root, err := h.readLink(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil && (h.live || !errors.Is(err, fs.ErrNotExist)) {
		return nil, exited(err)
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
	f, err := tree.OpenFile(inside, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0) // a pipe there is not opened
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	entries, err := f.ReadDir(limit)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, cause(err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}
