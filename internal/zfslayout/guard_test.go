package zfslayout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/treecopy"
)

// on is a host whose server was moved.
func on(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	if _, err := w.mover(-1).Apply(t.Context(), "mysql3306", w.plan); err != nil {
		t.Fatal(err)
	}
	w.db.commit()
	w.db.stops = 0
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) rename(from, to string) {
	w.t.Helper()
	if err := os.Rename(w.path(from), w.path(to)); err != nil {
		w.t.Fatal(err)
	}
}

// untouched sees that a verb was refused with these words, and that the server still runs on its data sets.
func (w *world) untouched(err error, want string) {
	w.t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		w.t.Fatalf("%v, and not %q", err, want)
	}
	if w.db.stops != 0 || !w.db.running {
		w.t.Errorf("the server was stopped %d times for %v", w.db.stops, err)
	}
	rec, err := w.mover(-1).Load("mysql3306")
	if err != nil || rec.Phase != Applied || rec.Restored {
		w.t.Errorf("%+v, %v", rec, err)
	}
	for _, s := range w.plan.Sets[1:] {
		if set := w.pools.sets[s.Name]; set == nil || set["mounted"] != "yes" || set["mountpoint"] != s.Point {
			w.t.Errorf("%s: %v", s.Name, set)
		}
	}
}

func (w *world) rollback(lose bool) error {
	_, err := w.mover(-1).Rollback(w.t.Context(), "mysql3306", lose)
	return err
}

func (w *world) finish() error {
	_, err := w.mover(-1).Finish(w.t.Context(), "mysql3306")
	return err
}

// A redo log that is not where the plan has it is never left behind, and never mixed with an old one: what is on ZFS
// stays there.
func TestRollbackRefusesAnotherSplit(t *testing.T) {
	for name, spoil := range map[string]func(w *world) (undo func()){
		"ib_logfile0 is in the data set": func(w *world) func() {
			w.write("mysql/ib_logfile0", "new redo")
			return func() { _ = os.Remove(w.path("mysql/ib_logfile0")) }
		},
		"there is no [ib_logfile*]": func(w *world) func() {
			w.rename("mysql-log/ib_logfile0", "mysql-log/#innodb_redo")
			return func() { w.rename("mysql-log/#innodb_redo", "mysql-log/ib_logfile0") }
		},
		"was not there at the move": func(w *world) func() {
			w.write("mysql-log/bin.000001", "transactions")
			return func() { _ = os.Remove(w.path("mysql-log/bin.000001")) }
		},
		"has no line": func(w *world) func() {
			edited, _ := os.ReadFile(w.db.cnf)
			w.write("my.cnf", string(w.cnf))
			return func() { w.write("my.cnf", string(edited)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := on(t)
			undo := spoil(w)
			w.untouched(w.rollback(false), name)
			undo()
			if err := w.rollback(false); err != nil {
				t.Fatal(err)
			}
			w.back()
		})
	}
}

// The log of PostgreSQL that was moved back into its data directory, or behind another link, is not left behind.
func TestRollbackRefusesAnotherLink(t *testing.T) {
	dir := t.TempDir()
	rec := &Record{Plan: &Plan{Sets: []Set{{Name: "a"}, {Name: "b", Point: "/pg-wal", Link: "pg_wal"}}}}
	name := filepath.Join(dir, "pg_wal")
	if err := os.Symlink("/pg-wal/pg_wal", name); err != nil || !linked(rec, dir, name) {
		t.Errorf("the link of the move is not known: %v", err)
	}
	for _, make := range []func() error{func() error { return os.Symlink("/elsewhere/pg_wal", name) },
		func() error { return os.Mkdir(name, 0o700) }} {
		if err := errors.Join(os.Remove(name), make()); err != nil || linked(rec, dir, name) {
			t.Errorf("another one passes for it: %v", err)
		}
	}
}

// A data set with files that are never copied back is not destroyed.
func TestRollbackKeepsForeignFiles(t *testing.T) {
	w := on(t)
	w.write("mysql-log/bin.000001", "transactions")
	w.db.committed -= 2 // those since the move
	if err := w.rollback(true); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(w.pools.file("content", "tank/mysql3306/log"), "bin.000001"))
	if err != nil || string(text) != "transactions" || !strings.Contains(fmt.Sprint(w.warns), "mysql3306/log stays") {
		t.Errorf("%q, %v, %q", text, err, w.warns)
	}
}

// Finish removes the directory that the move kept, and no other one; not while somebody has files of it open, and not
// what is mounted there.
func TestFinishRefuses(t *testing.T) {
	for name, spoil := range map[string]func(w *world, m *Mover){
		"is not the directory that was kept": func(w *world, _ *Mover) {
			w.rename("mysql"+Suffix, "elsewhere")
			if err := os.Mkdir(w.path("mysql"+Suffix), 0o700); err != nil {
				w.t.Fatal(err)
			}
		},
		"is mounted at": func(w *world, _ *Mover) {
			w.pools.more = mountinfo.Mounts{{ID: 7, Parent: 1, Root: "/shop", Source: "/dev/sda1", Type: "ext4",
				Point: w.path("mysql" + Suffix + "/shop")}}
		},
		"are open": func(w *world, m *Mover) {
			m.Holders = func(_ context.Context, dirs []string) ([]Holder, error) {
				if len(dirs) == 1 && dirs[0] == w.path("mysql"+Suffix) {
					return []Holder{{9, "mysqld"}}, nil
				}
				return nil, nil
			}
		},
		"also mounted at": func(w *world, _ *Mover) {
			w.pools.more = mountinfo.Mounts{{ID: 7, Parent: 1, Root: "/", Source: "tank/mysql3306/data", Type: "zfs",
				Point: "/bound"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := on(t)
			w.write("mysql"+Suffix+"/precious", "p")
			m := w.mover(-1)
			spoil(w, m)
			w.write("mysql"+Suffix+"/also", "p")
			_, err := m.Finish(t.Context(), "mysql3306")
			w.untouched(err, name)
			if _, err := os.Stat(w.path("mysql" + Suffix + "/also")); err != nil {
				t.Error(err)
			}
		})
	}
}

// Old directories that are not there are not called restored: what is on ZFS is the only copy. With them back it goes
// on.
func TestRollbackWithoutOldDirectory(t *testing.T) {
	for _, lose := range []bool{false, true} {
		w := on(t)
		w.rename("mysql"+Suffix, "elsewhere")
		w.untouched(w.rollback(lose), "is neither there nor at")
		if err := os.Mkdir(w.path("mysql"+Suffix), 0o755); err != nil { // as where its file system is not mounted
			t.Fatal(err)
		}
		w.untouched(w.rollback(lose), "is neither there nor at")
		if err := os.Remove(w.path("mysql" + Suffix)); err != nil {
			t.Fatal(err)
		}
		w.rename("elsewhere", "mysql"+Suffix)
		if err := w.rollback(false); err != nil {
			t.Fatal(err)
		}
		w.back()
	}
	w := on(t)
	if err := os.RemoveAll(w.path("mysql" + Suffix)); err != nil { // by hand, which is as good
		t.Fatal(err)
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	w.moved()
}

// What is mounted somewhere else, too, would still be there after one unmount; what is not mounted is not moved before
// it is sure that all can be copied back.
func TestRollbackRefusesOtherMounts(t *testing.T) {
	w := on(t)
	w.pools.more = mountinfo.Mounts{{ID: 7, Parent: 1, Root: "/", Source: "tank/mysql3306/data", Type: "zfs",
		Point: "/bound"}}
	w.untouched(w.rollback(false), "also mounted at /bound")
	w.pools.more = mountinfo.Mounts{{ID: 7, Parent: 1, Root: "/", Source: "tmpfs", Type: "tmpfs",
		Point: w.path("mysql" + Suffix + "/shop")}}
	w.untouched(w.rollback(false), "is mounted at")
	w.pools.more = nil

	if err := w.pools.unmount("tank/mysql3306/log"); err != nil {
		t.Fatal(err)
	}
	err := w.rollback(false)
	set := w.pools.sets["tank/mysql3306/log"]
	if err == nil || !strings.Contains(err.Error(), "is not mounted at") || set["mountpoint"] != w.path("mysql-log") ||
		set["canmount"] != "on" || w.db.stops != 0 {
		t.Errorf("%v; the data set has %v", err, set)
	}
}

// The room is asked for of all directories of a file system at once.
func TestRollbackRoom(t *testing.T) {
	w := on(t)
	w.write("mysql/grown", strings.Repeat("x", 1<<20))
	w.write("mysql-log/ib_logfile1", strings.Repeat("x", 1<<20))
	m := w.mover(-1)
	m.free = func(string) (int64, error) { return 3 << 19, nil } // enough for one of them
	_, err := m.Rollback(t.Context(), "mysql3306", false)
	w.untouched(err, "free, and the data has grown by 2 MiB")
}

// A flag that came to nothing does not count at the next call.
func TestLoseDoesNotStick(t *testing.T) {
	w := on(t)
	w.db.slow = true
	if err := w.rollback(true); err == nil {
		t.Fatal("rolled back though the server did not stop")
	}
	w.db.slow = false
	if err := w.rollback(false); err != nil {
		t.Fatal(err)
	}
	w.back() // with every commit
}

// While nothing is mounted where the data was, nobody can make a new database there, not even root; what is there
// nevertheless is neither hidden nor removed.
func TestEmptyDirectoryStaysEmpty(t *testing.T) {
	w := newWorld(t)
	m := w.mover(-1)
	m.step = func(what string) {
		if what == "made "+w.db.data {
			panic(killed{what})
		}
	}
	apply := func(m *Mover) error { _, err := m.Apply(t.Context(), "mysql3306", w.plan); return err }
	if at, err := survives(func() error { return apply(m) }); at == "" {
		t.Fatal(err)
	}
	fresh := w.path("mysql/ibdata1")
	if err := os.WriteFile(fresh, nil, 0o600); err == nil {
		if !strings.Contains(fmt.Sprint(w.warns), "immutable") {
			t.Error("a new database was made where the old one was")
		}
	} else if !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	_ = treecopy.Immutable(w.db.data, false) // as a file system is that cannot do that
	_ = os.Chmod(w.db.data, 0o700)
	w.write("mysql/ibdata1", "a new database")
	if err := apply(w.mover(-1)); err == nil || !strings.Contains(err.Error(), "is not empty (ibdata1)") {
		t.Errorf("%v", err)
	}
	if err := w.rollback(false); err == nil || !strings.Contains(err.Error(), "is not empty (ibdata1)") {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(fresh); string(text) != "a new database" {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.Remove(fresh); err != nil {
		t.Fatal(err)
	}
	if err := w.rollback(false); err != nil {
		t.Fatal(err)
	}
	w.back()
}

// A first start that failed is not taken back over the old directory where the new data has no room there.
func TestTakeBackNeedsRoom(t *testing.T) {
	w := newWorld(t)
	m := w.mover(-1)
	m.Server = &stubborn{database: w.db}
	m.free = func(string) (int64, error) { return 0, nil }
	m.step = func(what string) {
		if what == "mounted tank/mysql3306/data" { // what a start leaves that was not over
			w.write("mysql/half", strings.Repeat("x", 1<<20))
		}
	}
	_, err := m.Apply(t.Context(), "mysql3306", w.plan)
	rec, _ := m.Load("mysql3306")
	if err == nil || !strings.Contains(err.Error(), "nothing was taken back") || rec.Phase != Applying ||
		rec.CopyingBack {
		t.Errorf("%v\n%+v", err, rec)
	}
	if there(w.path("mysql" + Suffix + "/half")) {
		t.Error("the old directory was written to")
	}
	if err := w.rollback(false); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(w.path("mysql/half")); err != nil {
		t.Error(err)
	}
	w.back()
}

// A server that ends later than it was waited for is started again.
func TestSlowStopIsStartedAgain(t *testing.T) {
	w := newWorld(t)
	w.db.slow = true
	if _, err := w.mover(-1).Apply(t.Context(), "mysql3306", w.plan); err == nil || !strings.Contains(err.Error(),
		"still there") {
		t.Errorf("%v", err)
	}
	w.back()
}

// A move that the server has run on stays where it is when going on fails: what failed may pass.
func TestResumedMoveIsNotTakenBack(t *testing.T) {
	w := newWorld(t)
	m := w.mover(-1)
	m.step = func(what string) {
		if what == "started" {
			panic(killed{what})
		}
	}
	if at, err := survives(func() error { _, err := m.Apply(t.Context(), "mysql3306", w.plan); return err }); at == "" {
		t.Fatal(err)
	}
	w.db.stops, w.db.mute = 0, 1
	_, err := w.mover(-1).Apply(t.Context(), "mysql3306", nil)
	rec, _ := m.Load("mysql3306")
	if err == nil || rec.Phase != Applying || w.db.stops != 0 {
		t.Errorf("%v, %s, stopped %d times", err, rec.Phase, w.db.stops)
	}
	if _, err := w.mover(-1).Apply(t.Context(), "mysql3306", nil); err != nil {
		t.Fatal(err)
	}
	w.moved()
}

// An option file that cannot be edited is found before the server is stopped.
func TestEditIsTriedBeforeTheStop(t *testing.T) {
	for name, spoil := range map[string]func(w *world) error{
		"not the one of port any more": func(w *world) error { w.plan.Edits[0].Old = "port"; return nil },
		"others than root can write to the directory": func(w *world) error {
			dir := w.path("open")
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
				return err
			}
			w.plan.Edits[0].File = filepath.Join(dir, "my.cnf")
			return os.WriteFile(w.plan.Edits[0].File, w.cnf, 0o600)
		},
		"is in the data directory": func(w *world) error {
			w.plan.Edits[0].File = w.path("link.cnf")
			w.write("mysql/my.cnf", string(w.cnf))
			return os.Symlink(w.path("mysql/my.cnf"), w.path("link.cnf"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if err := spoil(w); err != nil {
				t.Fatal(err)
			}
			_, err := w.mover(-1).Apply(t.Context(), "mysql3306", w.plan)
			if err == nil || !strings.Contains(err.Error(), name) || w.db.stops != 0 {
				t.Errorf("%v; stopped %d times", err, w.db.stops)
			}
			if rec, err := w.mover(-1).Load("mysql3306"); rec != nil || err != nil {
				t.Errorf("%+v, %v", rec, err)
			}
		})
	}
}

// A refusal of finish names the verb that ends a move on its way back.
func TestFinishOnTheWayBack(t *testing.T) {
	w := on(t)
	w.db.slow = true
	if err := w.rollback(false); err == nil {
		t.Fatal("rolled back though the server did not stop")
	}
	if got := after[Back]; !strings.Contains(got, "rollback") {
		t.Error(got)
	}
	if err := w.finish(); err == nil || api.HintOf(err) != after[Back] {
		t.Errorf("%v, hint %q", err, api.HintOf(err))
	}
}
