package zfslayout

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/linux/treecopy"
)

// world is a host with a server and a model of ZFS.
type world struct {
	t     *testing.T
	dir   string
	pools *pools
	db    *database
	plan  *Plan
	cnf   []byte
	warns []string
}

// memory is a directory that costs no write to a disk: each step is synced.
func memory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "zfslayout")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		for _, name := range []string{"mysql", "mysql-log", "main", "main-wal"} {
			_ = treecopy.Immutable(filepath.Join(dir, name), false)
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

// killed is what a mover that is killed leaves its caller with.
type killed struct{ at string }

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := memory(t)
	w := &world{t: t, dir: dir, pools: newPools(t, filepath.Join(dir, "zfs")),
		cnf: []byte("[mysqld]\ndatadir = " + dir + "/mysql\n# a note\n")}
	data, cnf := filepath.Join(dir, "mysql"), filepath.Join(dir, "my.cnf")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(data, "shop"), 0o750))
	must(os.WriteFile(cnf, w.cnf, 0o640))
	for name, text := range map[string]string{".hidden": "h", "shop/t.ibd": "x", "ib_logfile0": "x",
		"ibdata1": "system"} {
		must(os.WriteFile(filepath.Join(data, name), []byte(text), 0o660))
	}
	must(os.Link(filepath.Join(data, "ibdata1"), filepath.Join(data, "ibdata1.link")))
	must(os.Symlink("shop/t.ibd", filepath.Join(data, "a link")))
	w.db = &database{t: t, data: data, cnf: cnf, running: true, committed: 1}
	w.pools.sets["tank"] = map[string]string{}
	top := "tank/mysql3306"
	w.plan = &Plan{Instance: "mysql3306", DataDir: data, Pool: Pool{Name: "tank"}, Sets: []Set{
		{Name: top, Properties: []Property{{Name: "canmount", Value: "off"}}},
		{Name: top + "/data", Kind: "data", Point: data, Aside: data + Suffix, From: data,
			Except: []string{"ib_logfile*"}},
		{Name: top + "/log", Kind: "redo log", Point: data + "-log", From: data, Only: []string{"ib_logfile*"}}},
		Edits: []Edit{{File: cnf, Line: 2, New: "innodb_log_group_home_dir = " + data + "-log"}}}
	return w
}

// mover is one process of the program. It is killed at the n-th step; n below 0 is never.
func (w *world) mover(n int) *Mover {
	m := &Mover{Records: Records{Dir: filepath.Join(w.dir, "state")}, ZFS: w.pools.tools(), Server: w.db,
		Holders:    func(context.Context, []string) ([]Holder, error) { return nil, nil },
		MountTable: w.pools.mounts,
		Warn:       func(text string) { w.warns = append(w.warns, text) }}
	m.step = func(what string) {
		if n == 0 {
			panic(killed{what})
		}
		n--
	}
	return m
}

// survives runs a verb, and says where it was killed; "" where it came to its end.
func survives(do func() error) (at string, err error) {
	defer func() {
		if k, is := recover().(killed); is {
			at = k.at
		}
	}()
	return "", do()
}

// moved sees that the server runs on ZFS, with all of its files and none beside.
func (w *world) moved() {
	w.t.Helper()
	for _, s := range w.plan.Sets[1:] {
		if set := w.pools.sets[s.Name]; set["mounted"] != "yes" || set["mountpoint"] != s.Point ||
			set["canmount"] != "on" {
			w.t.Errorf("%s: %v", s.Name, set)
		}
	}
	text, _ := os.ReadFile(w.db.cnf)
	want := "[mysqld]\ndatadir = " + w.db.data + "\ninnodb_log_group_home_dir = " + w.db.data + "-log\n# a note\n"
	kept, _ := os.ReadFile(w.db.cnf + Suffix)
	if string(text) != want || !bytes.Equal(kept, w.cnf) {
		w.t.Errorf("option file:\n%s\nkept:\n%s", text, kept)
	}
	w.same()
}

// back sees that all is as it was, and nothing is left.
func (w *world) back() {
	w.t.Helper()
	text, _ := os.ReadFile(w.db.cnf)
	if len(w.pools.sets) != 1 || !bytes.Equal(text, w.cnf) {
		w.t.Errorf("left: %v\noption file:\n%s", w.pools.sets, text)
	}
	for _, name := range []string{"mysql-log", "mysql" + Suffix, "my.cnf" + Suffix, "state/mysql3306.json",
		"state/mysql3306"} {
		if there(filepath.Join(w.dir, name)) {
			w.t.Errorf("%s is left", name)
		}
	}
	w.same()
}

// same sees that every commit that was acknowledged is there, and every other file.
func (w *world) same() {
	w.t.Helper()
	if !w.db.running {
		w.t.Error("the server does not run")
	}
	for _, name := range w.db.files() {
		if text, err := os.ReadFile(name); len(text) != w.db.committed {
			w.t.Errorf("%s has %d of %d commits: %v", name, len(text), w.db.committed, err)
		}
	}
	one, err := os.Stat(filepath.Join(w.db.data, "ibdata1"))
	two, err2 := os.Stat(filepath.Join(w.db.data, "ibdata1.link"))
	link, err3 := os.Readlink(filepath.Join(w.db.data, "a link"))
	hidden, err4 := os.ReadFile(filepath.Join(w.db.data, ".hidden"))
	if err := errors.Join(err, err2, err3, err4); err != nil || !os.SameFile(one, two) || link != "shop/t.ibd" ||
		string(hidden) != "h" {
		w.t.Errorf("%v, %s, %s", err, link, hidden)
	}
	if info, err := os.Stat(w.db.data); err != nil || info.Mode().Perm() != 0o750 {
		w.t.Errorf("%v, %v", info, err)
	}
}

// after is what a host does after the program was killed: nothing, or a crash and a start that starts the server, too.
func (w *world) after(crash bool) {
	if !crash {
		return
	}
	w.db.running = false
	w.pools.reboot()
	w.initialise()
	if err := w.db.Start(w.t.Context()); err == nil {
		w.db.commit() // what a client does
	}
}

// initialise is what units do as root before they start a server: a new database where the directory is empty.
func (w *world) initialise() {
	w.t.Helper()
	entries, err := os.ReadDir(w.db.data)
	if err != nil || len(entries) > 0 {
		return
	}
	name := filepath.Join(w.db.data, "ibdata1")
	if err := os.WriteFile(name, []byte("new"), 0o600); err != nil {
		return
	}
	if !strings.Contains(strings.Join(w.warns, "\n"), "immutable") { // which not every file system knows
		w.t.Error("a new database was made where the old one was")
	}
	if err := os.Remove(name); err != nil {
		w.t.Fatal(err)
	}
}

// Killed at each step of the move, with or without a crash of the host that starts the server by itself, a second apply
// ends it and a rollback takes it back: no commit is lost, and no half of the files is ever started on.
func TestApplyKilledAtEachStep(t *testing.T) {
	steps := 0
	for _, crash := range []bool{false, true} {
		for _, again := range []bool{true, false} {
			for n := 0; ; n++ {
				w := newWorld(t)
				at, err := survives(func() error {
					_, err := w.mover(n).Apply(t.Context(), "mysql3306", w.plan)
					return err
				})
				if at == "" {
					if err != nil {
						t.Fatal(err)
					}
					w.moved()
					steps = n
					break
				}
				w.after(crash)
				if again {
					if _, err := w.mover(-1).Apply(t.Context(), "mysql3306", nil); err != nil && !applied(err) {
						t.Fatalf("killed at %q, then apply: %v", at, err)
					}
					w.db.running = w.db.running || w.db.Start(t.Context()) == nil
					w.moved()
				} else {
					if _, err := w.mover(-1).Rollback(t.Context(), "mysql3306", false); err != nil {
						t.Fatalf("killed at %q, then rollback: %v", at, err)
					}
					w.back()
				}
				if t.Failed() {
					t.Fatalf("killed at %q, crash %v, again %v", at, crash, again)
				}
			}
		}
	}
	if steps < 20 {
		t.Errorf("only %d steps were seen", steps)
	}
	t.Logf("killed at each of %d steps", steps)
}

// applied says that a second apply had nothing to do.
func applied(err error) bool { return strings.Contains(err.Error(), "it is applied") }

// Killed at each step of the way back, the same again ends it, and what was committed on ZFS is there.
func TestRollbackKilledAtEachStep(t *testing.T) {
	for _, crash := range []bool{false, true} {
		for n, over := 0, false; !over; n++ {
			w := newWorld(t)
			if _, err := w.mover(-1).Apply(t.Context(), "mysql3306", w.plan); err != nil {
				t.Fatal(err)
			}
			w.db.commit()
			if err := os.WriteFile(filepath.Join(w.db.data, "new.ibd"), []byte("n"), 0o600); err != nil {
				t.Fatal(err)
			}
			at, err := survives(func() error {
				_, err := w.mover(n).Rollback(t.Context(), "mysql3306", false)
				return err
			})
			if over = at == ""; over && err != nil {
				t.Fatal(err)
			}
			if !over {
				w.after(crash)
				if _, err := w.mover(-1).Apply(t.Context(), "mysql3306", nil); err == nil {
					t.Errorf("killed at %q: apply goes on, and rollback was begun", at)
				}
				_, err := w.mover(-1).Rollback(t.Context(), "mysql3306", false)
				if err != nil && !strings.Contains(err.Error(), "no move of") {
					t.Fatalf("killed at %q: %v", at, err)
				}
			}
			w.back()
			if text, _ := os.ReadFile(filepath.Join(w.db.data, "new.ibd")); string(text) != "n" {
				t.Error("a file that was made on ZFS is lost")
			}
			if t.Failed() {
				t.Fatalf("killed at %q, crash %v", at, crash)
			}
		}
	}
}

// Killed at each step, finish removes the old directory and nothing else; after its first step there is no way back.
func TestFinishKilledAtEachStep(t *testing.T) {
	for n, over := 0, false; !over; n++ {
		w := newWorld(t)
		if _, err := w.mover(-1).Finish(t.Context(), "mysql3306"); err == nil {
			t.Error("there was nothing to finish")
		}
		if _, err := w.mover(-1).Apply(t.Context(), "mysql3306", w.plan); err != nil {
			t.Fatal(err)
		}
		at, err := survives(func() error { _, err := w.mover(n).Finish(t.Context(), "mysql3306"); return err })
		if over = at == ""; over && err != nil {
			t.Fatal(err)
		}
		if !over {
			if _, err := w.mover(-1).Rollback(t.Context(), "mysql3306", false); err == nil {
				t.Fatalf("killed at %q: rolled back", at)
			}
			if _, err := w.mover(-1).Finish(t.Context(), "mysql3306"); err != nil {
				t.Fatalf("killed at %q: %v", at, err)
			}
		}
		w.moved()
		if there(w.db.data+Suffix) || there(filepath.Join(w.dir, "state", "mysql3306.json")) || len(w.pools.sets) != 4 {
			t.Errorf("killed at %q: %v", at, w.pools.sets)
		}
	}
}

// What fails is taken back by itself: a server that does not start on ZFS, files that are open, and files that are
// written to.
func TestApplyTakesBack(t *testing.T) {
	for name, spoil := range map[string]func(w *world, m *Mover){
		"does not start": func(w *world, m *Mover) { m.Server = &stubborn{database: w.db} },
		"open": func(w *world, m *Mover) {
			m.Holders = func(context.Context, []string) ([]Holder, error) {
				return []Holder{{7, "xtrabackup"}}, nil
			}
		},
		"written to": func(w *world, m *Mover) {
			m.step = func(what string) {
				if what == "copied tank/mysql3306/log" {
					_ = os.WriteFile(filepath.Join(w.db.data, "ibdata1"), []byte("SYSTEM"), 0o660)
				}
			}
		},
		"edited": func(w *world, m *Mover) { w.plan.Edits[0].Line = 9 },
		"foreign": func(w *world, m *Mover) {
			w.pools.sets["tank/mysql3306"] = map[string]string{}
			m.Warn = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.mover(-1)
			spoil(w, m)
			_, err := m.Apply(t.Context(), "mysql3306", w.plan)
			if err == nil {
				t.Fatal("it was moved")
			}
			if name == "foreign" {
				if w.pools.sets["tank/mysql3306"] == nil {
					t.Error("a data set of somebody else is gone")
				}
				delete(w.pools.sets, "tank/mysql3306")
				return
			}
			if name == "open" { // and so the server was stopped and could not be told to be alone
				m.Holders = func(context.Context, []string) ([]Holder, error) { return nil, nil }
			}
			w.back()
		})
	}
}

// stubborn does not start on ZFS.
type stubborn struct {
	*database
}

func (s *stubborn) Start(ctx context.Context) error {
	if there(s.data + Suffix) {
		return errors.New("it does not like ZFS")
	}
	return s.database.Start(ctx)
}

// New data is lost only when that is asked for, and never after the way back has begun to copy; a data set with a
// snapshot stays.
func TestRollbackKeeps(t *testing.T) {
	w := newWorld(t)
	if _, err := w.mover(-1).Apply(t.Context(), "mysql3306", w.plan); err != nil {
		t.Fatal(err)
	}
	was := w.db.committed
	w.db.commit()
	w.pools.held["tank/mysql3306/data@kept"] = true
	w.db.running, w.db.committed = false, was-1 // Start on ZFS committed once
	if _, err := w.mover(-1).Rollback(t.Context(), "mysql3306", true); err != nil {
		t.Fatal(err)
	}
	if w.pools.sets["tank/mysql3306/data"] == nil || w.pools.sets["tank/mysql3306/log"] != nil ||
		!strings.Contains(strings.Join(w.warns, "\n"), "tank/mysql3306/data stays") {
		t.Errorf("%v\n%q", w.pools.sets, w.warns)
	}
	w.same()

	w = newWorld(t)
	if _, err := w.mover(-1).Apply(t.Context(), "mysql3306", w.plan); err != nil {
		t.Fatal(err)
	}
	m := w.mover(-1)
	m.step = func(what string) {
		if what == "copying back begun" {
			panic(killed{what})
		}
	}
	if at, err := survives(func() error {
		_, err := m.Rollback(t.Context(), "mysql3306", false)
		return err
	}); at == "" {
		t.Fatal(err)
	}
	if _, err := w.mover(-1).Rollback(t.Context(), "mysql3306", true); err == nil || !strings.Contains(err.Error(),
		"mixture") {
		t.Errorf("--lose-new-data after copying has begun: %v", err)
	}
	if _, err := w.mover(-1).Rollback(t.Context(), "mysql3306", false); err != nil {
		t.Fatal(err)
	}
	w.back()
}

// A record that is damaged, or of another one, moves nothing; a name is no path.
func TestRecordDamaged(t *testing.T) {
	w := newWorld(t)
	m := w.mover(-1)
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", "null", `{"version":1}`,
		`{"version":1,"id":"a","plan":{"instance":"other"}}`,
		`{"version":2,"id":"a","plan":{"instance":"mysql3306","datasets":[{},{}]}}`} {
		if err := os.WriteFile(filepath.Join(m.Dir, "mysql3306.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := m.Rollback(t.Context(), "mysql3306", false)
		if err == nil {
			t.Errorf("%q was rolled back", text)
		}
		if _, err := m.Apply(t.Context(), "mysql3306", w.plan); err == nil {
			t.Errorf("%q was applied", text)
		}
	}
	for _, name := range []string{"", "..", "a/b", "../x", ".hidden"} {
		if _, err := m.Load(name); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
}

// upright is a server that does as it is told.
type upright struct{ running bool }

func (u *upright) Running(context.Context) (bool, error) { return u.running, nil }
func (u *upright) Stop(context.Context) error            { u.running = false; return nil }
func (u *upright) Start(context.Context) error           { u.running = true; return nil }
func (u *upright) Answers(context.Context) error         { return nil }

// The log of PostgreSQL goes out of its data directory behind a link, and comes back with what was written since.
func TestLogBehindALink(t *testing.T) {
	w := newWorld(t)
	data := filepath.Join(w.dir, "main")
	wal := filepath.Join(data, "pg_wal")
	if err := errors.Join(os.MkdirAll(filepath.Join(wal, "archive_status"), 0o700), os.Chmod(data, 0o700),
		os.WriteFile(filepath.Join(wal, "01"), []byte("one"), 0o600),
		os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("15\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	top := "tank/postgresql5432"
	plan := &Plan{Instance: "postgresql5432", DataDir: data, Pool: Pool{Name: "tank"}, Sets: []Set{{Name: top},
		{Name: top + "/data", Kind: "data", Point: data, Aside: data + Suffix, From: data, Except: []string{"pg_wal"}},
		{Name: top + "/log", Kind: "redo log", Point: data + "-wal", From: data, Only: []string{"pg_wal"},
			Link: "pg_wal"}}}
	m := w.mover(-1)
	m.Server = &upright{true}
	if _, err := m.Apply(t.Context(), "postgresql5432", plan); err != nil {
		t.Fatal(err)
	}
	target, err := os.Readlink(wal)
	text, err2 := os.ReadFile(filepath.Join(wal, "01"))
	if err := errors.Join(err, err2); err != nil || target != data+"-wal/pg_wal" || string(text) != "one" {
		t.Errorf("%q, %q, %v", target, text, err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(wal, "02"), []byte("two"), 0o600),
		os.Remove(filepath.Join(wal, "01"))); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Rollback(t.Context(), "postgresql5432", false); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(wal)
	text, err2 = os.ReadFile(filepath.Join(wal, "02"))
	if err := errors.Join(err, err2); err != nil || !info.IsDir() || string(text) != "two" ||
		there(filepath.Join(wal, "01")) || there(data+"-wal") || len(w.pools.sets) != 1 {
		t.Errorf("%v, %q, %v, %v", info, text, err, w.pools.sets)
	}
}
