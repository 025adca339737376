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
//	system_u:object_r:mysqld_var_run_t:s0 "mysql.sock"
//
// What it writes is such a text, or one with types in place of contexts, which leaves user, role and range as they are,
// as restorecon(8) does: "mysqld_db_t" is that type for all of it. A file that was not there gets what its directory
// had. It follows no symbolic link and stays on the file system of the path.
type Labels struct{ Host }

// listing is such a text: the label of the path is that of "".
type listing struct {
	labels map[string]string
	order  []string
}

func parseListing(text string) (l listing, err error) {
	l.labels = map[string]string{}
	for i, line := range strings.Split(text, "\n") {
		label, quoted, more := strings.Cut(line, " ")
		rel := ""
		if more {
			rel, err = strconv.Unquote(quoted)
		}
		if label == "" || more != (i > 0) || err != nil || more && (rel == "" || path.Clean("/" + rel)[1:] != rel) {
			return l, fmt.Errorf("%q is no label of a file", line)
		}
		l.set(rel, label)
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
		lines = append(lines, l.labels[rel]+" "+strconv.Quote(rel))
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
	short := listing{labels: map[string]string{}}
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
	found := listing{labels: map[string]string{}}
	err := l.walk(ctx, tree, func(rel string, fd int, _ *unix.Stat_t) error {
		label, err := l.files().Label(fd)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
			err = change.Gone("the file system has no labels, or this kernel no SELinux")
		}
		if err == nil && (rel == "" || label != found.of(above(rel))) {
			found.set(rel, label)
		}
		return err
	})
	return found.String(), err
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
	case !isContext(want.labels[""]):
		if err := l.alone(ctx, tree); err != nil {
			return err
		}
	}
	return l.walk(ctx, tree, func(rel string, fd int, _ *unix.Stat_t) error {
		now, err := l.files().Label(fd)
		if err != nil {
			return err
		}
		label := want.of(rel)
		if parts := strings.SplitN(now, ":", 4); !isContext(label) && len(parts) >= 3 {
			parts[2] = label
			label = strings.Join(parts, ":")
		}
		if label == now {
			return nil
		}
		return l.files().SetLabel(fd, label)
	})
}

// alone refuses files that have another name outside of the tree: that one would get the label, too.
func (l Labels) alone(ctx context.Context, tree string) error {
	type file struct {
		name  string
		links uint64
	}
	linked := map[uint64]file{}
	err := l.walk(ctx, tree, func(rel string, _ int, st *unix.Stat_t) error {
		if st.Mode&unix.S_IFMT == unix.S_IFDIR || st.Nlink < 2 {
			return nil
		}
		f, known := linked[st.Ino]
		if !known {
			f = file{name: rel, links: uint64(st.Nlink)} //nolint:unconvert // 32 bits on arm64
		}
		f.links--
		linked[st.Ino] = f
		return nil
	})
	for _, f := range linked {
		if f.links > 0 {
			return fmt.Errorf("%s has another name outside of %s (a hard link), which would get the label, too: "+
				"`find / -xdev -samefile` finds it", path.Join(tree, f.name), tree)
		}
	}
	return err
}

// Same compares labels; where only types are wanted, only types. On a host it leaves out files that are gone.
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
		w.order = slices.DeleteFunc(w.order, func(rel string) bool {
			gone := rel != "" && !l.there(path.Join(tree, rel))
			if gone {
				delete(w.labels, rel)
			}
			return gone
		})
	}
	if !isContext(w.labels[""]) {
		w, g = w.types(), g.types()
	}
	return w.String() == g.String()
}

func (l Labels) there(file string) bool {
	_, err := l.Root.Lstat(file)
	return err == nil
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

// walk visits the tree, a directory before what is in it, in order of names. What goes away meanwhile is left out.
func (l Labels) walk(ctx context.Context, tree string, visit func(rel string, fd int, st *unix.Stat_t) error) error {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(l.Root.Path(tree), flags, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return change.Gone("there is no " + tree)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", tree, err)
	}
	w := walker{ctx: ctx, tree: tree, visit: visit}
	return w.enter("", fd)
}

type walker struct {
	ctx    context.Context
	tree   string
	device uint64
	visit  func(rel string, fd int, st *unix.Stat_t) error
}

// enter visits what a descriptor is open on, and closes it.
func (w *walker) enter(rel string, fd int) error {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at %s: %w", filepath.Join(w.tree, rel), err)
	}
	if rel == "" {
		w.device = st.Dev
	}
	if st.Dev != w.device {
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
