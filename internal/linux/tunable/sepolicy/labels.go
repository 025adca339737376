package sepolicy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
)

// Labeller reads and writes the label of what a descriptor is open on, also with O_PATH.
type Labeller interface {
	Label(fd int) (string, error)
	SetLabel(fd int, label string) error
}

// attributes are the labels of the kernel.
type attributes struct{}

const attribute = "security.selinux"

// proc is the way to a file by its descriptor: unlike a name it cannot become another file meanwhile, and of a symbolic
// link it is the link itself.
func proc(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func (attributes) Label(fd int) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Getxattr(proc(fd), attribute, buf)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(buf[:n]), "\x00"), nil
}

func (attributes) SetLabel(fd int, label string) error {
	return unix.Setxattr(proc(fd), attribute, append([]byte(label), 0), 0)
}

// Labels is the actuator of KindLabels. What it reads is the context of the path, and on a line each that of whatever
// below has another one than the directory that it is in:
//
//	system_u:object_r:mysqld_db_t:s0
//	system_u:object_r:mysqld_var_run_t:s0 "mysql.sock" socket
//
// What it writes is such a text, or one with types in place of contexts, which leaves user, role and range as they are,
// as restorecon(8) does: "mysqld_db_t" is that type for all of it. A file that was not there gets what its directory
// had. No part of the path may be a symbolic link, none below is followed, and what is mounted below is left out.
// A file below that has more than one name (hard links) may be outside of the tree, too: to write types is an error
// then, and else it is no part of the tree.
type Labels struct{ Host }

// listing is such a text: the label of the path is that of "".
type listing struct {
	labels  map[string]string
	order   []string
	sockets map[string]bool
}

func newListing() listing { return listing{labels: map[string]string{}, sockets: map[string]bool{}} }

const socket = " socket"

func parseListing(text string) (l listing, err error) {
	l = newListing()
	for i, line := range strings.Split(text, "\n") {
		label, quoted, more := strings.Cut(line, " ")
		rel := ""
		quoted, isSocket := strings.CutSuffix(quoted, socket)
		if more {
			rel, err = strconv.Unquote(quoted)
		}
		if label == "" || more != (i > 0) || err != nil || more && (rel == "" || path.Clean("/" + rel)[1:] != rel) {
			return l, fmt.Errorf("%q is no label of a file", line)
		}
		l.set(rel, label)
		l.sockets[rel] = isSocket
	}
	return l, nil
}

func (l *listing) set(rel, label string) {
	l.labels[rel] = label
	l.order = append(l.order, rel)
}

// of is the label of a path: its own, or that of the nearest directory above that has one.
func (l *listing) of(rel string) string {
	for {
		if label, own := l.labels[rel]; own {
			return label
		}
		rel = above(rel)
	}
}

func above(rel string) string {
	if dir := path.Dir(rel); dir != "." {
		return dir
	}
	return ""
}

func (l *listing) String() string {
	var lines []string
	for _, rel := range l.order {
		if rel == "" {
			lines = append(lines, l.labels[rel])
			continue
		}
		line := l.labels[rel] + " " + strconv.Quote(rel)
		if l.sockets[rel] {
			line += socket
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// isContext says whether a label is a context, and not only a type.
func isContext(label string) bool { return strings.Contains(label, ":") }

func typeOf(label string) string {
	if parts := strings.SplitN(label, ":", 4); len(parts) >= 3 {
		return parts[2]
	}
	return label
}

// types is the listing with types alone.
func (l *listing) types() listing {
	short := newListing()
	for _, rel := range l.order {
		kind := typeOf(l.labels[rel])
		if rel == "" || kind != short.of(above(rel)) {
			short.set(rel, kind)
		}
	}
	return short
}

// Read gives the labels of the tree.
func (l Labels) Read(ctx context.Context, tree string) (string, error) {
	if err := checkTree(tree); err != nil {
		return "", err
	}
	if l.Files == nil && !l.Root.Live() {
		return "", change.ErrCaptured
	}
	found := newListing()
	_, err := l.Each(ctx, tree, func(f File) error {
		if f.Path == "" || !f.Several && f.Label != found.of(above(f.Path)) {
			found.set(f.Path, f.Label)
			found.sockets[f.Path] = f.Class == "sock_file"
		}
		return nil
	})
	return found.String(), err
}

// File is a file below a tree, or the tree itself.
type File struct {
	Path  string // below the tree; "" is itself
	Label string
	Class string // of SELinux: "file", "dir", "lnk_file" and so on
	User  uint32 // who owns it, a number of a user
	// Several says that it has more than one name.
	Several bool
}

// errSeveral is of a file with several names.
var errSeveral = errors.New("it has another name (a hard link), which would get the label, too: `find / -xdev " +
	"-samefile` finds it")

func several(st *unix.Stat_t) bool { return st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR }

var classes = map[uint32]string{unix.S_IFREG: "file", unix.S_IFDIR: "dir", unix.S_IFLNK: "lnk_file",
	unix.S_IFSOCK: "sock_file", unix.S_IFIFO: "fifo_file", unix.S_IFCHR: "chr_file", unix.S_IFBLK: "blk_file"}

// Each visits a tree, a directory before what is in it. Mounted are the places below it that are left out, as something
// is mounted there. The error matches change.ErrGone where the tree is not there, or has no labels.
func (l Labels) Each(ctx context.Context, tree string, visit func(f File) error) (mounted []string, err error) {
	return l.walk(ctx, tree, func(rel string, fd int, st *unix.Stat_t) error {
		label, err := l.files().Label(fd)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
			return change.Gone("the file system has no labels, or this kernel no SELinux")
		}
		if err != nil {
			return err
		}
		if rel == "" && several(st) { // nothing is read, and so nothing undone
			return change.Gone(tree + ": " + errSeveral.Error())
		}
		f := File{Path: rel, Label: label, Class: classes[st.Mode&unix.S_IFMT], User: st.Uid, Several: several(st)}
		return visit(f)
	})
}

func (l Labels) files() Labeller {
	if l.Files != nil {
		return l.Files
	}
	return attributes{}
}

// Write gives the tree labels.
func (l Labels) Write(ctx context.Context, tree, value string) error {
	want, err := parseListing(value)
	if err == nil {
		err = checkTree(tree)
	}
	switch {
	case err != nil:
		return err
	case l.Dir == "":
		return change.ErrCaptured
	}
	byType := !isContext(want.labels[""])
	_, err = l.walk(ctx, tree, func(rel string, fd int, st *unix.Stat_t) error {
		now, err := l.files().Label(fd)
		if err != nil {
			return err
		}
		if several(st) {
			if byType || rel == "" {
				return errSeveral
			}
			return nil
		}
		label := want.of(rel)
		if parts := strings.SplitN(now, ":", 4); byType && len(parts) >= 3 {
			parts[2] = label
			label = strings.Join(parts, ":")
		}
		if label == now {
			return nil
		}
		return l.files().SetLabel(fd, label)
	})
	return err
}

// Same compares labels; where only types are wanted, only types. A running server goes on making files: what want has
// no line for is compared by its type, and not at all where it is a socket, which has the type that the policy gives
// sockets of that server. On a host files that are gone are left out, and such as have several names by now.
func (l Labels) Same(tree, want, got string) bool {
	if want == got {
		return true
	}
	w, err1 := parseListing(want)
	g, err2 := parseListing(got)
	if err1 != nil || err2 != nil {
		return false
	}
	if l.Root != nil {
		w.leave(func(rel string) bool { return rel != "" && !l.there(path.Join(tree, rel)) })
	}
	byType := !isContext(w.labels[""])
	g.leave(func(rel string) bool {
		_, listed := w.labels[rel]
		return !listed && (g.sockets[rel] || !byType && typeOf(g.labels[rel]) == typeOf(w.of(rel)))
	})
	w.sockets, g.sockets = nil, nil
	if byType {
		w, g = w.types(), g.types()
	}
	return w.String() == g.String()
}

// leave takes lines out.
func (l *listing) leave(out func(rel string) bool) {
	l.order = slices.DeleteFunc(l.order, func(rel string) bool {
		is := out(rel)
		if is {
			delete(l.labels, rel)
		}
		return is
	})
}

// there says whether a file is there with one name.
func (l Labels) there(file string) bool {
	info, err := l.Root.Lstat(file)
	if err != nil {
		return false
	}
	st, is := info.Sys().(*syscall.Stat_t)
	return !is || info.IsDir() || st.Nlink < 2
}

// Human is a value for people: the label of the path, and how many below have another one.
func Human(value string) string {
	first, _, more := strings.Cut(value, "\n")
	if !more {
		return value
	}
	return fmt.Sprintf("%s, and %d others below it", first, strings.Count(value, "\n"))
}

// Undo gives the tree its labels back. A tree that is gone has none.
func (l Labels) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, l, c)
}

// AfterBoot is the change: the labels are still there.
func (Labels) AfterBoot(c change.Change) change.Change { return c }

// open opens a path, of which no part may be a symbolic link: whoever may write to a directory on the way could lead to
// other files by one.
func (l Labels) open(tree string) (fd int, err error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if fd, err = unix.Open(l.Root.Path("/"), flags|unix.O_DIRECTORY, 0); err != nil {
		return fd, fmt.Errorf("open /: %w", err)
	}
	at := "/"
	for _, part := range strings.Split(strings.TrimPrefix(tree, "/"), "/") {
		next, err := unix.Openat(fd, part, flags, 0)
		unix.Close(fd)
		at = path.Join(at, part)
		var st unix.Stat_t
		if err == nil {
			if err = unix.Fstat(next, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK && at != tree {
				err = change.Gone(at + " is a symbolic link, which is not followed")
			}
			if err != nil {
				unix.Close(next)
			}
		}
		switch {
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
			return -1, change.Gone("there is no " + tree)
		case errors.Is(err, change.ErrGone):
			return -1, err
		case err != nil:
			return -1, fmt.Errorf("open %s: %w", at, err)
		}
		fd = next
	}
	return fd, nil
}

// walk visits the tree, a directory before what is in it, in order of names. What goes away meanwhile is left out, and
// so is what is mounted below, which it gives.
func (l Labels) walk(ctx context.Context, tree string, visit func(rel string, fd int, st *unix.Stat_t) error,
) (mounted []string, err error) {
	fd, err := l.open(tree)
	if err != nil {
		return nil, err
	}
	w := walker{ctx: ctx, tree: tree, visit: visit}
	err = w.enter("", fd)
	return w.mounted, err
}

type walker struct {
	ctx     context.Context
	tree    string
	device  uint64
	mount   uint64
	mounted []string
	visit   func(rel string, fd int, st *unix.Stat_t) error
}

// mountOf is the number of the mount that a descriptor is on; 0 where the kernel does not tell it. A directory that is
// mounted once more (mount --bind) is on the same device.
func mountOf(fd int) uint64 {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID != 0 { // since Linux 5.8
		return st.Mnt_id
	}
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), "mnt_id:") // since Linux 3.15
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0
	}
	id, _ := strconv.ParseUint(fields[0], 10, 64)
	return id
}

// enter visits what a descriptor is open on, and closes it.
func (w *walker) enter(rel string, fd int) error {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at %s: %w", filepath.Join(w.tree, rel), err)
	}
	mount := mountOf(fd)
	if rel == "" {
		w.device, w.mount = st.Dev, mount
	}
	if st.Dev != w.device || mount != w.mount {
		w.mounted = append(w.mounted, filepath.Join(w.tree, rel))
		return nil
	}
	if err := errors.Join(w.ctx.Err(), w.visit(rel, fd, &st)); err != nil {
		if errors.Is(err, change.ErrGone) {
			return err
		}
		return fmt.Errorf("label of %s: %w", filepath.Join(w.tree, rel), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	at, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", filepath.Join(w.tree, rel), err)
	}
	dir := os.NewFile(uintptr(at), rel)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list %s: %w", filepath.Join(w.tree, rel), err)
	}
	slices.Sort(names)
	for _, name := range names {
		child, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", filepath.Join(w.tree, rel, name), err)
		}
		if err := w.enter(path.Join(rel, name), child); err != nil {
			return err
		}
	}
	return nil
}
