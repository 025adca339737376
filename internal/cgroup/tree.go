package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"bulkhead/internal/host"
)

// Mount is one mounted hierarchy as a Tree sees it. Paths are relative to the mount, "." is the
// mount itself. Errors carry a syscall.Errno. A kernel model implements it in tests.
type Mount interface {
	Open(dir string) (Directory, error)
	Mkdir(dir string) error
	Rmdir(dir string) error
	Close() error
}

// Directory is one open directory of a hierarchy. It stays usable after the group is gone; reading
// and writing then fail with ENOENT or ENODEV, as on the kernel.
type Directory interface {
	// ReadFile gives the whole file.
	ReadFile(name string) ([]byte, error)
	// WriteFile writes data with one write(2) to a file that exists already.
	WriteFile(name string, data []byte) error
	// Names gives the names inside, unsorted.
	Names() (dirs, files []string, err error)
	Close() error
}

// Options of a Tree. The zero value is the live host.
type Options struct {
	// Root is put before every mount point; a fixture's directory. A mount below it need not be a
	// real cgroup file system, and writing to a file there replaces its content.
	Root string
	// Open gives the mount of a hierarchy; nil opens its directory.
	Open func(host.Hierarchy) (Mount, error)
	// Processes answers what Move asks about a process; nil is /proc below Root.
	Processes Processes
	// RemoveWait bounds how long Remove retries while the kernel says EBUSY; 0 is 500 ms.
	RemoveWait time.Duration
	// FreezeWait bounds how long Freeze waits for the last task to stop; 0 is 5 s.
	FreezeWait time.Duration
}

// Tree reads and changes the cgroup hierarchies of one host. It is safe for concurrent use.
// A hierarchy is opened at its first use.
type Tree struct {
	options Options
	ids     []string // in the order given
	mounts  map[string]*mount
	// mistaken counts moves of the wrong process.
	mistaken atomic.Int64
	entries  entries
}

// mount is a hierarchy with its lazily opened Mount.
type mount struct {
	host.Hierarchy
	point string // absolute, with Options.Root before it
	open  func() (Mount, error)
}

// New gives the tree of the live host. Nothing is opened yet.
func New(hierarchies []host.Hierarchy) *Tree { return NewWith(hierarchies, Options{}) }

// NewWith is New with options.
func NewWith(hierarchies []host.Hierarchy, o Options) *Tree {
	if o.RemoveWait == 0 {
		o.RemoveWait = 500 * time.Millisecond
	}
	if o.FreezeWait == 0 {
		o.FreezeWait = 5 * time.Second
	}
	if o.Processes == nil {
		o.Processes = host.New(filepath.Join("/", o.Root)).Proc
	}
	t := &Tree{options: o, mounts: make(map[string]*mount, len(hierarchies))}
	for _, h := range hierarchies {
		m := &mount{Hierarchy: h, point: filepath.Join("/", o.Root, h.Mount)}
		m.open = sync.OnceValues(func() (Mount, error) {
			if o.Open != nil {
				return o.Open(h)
			}
			return openMount(m.point, h.Version, o.Root != "")
		})
		t.ids = append(t.ids, h.ID)
		t.mounts[h.ID] = m
	}
	return t
}

// Close closes the hierarchies that were opened. The tree must not be used afterwards.
func (t *Tree) Close() error {
	t.entries.close()
	var errs []error
	for _, id := range t.ids {
		if m, err := t.mounts[id].open(); err == nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// Hierarchies gives the hierarchies the tree was made with.
func (t *Tree) Hierarchies() []host.Hierarchy {
	out := make([]host.Hierarchy, len(t.ids))
	for i, id := range t.ids {
		out[i] = t.mounts[id].Hierarchy
	}
	return out
}

// Version is that of d's hierarchy, 1 or 2; 0 where the tree was made without it.
func (t *Tree) Version(d Dir) int {
	if m := t.mounts[d.Hierarchy]; m != nil {
		return m.Version
	}
	return 0
}

// Abs is the path of d on the host, for people and for messages.
func (t *Tree) Abs(d Dir) string {
	if m := t.mounts[d.Hierarchy]; m != nil {
		return path.Join(m.point, d.Path)
	}
	return d.String()
}

// mount finds the mount of d and checks d's path.
func (t *Tree) mount(op string, d Dir) (Mount, error) {
	m := t.mounts[d.Hierarchy]
	if m == nil {
		return nil, &Error{Op: op, Path: d.String(), Kind: ErrNoHierarchy}
	}
	if !strings.HasPrefix(d.Path, "/") || path.Clean(d.Path) != d.Path || strings.ContainsAny(d.Path, "\n\x00") {
		return nil, &Error{Op: op, Path: d.String(), Kind: ErrInvalid, Cause: errBadPath}
	}
	opened, err := m.open()
	if err != nil {
		return nil, &Error{Op: op, Path: m.point, Kind: ErrNoHierarchy, Cause: bare(err)}
	}
	return opened, nil
}

var (
	errBadPath = errors.New(`a path must start with "/" and hold no "..", empty element or line break`)
	errBadName = errors.New(`a file name must hold no "/"`)
)

// open opens d.
func (t *Tree) open(op string, d Dir) (Directory, error) {
	m, err := t.mount(op, d)
	if err != nil {
		return nil, err
	}
	dir, err := m.Open(d.relative())
	if err != nil {
		return nil, t.dirError(op, d, err)
	}
	return dir, nil
}

// dirError wraps what an operation on the directory itself answered.
func (t *Tree) dirError(op string, d Dir, err error) *Error {
	no := errno(err)
	kind := kindOf(no)
	if no == syscall.ENOENT || no == syscall.ENOTDIR {
		kind = ErrGone
	}
	e := &Error{Op: op, Path: t.Abs(d), Kind: kind, Cause: bare(err)}
	switch no {
	case syscall.EPERM, syscall.EACCES:
		e.Hint = "run as root"
	case syscall.EROFS:
		e.Hint = "the hierarchy is mounted read-only"
	}
	return e
}

// fileError wraps what an operation on file name of d answered. ENOENT and ENODEV mean either
// that the file or the device is not there, or that the whole group went away meanwhile.
func (t *Tree) fileError(op string, d Dir, name string, err error) *Error {
	no := errno(err)
	kind := kindOf(no)
	switch no {
	case syscall.ENOENT, syscall.ENODEV:
		if exists, _ := t.Exists(d); !exists {
			kind = ErrGone
		} else if no == syscall.ENOENT {
			kind = ErrNoKnob
		}
	case syscall.EACCES:
		if isCPUSet(name) && t.Version(d) == 1 {
			kind = ErrInvalid // measured on 6.18: a child outside its parent
		}
	}
	return &Error{Op: op, Path: path.Join(t.Abs(d), name), Kind: kind, Cause: bare(err)}
}

// Read gives the file's text without surrounding white space. With a Key it gives the rest of that
// device's line, "" when there is none. Errors: ErrNoKnob, ErrGone.
func (t *Tree) Read(f File) (string, error) {
	dir, err := t.openFile("read", f)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	text, err := dir.ReadFile(f.Name)
	if err != nil {
		return "", t.fileError("read", f.Dir, f.Name, err)
	}
	if f.Key != "" {
		return Line(string(text), f.Key), nil
	}
	return strings.TrimSpace(string(text)), nil
}

// openFile opens the directory of f after checking its name.
func (t *Tree) openFile(op string, f File) (Directory, error) {
	if !plainName(f.Name) {
		return nil, &Error{Op: op, Path: path.Join(t.Abs(f.Dir), f.Name), Kind: ErrInvalid, Cause: errBadName}
	}
	return t.open(op, f.Dir)
}

func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// ReadMany reads several files of one directory, each as Read does. Files that the directory lacks,
// or that this kernel does not offer (EOPNOTSUPP), are left out.
func (t *Tree) ReadMany(d Dir, names []string) (map[string]string, error) {
	dir, err := t.open("read", d)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	values := make(map[string]string, len(names))
	absent := false
	for _, name := range names {
		if !plainName(name) {
			return nil, &Error{Op: "read", Path: path.Join(t.Abs(d), name), Kind: ErrInvalid, Cause: errBadName}
		}
		text, err := dir.ReadFile(name)
		switch {
		case err == nil:
			values[name] = strings.TrimSpace(string(text))
		case errors.Is(err, fs.ErrNotExist):
			absent = true
		case errno(err) == syscall.EOPNOTSUPP:
		default:
			return nil, t.fileError("read", d, name, err)
		}
	}
	if absent && len(values) == 0 {
		// Nothing at all: the group may have vanished while its directory was open.
		if exists, err := t.Exists(d); err == nil && !exists {
			return nil, &Error{Op: "read", Path: t.Abs(d), Kind: ErrGone}
		}
	}
	return values, nil
}

// Write writes value to the file with one write(2); the file is never created. With a Key it writes
// "<key> <value>". An empty value empties a cpuset and is refused everywhere else: the kernel reads it as
// a memory limit of 0 (measured on 6.18).
// Errors: ErrNoKnob, ErrGone, ErrBusy, ErrInvalid.
func (t *Tree) Write(f File, value string) error {
	data, err := writeData(f, value)
	if err != nil {
		return &Error{Op: "write", Path: path.Join(t.Abs(f.Dir), f.Name), Value: value, Kind: ErrInvalid, Cause: err,
			wrote: true}
	}
	dir, err := t.openFile("write", f)
	if err != nil {
		return err
	}
	defer dir.Close()
	return t.writeIn(dir, f, data)
}

// writeIn writes to a file of an open directory.
func (t *Tree) writeIn(dir Directory, f File, data string) error {
	err := dir.WriteFile(f.Name, []byte(data))
	if err == nil {
		return nil
	}
	e := t.fileError("write", f.Dir, f.Name, err)
	e.Value, e.wrote = strings.TrimSuffix(data, "\n"), true
	if !errors.Is(e, ErrGone) {
		e.Hint = writeHint(f.Name, errno(err), t.Version(f.Dir) == 1)
	}
	return e
}

var (
	errEmptyValue = errors.New("an empty value is for cpuset.cpus and cpuset.mems only")
	errManyLines  = errors.New("a value is one line")
)

// writeData gives the bytes to write. A cpuset is emptied by a line break: a write of no bytes does not
// reach the kernel's handler.
func writeData(f File, value string) (string, error) {
	switch {
	case strings.Contains(value+f.Key, "\n"):
		return "", errManyLines
	case strings.TrimSpace(value) == "" && (!isCPUSet(f.Name) || f.Key != ""):
		return "", errEmptyValue
	case f.Key != "":
		return f.Key + " " + value, nil
	case value == "":
		return "\n", nil
	}
	return value, nil
}

// Make makes one directory; its parent must exist. Errors: ErrExists, ErrGone (the parent).
func (t *Tree) Make(d Dir) error {
	m, err := t.mount("make", d)
	if err != nil {
		return err
	}
	if d.Path == "/" {
		return &Error{Op: "make", Path: t.Abs(d), Kind: ErrExists}
	}
	if err := m.Mkdir(d.relative()); err != nil {
		e := t.dirError("make", d, err)
		if errno(err) == syscall.EAGAIN {
			e.Kind, e.Hint = ErrBusy, "cgroup.max.descendants or cgroup.max.depth of an ancestor is reached"
		}
		return e
	}
	return nil
}

// Remove removes one directory. EBUSY is retried for a moment, because a process that has just exited
// lingers in its group; a directory that has children is not retried. Errors: ErrBusy, ErrGone.
func (t *Tree) Remove(d Dir) error {
	m, err := t.mount("remove", d)
	if err != nil {
		return err
	}
	if d.Path == "/" {
		return &Error{Op: "remove", Path: t.Abs(d), Kind: ErrBusy, Hint: "the root of a hierarchy cannot be removed"}
	}
	hint := ""
	err = retry(t.options.RemoveWait, func() (again bool, err error) {
		err = m.Rmdir(d.relative())
		if errno(err) != syscall.EBUSY {
			return false, err
		}
		children, _ := t.Children(d)
		if len(children) > 0 {
			hint = fmt.Sprintf("remove its %d child groups first", len(children))
			return false, err
		}
		hint = "processes still sit in it; move them out first"
		return true, err
	})
	if err != nil {
		e := t.dirError("remove", d, err)
		if errno(err) == syscall.EBUSY {
			e.Hint = hint
		}
		return e
	}
	return nil
}

// retry calls try until it wants no more or the time is over, and gives its last answer. It waits
// 1 ms at first and at most 50 ms between two calls.
func retry(limit time.Duration, try func() (again bool, err error)) error {
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		again, err := try()
		if !again || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// Exists says whether the directory is there. A hierarchy that is not mounted is an error.
func (t *Tree) Exists(d Dir) (bool, error) {
	dir, err := t.open("look for", d)
	switch {
	case err == nil:
		return true, dir.Close()
	case errors.Is(err, ErrGone):
		return false, nil
	}
	return false, err
}

// namesIn lists d.
func namesIn(t *Tree, d Dir) (dirs, files []string, err error) {
	dir, err := t.open("list", d)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	dirs, files, err = dir.Names()
	if err != nil {
		return nil, nil, t.dirError("list", d, err)
	}
	slices.Sort(dirs)
	slices.Sort(files)
	return dirs, files, nil
}

// Children gives the names of d's child groups, sorted.
func (t *Tree) Children(d Dir) ([]string, error) {
	dir, err := t.open("list", d)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// Most groups have no child, and a listing costs a look at each of their files.
	if known, ok := dir.(interface{ Childless() bool }); ok && known.Childless() {
		return nil, nil
	}
	dirs, _, err := dir.Names()
	if err != nil {
		return nil, t.dirError("list", d, err)
	}
	slices.Sort(dirs)
	return dirs, nil
}

// Files gives the names of d's files, sorted.
func (t *Tree) Files(d Dir) ([]string, error) {
	_, files, err := namesIn(t, d)
	return files, err
}

// Walk gives d and every group below it, parents before their children, siblings sorted by name.
// A group that vanishes meanwhile is left out; d itself must be there, else ErrGone.
func (t *Tree) Walk(d Dir) ([]Dir, error) {
	children, err := t.Children(d)
	if err != nil {
		return nil, err
	}
	found := []Dir{d}
	for _, name := range children {
		below, err := t.Walk(d.Child(name))
		if err != nil && !errors.Is(err, ErrGone) {
			return nil, err
		}
		found = append(found, below...)
	}
	return found, nil
}
