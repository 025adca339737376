package treecopy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// made is a directory like that of a server.
func made(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "from")
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.MkdirAll(at("shop/deep"), 0o750), os.Mkdir(at("#innodb_redo"), 0o700), os.Mkdir(at("empty"), 0o755),
		os.WriteFile(at(".hidden"), []byte("h"), 0o600), os.WriteFile(at("shop/deep/t.ibd"), []byte("table"), 0o640),
		os.WriteFile(at("#innodb_redo/#ib_redo1"), []byte("redo"), 0o640), os.WriteFile(at("ib_logfile0"),
			[]byte("l"), 0o640),
		os.Link(at(".hidden"), at("shop/again")), os.Symlink("../.hidden", at("shop/link")),
		os.Symlink("/nowhere", at("dangling")), os.WriteFile(at("a\nname"), nil, 0o600),
		os.Chtimes(at("shop/deep"), time.Unix(7, 8), time.Unix(9, 10)))
	sparse, err := os.Create(at("sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("end"), 5<<20)
	must(t, err, sparse.Close(), unix.Setxattr(at("shop/deep/t.ibd"), "user.note", []byte("n\x00"), 0))
	var l unix.SockaddrUnix
	l.Name = at("s.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err, unix.Bind(fd, &l), unix.Close(fd))
	return dir
}

// A copy is equal in all that Compare looks at, and Compare finds each kind of difference.
func TestSyncAndCompare(t *testing.T) {
	from := made(t)
	to := filepath.Join(t.TempDir(), "to")
	in := func(name string) string { return filepath.Join(to, name) }
	must(t, Sync(t.Context(), Tree{Dir: from}, Tree{Dir: to}, false))
	size, err := Compare(t.Context(), Tree{Dir: from}, Tree{Dir: to})
	if err != nil || size.Files != 7 || size.Bytes != 5<<20+3+1+1+1+5+4 {
		t.Fatalf("%+v, %v", size, err)
	}
	a, err1 := os.Stat(in(".hidden"))
	b, err2 := os.Stat(in("shop/again"))
	if err := errors.Join(err1, err2); err != nil || !os.SameFile(a, b) {
		t.Errorf("two names of a file became two: %v", err)
	}
	var st unix.Stat_t
	if must(t, unix.Stat(in("sparse"), &st)); st.Blocks*512 > 1<<20 {
		t.Errorf("a file with holes has %d blocks", st.Blocks)
	}
	if info, err := os.Stat(in("shop/deep")); err != nil || !info.ModTime().Equal(time.Unix(9, 10)) {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := os.Lstat(in("s.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a socket was copied: %v", err)
	}
	now := time.Now()
	for name, spoil := range map[string]func() error{
		"content": func() error {
			return errors.Join(os.WriteFile(in("shop/deep/t.ibd"), []byte("TABLE"), 0), same2(from, to,
				"shop/deep/t.ibd"))
		},
		"time":      func() error { return os.Chtimes(in("ib_logfile0"), now, now) },
		"longer":    func() error { return os.WriteFile(in("ib_logfile0"), []byte("ll"), 0) },
		"mode":      func() error { return os.Chmod(in("empty"), 0o700) },
		"missing":   func() error { return os.Remove(in("dangling")) },
		"more":      func() error { return os.WriteFile(in("empty/more"), nil, 0o600) },
		"link":      func() error { return errors.Join(os.Remove(in("dangling")), os.Symlink("/x", in("dangling"))) },
		"attribute": func() error { return unix.Setxattr(in("shop/deep/t.ibd"), "user.note", []byte("m"), 0) },
		"kind":      func() error { return errors.Join(os.Remove(in("empty")), os.WriteFile(in("empty"), nil, 0o755)) },
		"no more a link": func() error {
			return errors.Join(os.Remove(in("dangling")), os.WriteFile(in("dangling"), []byte("x"), 0o600))
		},
		"a directory": func() error {
			return errors.Join(os.Remove(in("sparse")), os.MkdirAll(in("sparse/x/y"),
				0o700))
		},
	} {
		must(t, spoil())
		if _, err := Compare(t.Context(), Tree{Dir: from}, Tree{Dir: to}); !errors.Is(err, ErrDiffers) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, Sync(t.Context(), Tree{Dir: from}, Tree{Dir: to}, name == "content"))
		if _, err := Compare(t.Context(), Tree{Dir: from}, Tree{Dir: to}); err != nil {
			t.Fatalf("%s, mended: %v", name, err)
		}
	}
}

// same2 gives a file the times of the one that it was copied from.
func same2(from, to, name string) error {
	info, err := os.Stat(filepath.Join(from, name))
	if err != nil {
		return err
	}
	return os.Chtimes(filepath.Join(to, name), info.ModTime(), info.ModTime())
}

// Names that belong to another tree are neither copied nor removed.
func TestPartsOfATree(t *testing.T) {
	from := made(t)
	data, log := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "log")
	must(t, os.Mkdir(data, 0o700), os.WriteFile(filepath.Join(data, "ib_logfile9"), []byte("kept"), 0o600))
	rest := Tree{Dir: from, Except: []string{"ib_logfile*"}}
	logs := Tree{Dir: from, Only: []string{"ib_logfile*"}}
	for _, pair := range [][2]Tree{{rest, rest.In(data)}, {logs, logs.In(log)}} {
		must(t, Sync(t.Context(), pair[0], pair[1], false))
		if _, err := Compare(t.Context(), pair[0], pair[1]); err != nil {
			t.Error(err)
		}
	}
	names := func(dir string) (list []string) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	if got := strings.Join(names(log), " "); got != "ib_logfile0" {
		t.Errorf("log: %q", got)
	}
	if got := strings.Join(names(data), " "); !strings.Contains(got, "ib_logfile9") || strings.Contains(got,
		"ib_logfile0") {
		t.Errorf("data: %q", got)
	}
	all, err := Measure(t.Context(), Tree{Dir: from})
	some, err2 := Measure(t.Context(), logs)
	if err := errors.Join(err, err2); err != nil || all.Files != 6 || some != (Size{1, 4096}) && some != (Size{1, 1}) {
		t.Errorf("%+v, %+v, %v", all, some, err)
	}
}

// A stamp tells of each change of a file, and not of a new name of the directory.
func TestStamp(t *testing.T) {
	from := made(t)
	stamp := func() string {
		text, err := Stamp(t.Context(), Tree{Dir: from})
		must(t, err)
		return text
	}
	was := stamp()
	must(t, os.Rename(from, from+"2"))
	if from += "2"; stamp() != was {
		t.Error("the stamp is of the name")
	}
	for _, change := range []func() error{
		func() error { return os.WriteFile(filepath.Join(from, "ib_logfile0"), []byte("L"), 0) },
		func() error { return os.WriteFile(filepath.Join(from, "new"), nil, 0o600) },
		func() error { return os.Remove(filepath.Join(from, "new")) },
		func() error { return os.Rename(filepath.Join(from, "empty"), filepath.Join(from, "e")) },
	} {
		must(t, change())
		now := stamp()
		if now == was {
			t.Error("a change was not seen")
		}
		was = now
	}
}

// What cannot be copied is said, and nothing is waited for.
func TestSyncRefuses(t *testing.T) {
	from := made(t)
	must(t, syscall.Mkfifo(filepath.Join(from, "fifo"), 0o600))
	to := Tree{Dir: filepath.Join(t.TempDir(), "to")}
	if err := Sync(t.Context(), Tree{Dir: from}, to, false); err == nil || !strings.Contains(err.Error(), "fifo") {
		t.Error(err)
	}
	for _, dir := range []string{from + "none", filepath.Join(from, ".hidden"), filepath.Join(from, "dangling")} {
		if err := Sync(t.Context(), Tree{Dir: dir}, to, false); err == nil {
			t.Errorf("%s was copied", dir)
		}
	}
}

// What could not be looked at is not removed with the directory that it is in.
func TestSyncStopsBeforeItRemoves(t *testing.T) {
	from, to := made(t), filepath.Join(t.TempDir(), "to")
	must(t, Sync(t.Context(), Tree{Dir: from}, Tree{Dir: to}, false), os.Mkdir(filepath.Join(to, "more"), 0o700),
		os.WriteFile(filepath.Join(to, "more", "a"), []byte("precious"), 0o600),
		syscall.Mkfifo(filepath.Join(to, "more", "fifo"), 0o600))
	if err := Sync(t.Context(), Tree{Dir: from}, Tree{Dir: to}, false); err == nil || !strings.Contains(err.Error(),
		"more/fifo") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(to, "more", "a")); err != nil {
		t.Error(err)
	}
	must(t, os.RemoveAll(filepath.Join(to, "shop")), os.Remove(filepath.Join(to, "ib_logfile0")),
		os.Rename(filepath.Join(to, "more"), filepath.Join(to, "ib_logfile0")))
	if err := Sync(t.Context(), Tree{Dir: from}, Tree{Dir: to}, false); err == nil {
		t.Error("a directory with what cannot be looked at became a file")
	}
	if _, err := os.Stat(filepath.Join(to, "ib_logfile0", "a")); err != nil {
		t.Error(err)
	}
}

// A directory is known by any name, and another one of its name is not it.
func TestIdentity(t *testing.T) {
	dir := made(t)
	was, err := Identity(dir)
	must(t, err, os.Rename(dir, dir+"2"))
	if now, err := Identity(dir + "2"); err != nil || now != was {
		t.Errorf("%q became %q: %v", was, now, err)
	}
	must(t, os.Mkdir(dir, 0o700))
	if other, err := Identity(dir); err != nil || other == was {
		t.Errorf("%q, %v", other, err)
	}
	if _, err := Identity(dir + "3"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// No file is made in a directory that takes none, and others are made when it takes them again.
func TestImmutable(t *testing.T) {
	dir := t.TempDir()
	if err := Immutable(dir, true); err != nil {
		t.Skipf("not here: %v", err)
	}
	err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o600)
	must(t, Immutable(dir, true), Immutable(dir, false), Immutable(dir, false))
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
}
