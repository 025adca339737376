// Package sysroot reads files below a directory as if that were the root of the file system: "/" of this machine, or
// the top of a captured host. Symbolic links, absolute ones included, are followed inside it, and nothing outside is
// read.
//
// An FS is safe for concurrent use. WithTimeout bounds what a dead disk or server may hold up; Record keeps all that is
// read, for a fixture. The readers of one kernel area each (procfs, blockdev, sockets, …) are values over an FS.
package sysroot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// MaxPseudoFile bounds what is read of one file of /proc or /sys. A mountinfo of 10,000 mounts has 2 MB.
const MaxPseudoFile = 64 << 20

// maxLinks is how many symbolic links one path may go through, as in path_resolution(7).
const maxLinks = 40

// FS reads files below a directory as if it were the root of the file system: "/" of this machine, or the top of a
// captured one. It is safe for concurrent use.
type FS struct {
	root  string
	live  bool // root is "/": paths need no care, and process directories are held open by descriptor
	Tree  func() (*os.Root, error)
	waits waits
	// seen, when not nil, is told about everything that was read (see Record).
	seen *recording
}

// New returns the files below root. Nothing outside it is ever read: symbolic links, absolute ones included, are
// followed inside it.
func New(root string) *FS {
	root = filepath.Clean(root)
	r := &FS{root: root, live: root == "/"}
	r.Tree = sync.OnceValues(func() (*os.Root, error) { return os.OpenRoot(root) })
	return r
}

// Live says whether these are the files of this machine: the root is "/".
func (r *FS) Live() bool { return r.live }

// Path is where a file lies in the file system of this machine, for readers that take a path. They follow links.
func (r *FS) Path(name string) string { return filepath.Join(r.root, name) }

// Recorded says whether all that is read is kept for an archive.
func (r *FS) Recorded() bool { return r.seen != nil }

// Record returns a root of the same directory that keeps what is read through it, for Archive.
func (r *FS) Record() *FS {
	to := New(r.root)
	to.seen = &recording{files: map[string]string{}}
	return to
}

// Archive returns what was read so far as a txtar archive.
func (r *FS) Archive() string { return r.seen.archive() }

// ReadFile returns the whole of a file. The size that stat(2) gives for a pseudo-file says nothing.
func (r *FS) ReadFile(name string) ([]byte, error) { return r.ReadSome(name, MaxPseudoFile) }

// ReadSome returns the first limit bytes of a file.
func (r *FS) ReadSome(name string, limit int64) ([]byte, error) {
	f, err := r.reader(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= keptBuffer {
			buffers.Put(buf)
		}
	}()
	buf.Reset()
	if _, err := buf.ReadFrom(io.LimitReader(f, limit)); err != nil {
		return nil, err
	}
	data := bytes.Clone(buf.Bytes())
	r.seen.file(name, data)
	return data, nil
}

// keptBuffer is up to which size a buffer is kept.
const keptBuffer = 1 << 20

// reader opens a file to be read once.
func (r *FS) reader(name string) (io.ReadCloser, error) {
	if r.live {
		return openDescriptor(name)
	}
	return r.Open(name)
}

// buffers are what files are read into before their size is known: an agent reads thousands of files in every look.
//
// One that a large file has made large is not kept: for a read of a file in /proc/sys into 4 MiB the kernel answers
// that there is no memory (KMALLOC_MAX_SIZE).
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Open opens a file for reading.
func (r *FS) Open(name string) (f *os.File, err error) {
	if r.live {
		return os.Open(name)
	}
	err = r.Inside(name, true, func(tree *os.Root, name string) error {
		f, err = tree.Open(name)
		return err
	})
	return f, err
}

// Inside does something with a file of a captured host, by its path below the root. With follow a
// symbolic link at the end of the path is followed too.
func (r *FS) Inside(name string, follow bool, do func(tree *os.Root, name string) error) error {
	tree, err := r.Tree()
	if err != nil {
		return err
	}
	// os.Root follows links by itself but for absolute ones, which are rare.
	err = do(tree, strings.TrimPrefix(path.Clean(name), "/"))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	last := ""
	if !follow {
		name, last = path.Split(name)
	}
	real, err := Resolve(tree, name)
	if err != nil {
		return err
	}
	return do(tree, path.Join(real, last))
}

// ReadText returns a file without its trailing newline and blanks.
func (r *FS) ReadText(name string) (string, error) {
	data, err := r.ReadFile(name)
	return string(bytes.TrimSpace(data)), err
}

// ReadInt returns a file that holds one decimal number.
func (r *FS) ReadInt(name string) (int64, error) {
	text, err := r.ReadText(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse %s: %q is not a number", name, text)
	}
	return n, nil
}

// Readlink returns the text of a symbolic link.
func (r *FS) Readlink(name string) (string, error) {
	target, err := r.linkText(name)
	if err == nil {
		r.seen.link(name, target)
	}
	return target, err
}

func (r *FS) linkText(name string) (target string, err error) {
	if r.live {
		return os.Readlink(name)
	}
	err = r.Inside(name, false, func(tree *os.Root, name string) error {
		target, err = tree.Readlink(name)
		return err
	})
	return target, err
}

// ReadDir returns the names in a directory, in no particular order.
func (r *FS) ReadDir(name string) ([]string, error) {
	f, err := r.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	r.seen.dir(name, names)
	return names, nil
}

// Exists says whether there is something of that name, a dangling symbolic link included.
func (r *FS) Exists(name string) bool {
	info, err := r.Lstat(name)
	if err != nil {
		return false
	}
	r.seen.entry(name, !info.Mode().IsRegular())
	return true
}

// Lstat describes a file; a symbolic link is not followed.
func (r *FS) Lstat(name string) (info fs.FileInfo, err error) {
	if r.live {
		return os.Lstat(name)
	}
	err = r.Inside(name, false, func(tree *os.Root, name string) error {
		info, err = tree.Lstat(name)
		return err
	})
	return info, err
}

// EvalSymlinks returns the real path behind a path: every symbolic link in it followed, below the root. A path of
// which a part does not exist gives an error that matches fs.ErrNotExist, and one whose file system does not answer
// ErrNoAnswer, after some seconds.
func (r *FS) EvalSymlinks(name string) (string, error) {
	if !path.IsAbs(name) {
		return "", fmt.Errorf("evaluate path %q: it is not absolute", name)
	}
	tree, err := r.Tree()
	if err != nil {
		return "", fmt.Errorf("evaluate path %q: %w", name, err)
	}
	inside, err := WithTimeout(r, name, func() (string, error) { return Resolve(tree, name) })
	if err != nil {
		return "", fmt.Errorf("evaluate path %q: %w", name, Cause(err))
	}
	return path.Join("/", inside), nil
}

// Resolve follows every symbolic link of name as if tree were the root of the file system, and
// returns the path relative to tree, which has no link in it any more. os.Root alone refuses
// absolute links; it still guards every step, so that a change in between cannot lead outside. The
// error is a *fs.PathError.
func Resolve(tree *os.Root, name string) (string, error) {
	pending := strings.Split(name, "/")
	done := "."
	for links := 0; len(pending) > 0; {
		part := pending[0]
		pending = pending[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done) // "." stays "."
			continue
		}
		next := path.Join(done, part)
		info, err := tree.Lstat(next)
		if err != nil {
			return "", &fs.PathError{Op: "open", Path: name, Err: Cause(err)}
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "open", Path: name, Err: syscall.ELOOP}
		}
		target, err := tree.Readlink(next)
		if err != nil {
			return "", &fs.PathError{Op: "open", Path: name, Err: Cause(err)}
		}
		if path.IsAbs(target) {
			done = "."
		}
		pending = append(strings.Split(target, "/"), pending...)
	}
	return done, nil
}

// Cause strips the path of the step from an error, so that the whole path can be put there instead.
func Cause(err error) error {
	var step *fs.PathError
	if errors.As(err, &step) {
		return step.Err
	}
	return err
}

// IsGone says whether err means that a process went away: its directory is not there, or it was
// opened before and the process behind it has exited.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// Lines calls each with every line of text, without the newline, until it returns an error, which
// is wrapped with what was parsed and the line's number.
func Lines(what string, text []byte, each func(line string) error) error {
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if err := each(strings.TrimSuffix(line, "\n")); err != nil {
			return fmt.Errorf("parse %s: line %d: %w", what, number, err)
		}
	}
	return nil
}

// ReadOptional reads a file that not every device has; it is "" then.
func (r *FS) ReadOptional(name string) (string, error) {
	text, err := r.ReadText(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return text, err
}

// ErrNoAnswer says that a file system or a disk did not answer in time: a dead NFS server, a device-mapper device
// that is suspended, a multipath device without a path that queues. Whoever waits for one of these cannot be woken,
// not even by SIGKILL.
var ErrNoAnswer = errors.New("its file system has not answered for a while; the disk or the server below it may be " +
	"dead")

// errCrowded says that a question was not asked at all. What it is about may be well: each question to a dead disk
// keeps a thread.
var errCrowded = fmt.Errorf("it was not looked at, since %d questions to file systems that do not answer are open "+
	"already", mostWaiting)

// How long is waited for what a disk may hold up, and how many may wait at a time: each keeps a thread of the
// kernel's until the disk answers.
const (
	answerTime  = 2 * time.Second
	mostWaiting = 16
)

// waits are the questions that were not answered in time. One that is asked again while the first has no answer gets
// none either, at once.
type waits struct {
	mu   sync.Mutex
	open map[string]bool
}

// WithTimeout does something that looks at files of any file system, and waits for it only so long. What runs into its
// time goes on by itself, and its result is thrown away. Captured hosts answer always.
func WithTimeout[T any](h *FS, what string, do func() (T, error)) (T, error) {
	if !h.live {
		return do()
	}
	var none T
	w := &h.waits
	w.mu.Lock()
	asked, crowded := w.open[what], len(w.open) >= mostWaiting
	w.mu.Unlock()
	switch {
	case asked:
		return none, ErrNoAnswer
	case crowded:
		return none, errCrowded
	}
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		value, err := do()
		answered <- answer{value, err}
		w.mu.Lock()
		delete(w.open, what)
		w.mu.Unlock()
	}()
	late := time.NewTimer(answerTime)
	defer late.Stop()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-late.C:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case a := <-answered: // in this moment
		return a.value, a.err
	default:
	}
	if w.open == nil {
		w.open = map[string]bool{}
	}
	w.open[what] = true
	return none, fmt.Errorf("%w (%s)", ErrNoAnswer, answerTime)
}
