package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// rootMount is a Mount on a directory of this host. os.Root keeps every path inside it.
type rootMount struct {
	point   string // where it is mounted; root may be a mount of our own
	root    *os.Root
	top     *os.File // the same directory
	fixture bool     // not a real cgroup file system: writing replaces the content
}

// openMount opens a hierarchy's mount point. Unless it is a fixture, its file system must be the
// cgroup one of that version, so that a stale mount point never makes us write into a plain directory.
func openMount(point string, version int, fixture bool) (Mount, error) {
	root, err := openRoot(point, fixture)
	if err != nil {
		return nil, err
	}
	if !fixture {
		if err := checkMagic(root, version); err != nil {
			root.Close()
			return nil, err
		}
	}
	top, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	return &rootMount{point: point, root: root, top: top, fixture: fixture}, nil
}

// openRoot opens a mount point as a mount of our own that nothing is mounted below (open_tree(2), kernel 5.2): what
// somebody has mounted over a group hides it from paths, and its limits hold on. Where the kernel does not know the
// call or forbids it, the mount point itself is opened.
func openRoot(point string, fixture bool) (*os.Root, error) {
	if fixture {
		return os.OpenRoot(point)
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, point, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.OpenRoot(point)
	}
	defer unix.Close(fd)
	if root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
		return root, nil
	}
	return os.OpenRoot(point)
}

// checkMagic holds the file system below root against statfs(2)'s magic numbers.
func checkMagic(root *os.Root, version int) error {
	want := uint64(unix.CGROUP_SUPER_MAGIC)
	if version == 2 {
		want = unix.CGROUP2_SUPER_MAGIC
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &stat); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	// The width of Type depends on the architecture.
	if got := uint64(stat.Type); got != want {
		return fmt.Errorf("not a cgroup v%d file system (magic %#x, want %#x)", version, got, want)
	}
	return nil
}

func (m *rootMount) Open(dir string) (Directory, error) {
	f, err := m.openDir(dir)
	if err != nil {
		return nil, err
	}
	return &openDir{file: f, fixture: m.fixture, procs: -1}, nil
}

// openDir asks the kernel to keep the path inside the root with openat2(2), of kernel 5.6: one call whatever
// the depth. os.Root takes one for each element, and where the call is missing or forbidden it does the work.
func (m *rootMount) openDir(dir string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(int(m.top.Fd()), dir, &how)
		runtime.KeepAlive(m.top)
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), dir), nil
		case unix.EINTR, unix.EAGAIN: // the second: something was renamed meanwhile
		case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
			return nil, &os.PathError{Op: "openat2", Path: dir, Err: err}
		default:
			return m.root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
		}
	}
}

func (m *rootMount) Mkdir(dir string) error { return m.root.Mkdir(dir, 0o755) }

// Rmdir opens the parent inside the root and removes by name: os.Root.Remove would try unlink first.
func (m *rootMount) Rmdir(dir string) error {
	parent, err := m.root.OpenFile(path.Dir(dir), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer parent.Close()
	return unix.Unlinkat(int(parent.Fd()), path.Base(dir), unix.AT_REMOVEDIR)
}

func (m *rootMount) Close() error { return errors.Join(m.top.Close(), m.root.Close()) }

// openDir is an open directory. Its files are reached with openat(2) by plain names: cheaper than
// os.File, which would put every knob file into the runtime's poller.
type openDir struct {
	file    *os.File
	fixture bool
	procs   int // cgroup.procs, open since the first write to it; -1: not open
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 8<<10); return &b }}

func (d *openDir) openat(name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(int(d.file.Fd()), name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != unix.EINTR {
			runtime.KeepAlive(d.file)
			return fd, err
		}
	}
}

// ReadFile reads to the end: cgroup.procs of a large group does not fit one read.
func (d *openDir) ReadFile(name string) ([]byte, error) {
	fd, err := d.openat(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	text, err := readFrom(fd, name, *buf)
	return bytes.Clone(text), err
}

// readFrom reads an open file of this name from its beginning to its end, into buf as far as there is room. A control
// file is one record of the kernel's (kernfs_seq_start), so that what does not fill the room is all of it. Lists of
// processes and threads have a record for each, and are read until nothing comes.
func readFrom(fd int, name string, buf []byte) ([]byte, error) {
	list := name == procsFile || name == tasksFile || name == threadsFile
	text := buf[:0]
	for {
		if len(text) == cap(text) {
			text = slices.Grow(text, cap(text))
		}
		n, err := unix.Pread(fd, text[len(text):cap(text)], int64(len(text)))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		}
		text = text[:len(text)+n]
		if n == 0 || !list && len(text) < cap(text) {
			return text, nil
		}
	}
}

// WriteFile never creates: a missing controller must read as ENOENT, not as EACCES. EINTR is retried,
// because a signal (Go's own preemption is one) ends the kernel's reclaim loop of a v1 memory limit with it.
func (d *openDir) WriteFile(name string, data []byte) error {
	if name == procsFile && !d.fixture {
		return d.writeProcs(data)
	}
	flags := unix.O_WRONLY
	if d.fixture {
		flags |= unix.O_TRUNC
		data = append(bytes.Clone(data), '\n')
	}
	fd, err := d.openat(name, flags)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if name == memoryHigh {
		return reclaiming(func() error { return writeAll(fd, data) })
	}
	return writeAll(fd, data)
}

// writeProcs keeps cgroup.procs open: a directory that is kept takes one process after the other.
func (d *openDir) writeProcs(data []byte) (err error) {
	if d.procs < 0 {
		if d.procs, err = d.openat(procsFile, unix.O_WRONLY); err != nil {
			d.procs = -1
			return err
		}
	}
	return writeAll(d.procs, data)
}

// writeAll writes with one write(2), again when a signal came before anything was written.
func writeAll(fd int, data []byte) error {
	for {
		n, err := unix.Write(fd, data)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n != len(data):
			return io.ErrShortWrite
		default:
			return nil
		}
	}
}

func (d *openDir) Names() (dirs, files []string, err error) {
	entries, err := d.file.ReadDir(-1)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, e.Name())
		} else {
			files = append(files, e.Name())
		}
	}
	return dirs, files, nil
}

// Childless says that there is surely no directory inside: kernfs keeps the link count of a directory at
// two more than its subdirectories. False means nothing.
func (d *openDir) Childless() bool {
	if d.fixture {
		return false
	}
	var stat unix.Stat_t
	err := unix.Fstat(int(d.file.Fd()), &stat)
	runtime.KeepAlive(d.file)
	return err == nil && stat.Nlink == 2
}

func (d *openDir) Close() error {
	if d.procs >= 0 {
		_ = unix.Close(d.procs) // write(2) has told what there was to tell
		d.procs = -1
	}
	return d.file.Close()
}
