package procfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// Dir is the directory of one process. On the live machine it is held open: it belongs to this
// process for good, so that files read one after the other never mix two owners of a reused pid.
type Dir struct {
	h   FS
	pid int
	fd  int // -1 in a captured host and while recording one
}

// OpenProc opens the directory of a process. The error matches ErrExited when there is none.
func (h FS) OpenProc(pid int) (Dir, error) {
	d := Dir{h: h, pid: pid, fd: -1}
	var err error
	if h.Root.Live() && !h.Root.Recorded() {
		d.fd, err = openat(unix.AT_FDCWD, d.path(""), unix.O_PATH|unix.O_DIRECTORY)
	} else if !h.Root.Exists(d.path("")) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Dir{}, d.Failed(err)
	}
	return d, nil
}

// Close lets go of the directory.
func (d Dir) Close() {
	if d.fd >= 0 {
		closeFD(d.fd) // nothing was written through it
	}
}

func (d Dir) path(name string) string {
	if name == "" {
		return "/proc/" + strconv.Itoa(d.pid)
	}
	return "/proc/" + strconv.Itoa(d.pid) + "/" + name
}

// Failed says which process an error is about, and makes it match ErrExited when the process is gone.
func (d Dir) Failed(err error) error {
	if sysroot.IsGone(err) && !d.Alive() {
		return fmt.Errorf("read process %d: %w", d.pid, ErrExited)
	}
	return fmt.Errorf("read process %d: %w", d.pid, err)
}

// Alive says whether the process is still there, a zombie included.
func (d Dir) Alive() bool {
	if d.fd >= 0 {
		return exists(d.fd, "stat")
	}
	return d.h.Root.Exists(d.path("stat"))
}

// Read returns the first limit bytes of a file of the process, in buf if it has the room.
func (d Dir) Read(buf []byte, name string, limit int) ([]byte, error) {
	if d.fd < 0 {
		return d.h.Root.ReadSome(d.path(name), int64(limit))
	}
	fd, err := d.openFile(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	if name == "stat" && limit >= cap(buf) && cap(buf) > maxStat {
		n, err := readOnce(fd, buf[:cap(buf)])
		return buf[:n], err
	}
	return readAll(fd, buf[:0], limit, isWholePiece(name) || name == "cmdline" || strings.HasPrefix(name, "fdinfo/"))
}

// maxStat is more than /proc/PID/stat has: 52 numbers and a name.
const maxStat = 1200

// isWholePiece says that a file of a process comes in one piece.
func isWholePiece(name string) bool { return name == "stat" || name == "status" || name == "cgroup" }

// readAll reads a file to its end without allocating when buf is large enough. With once a reading that does not fill
// the room is the whole: so it is with files of a process that the kernel writes in one piece (single_open in
// fs/proc/base.c), and that spares the call that finds the end.
func readAll(fd int, buf []byte, limit int, once bool) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, max(4096, cap(buf)))
		}
		n, err := Retry(func() (int, error) { return unix.Read(fd, buf[len(buf):cap(buf)]) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return buf, nil
		}
		if buf = buf[:len(buf)+n]; len(buf) >= limit {
			return buf[:limit], nil
		}
		if once && len(buf) < cap(buf) {
			return buf, nil
		}
	}
}

func (d Dir) openFile(name string, flags int) (int, error) {
	if isWholePiece(name) || name == "cmdline" {
		return openat(d.fd, name, flags)
	}
	return Retry(func() (int, error) {
		return unix.Openat(d.fd, name, flags|unix.O_CLOEXEC,
			0)
	}) // of some even that waits
}

// Link returns the text of a symbolic link of the process.
func (d Dir) Link(name string) (string, error) {
	if d.fd < 0 {
		return d.h.Root.Readlink(d.path(name))
	}
	var buf [unix.PathMax]byte
	n, err := readlinkat(d.fd, name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// Has says whether the directory has an entry. It is for the live machine: a captured host has none.
func (d Dir) Has(name string) bool { return d.fd >= 0 && exists(d.fd, name) }

// Allocated returns how many bytes a link of the process, such as map_files/FROM-TO, leads to: what the file has
// allocated, not how long it is. Of memory that is what is in use, swapped out or not; pool says that this is in pages
// of a pool (hugetlbfs). A captured host has no such links: the error matches fs.ErrNotExist.
func (d Dir) Allocated(name string) (bytes int64, pool bool, err error) {
	if d.fd < 0 {
		return 0, false, fs.ErrNotExist
	}
	fd, err := openat(d.fd, name, unix.O_PATH) // opens nothing: a device behind it is not asked
	if err != nil {
		return 0, false, err
	}
	defer closeFD(fd)
	var file unix.Stat_t
	var on unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &file), unix.Fstatfs(fd, &on)); err != nil {
		return 0, false, err
	}
	const block = 512 // stat(2), whatever the file system
	return file.Blocks * block, on.Type == unix.HUGETLBFS_MAGIC, nil
}

// list returns the names in a directory of the process.
func (d Dir) list(name string) ([]string, error) {
	if d.fd < 0 {
		return d.h.Root.ReadDir(d.path(name))
	}
	fd, err := d.openFile(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.path(name))
	defer f.Close()
	return f.Readdirnames(-1)
}

func (d Dir) environ() ([]string, error) {
	text, err := d.Read(nil, "environ", sysroot.MaxPseudoFile)
	if sysroot.IsGone(err) && d.Alive() {
		// A captured host comes without, and the memory of a zombie is gone: ESRCH on newer kernels (seen on 6.18).
		return nil, nil
	}
	return parseEnviron(text), err
}

// write replaces what a file of the process holds, with a single write(2) as the kernel wants it.
func (d Dir) write(name, value string) error {
	if d.fd < 0 {
		return d.h.Root.Inside(d.path(name), true, func(tree *os.Root, name string) error {
			f, err := tree.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString(value + "\n")
			return errors.Join(err, f.Close())
		})
	}
	fd, err := d.openFile(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n, err := unix.Write(fd, []byte(value))
	if err == nil && n != len(value) {
		err = io.ErrShortWrite
	}
	return err
}

// Retry repeats a system call that a signal interrupted; Go's own scheduler sends such signals.
func Retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
