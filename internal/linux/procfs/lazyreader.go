package procfs

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// Peeker reads of processes only as much as somebody asks for, one after the other. It is not safe for concurrent use.
type Peeker struct {
	reader *procReader
	text   [unix.PathMax]byte
}

// NewPeeker returns a reader with buffers of its own.
func (h FS) NewPeeker() *Peeker { return &Peeker{reader: newProcReader(h, false)} }

// Executable returns what a process runs, as Process.Exe has it, "" when it cannot be read. Errors: ErrExited.
func (k *Peeker) Executable(pid int) (string, error) {
	h := k.reader.h
	d := Dir{h: h, pid: pid, fd: -1}
	var exe string
	var err error
	if h.Root.Live() {
		n, failed := readlinkat(unix.AT_FDCWD, d.path("exe"), k.text[:])
		exe, err = string(k.text[:max(n, 0)]), failed
	} else {
		exe, err = d.Link("exe")
	}
	if err != nil {
		return "", k.unreadable(d, err)
	}
	return strings.TrimSuffix(exe, " (deleted)"), nil
}

// unreadable tells a process that is gone from one whose executable is not to be had.
func (k *Peeker) unreadable(d Dir, err error) error {
	if err = d.Failed(err); errors.Is(err, ErrExited) {
		return err
	}
	return nil
}

// Peek reads the executable and the arguments of a process, and when more asks for it the user, the groups and the
// control groups too. Everything else of it stays empty, also the start time: it is for a first guess, soon after an
// event of the kernel. Errors: ErrExited.
func (k *Peeker) Peek(pid int, more func(*Process) bool) (Process, error) {
	dir, err := k.reader.h.OpenProc(pid)
	if err != nil {
		return Process{}, err
	}
	defer dir.Close()
	p := Process{ID: ID{PID: pid}}
	if err := k.reader.program(dir, &p, nil); err != nil {
		return Process{}, dir.Failed(err)
	}
	if !more(&p) {
		return p, nil
	}
	if err := errors.Join(k.reader.owner(dir, &p), k.reader.cgroup(dir, &p)); err != nil {
		return Process{}, dir.Failed(err)
	}
	return p, nil
}
