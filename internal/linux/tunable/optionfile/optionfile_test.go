package optionfile_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/optionfile"
	"bulkhead/internal/linux/tunable/ownfile"
)

const (
	my = "/etc/mysql/conf.d/zz-bulkhead.cnf"
	pg = "/etc/postgresql/15/main/conf.d/zz-bulkhead.conf"
)

func newHost(t *testing.T, files map[string]string) optionfile.Host {
	t.Helper()
	dir := linuxtest.Files(t, files, 0o600)
	return optionfile.Host{Root: sysroot.New(dir), Dir: dir}
}

func dirs(more map[string]string) map[string]string {
	files := map[string]string{"etc/mysql/conf.d/mysqld.cnf": "", "etc/postgresql/15/main/conf.d/10.conf": ""}
	for name, text := range more {
		files[name] = text
	}
	return files
}

func TestConformance(t *testing.T) {
	a := optionfile.Settings{Host: newHost(t, dirs(nil))}
	for _, tt := range []conformance.Case{
		{Target: optionfile.Target(my + "/sync_binlog"), Values: []string{"1"}, Refused: "0",
			Gone: "/none/zz-bulkhead.cnf/sync_binlog"},
		{Target: optionfile.Target(pg + "/fsync"), Values: []string{"on"}, Refused: "off",
			Gone: "/none/zz-bulkhead.conf/fsync"},
	} {
		tt.Actuator = a
		t.Run(tt.Target.Addr, func(t *testing.T) { conformance.Run(t, tt) })
	}
}

// Settings of one file stand in it as the engine writes them, and the file goes with the last one.
func TestFiles(t *testing.T) {
	h := newHost(t, dirs(nil))
	a := optionfile.Settings{Host: h}
	for _, tt := range []struct{ addr, value, want string }{
		{my + "/sync_binlog", "1", "[mysqld]\nsync_binlog = 1\n"},
		{my + "/innodb_doublewrite", "ON", "[mysqld]\ninnodb_doublewrite = ON\nsync_binlog = 1\n"},
		{my + "/sync_binlog", "", "[mysqld]\ninnodb_doublewrite = ON\n"},
		{my + "/innodb_doublewrite", "", ""},
		{pg + "/full_page_writes", "on", "full_page_writes = on\n"},
	} {
		if err := a.Write(t.Context(), tt.addr, tt.value); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(h.Dir, filepath.Dir(tt.addr)))
		body, ours := ownfile.Body(string(text))
		if tt.want == "" && !os.IsNotExist(err) || tt.want != "" && (!ours || body != tt.want) {
			t.Errorf("%s = %q: %q, %v", tt.addr, tt.value, text, err)
		}
	}
}

// A file that somebody edited is kept beside the new one, and comes back where it was there before.
func TestEdited(t *testing.T) {
	const edited = "[mysqld]\nsync_binlog = 7\n"
	h := newHost(t, dirs(map[string]string{my: edited}))
	a := optionfile.Settings{Host: h}
	old, err := a.Read(t.Context(), my+"/sync_binlog")
	if err != nil || old != ownfile.AsLeft+edited {
		t.Fatalf("%q, %v", old, err)
	}
	if err := a.Write(t.Context(), my+"/sync_binlog", "1"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(h.Dir, my+ownfile.Edited)); err != nil || string(text) != edited {
		t.Errorf("kept: %q, %v", text, err)
	}
	if _, err := a.Undo(t.Context(), change.Of(optionfile.Target(my+"/sync_binlog"), old, "1")); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile(filepath.Join(h.Dir, my)); string(text) != edited {
		t.Errorf("undone: %q", text)
	}
}

// A link and a file with a second name may be another one's, which root would read and write down for all.
func TestNotItsOwn(t *testing.T) {
	h := newHost(t, dirs(map[string]string{"etc/shadow": "root:geheim\n"}))
	a := optionfile.Settings{Host: h}
	at, secret := filepath.Join(h.Dir, pg), filepath.Join(h.Dir, "etc/shadow")
	for name, make := range map[string]func() error{
		"a link":        func() error { return os.Symlink(secret, at) },
		"a second name": func() error { return os.Link(secret, at) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		value, err := a.Read(t.Context(), pg+"/fsync")
		if value != "" || !errors.Is(err, change.ErrGone) {
			t.Errorf("%s: read %q, %v", name, value, err)
		}
		if err := a.Write(t.Context(), pg+"/fsync", "on"); err == nil {
			t.Errorf("%s was written over", name)
		}
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
	}
}

// A file of the directory's owner is bulkhead's, as after a chown -R or a copy by the server's tools; of another it is
// not.
func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("files of other accounts need root")
	}
	h := newHost(t, dirs(nil))
	a, at := optionfile.Settings{Host: h}, filepath.Join(h.Dir, pg)
	if err := os.Chown(filepath.Dir(at), 12345, -1); err != nil {
		t.Fatal(err)
	}
	if err := a.Write(t.Context(), pg+"/fsync", "on"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(at, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if value, err := a.Read(t.Context(), pg+"/fsync"); value != "on" || err != nil {
		t.Errorf("of the owner of its directory: %q, %v", value, err)
	}
	if err := os.Chown(at, 54321, -1); err != nil {
		t.Fatal(err)
	}
	if value, err := a.Read(t.Context(), pg+"/fsync"); value != "" || !errors.Is(err, change.ErrGone) {
		t.Errorf("of another: %q, %v", value, err)
	}
}

// What the account of a database can put there instead of a file keeps nobody waiting, and is no error of the host's.
func TestIrregular(t *testing.T) {
	h := newHost(t, dirs(nil))
	at := filepath.Join(h.Dir, pg)
	later := filepath.Join(filepath.Dir(at), "zzz.conf")
	for name, make := range map[string]func(at string) error{
		"a FIFO": func(at string) error { return syscall.Mkfifo(at, 0o600) },
		"a socket": func(at string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
		"a directory": func(at string) error { return os.Mkdir(at, 0o700) },
	} {
		dir := t.TempDir() // names of sockets are short
		t.Chdir(filepath.Dir(at))
		for _, file := range []string{filepath.Base(at), filepath.Base(later)} {
			if err := make(file); err != nil {
				t.Fatal(err)
			}
		}
		t.Chdir(dir)
		done := goOn(func() {
			for _, root := range []optionfile.Host{h, {Root: sysroot.New("/")}} {
				addr := pg
				if root.Dir == "" {
					addr = at
				}
				_, err := optionfile.Settings{Host: root}.Read(t.Context(), addr+"/fsync")
				if !errors.Is(err, change.ErrGone) {
					t.Errorf("%s: %v", name, err)
				}
			}
			by := map[change.Target]string{}
			optionfile.Overruled(h.Root, map[change.Target]string{optionfile.Target(pg + "/fsync"): "on"}, by)
			if len(by) > 0 {
				t.Errorf("%s: %v", name, by)
			}
		})
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: it waits", name)
		}
		if err := errors.Join(os.Remove(at), os.Remove(later)); err != nil {
			t.Fatal(err)
		}
	}
}

// goOn calls a function beside the test.
func goOn(do func()) (done chan struct{}) {
	done = make(chan struct{})
	go func() { do(); close(done) }()
	return done
}

func TestCheck(t *testing.T) {
	for addr, value := range map[string]string{
		"/etc/mysql/my.cnf/sync_binlog":         "1",
		"etc/zz-bulkhead.cnf/sync_binlog":       "1",
		"/etc/../zz-bulkhead.cnf/sync_binlog":   "1",
		"/a b/zz-bulkhead.cnf/sync_binlog":      "1",
		"/etc/zz-bulkhead.cnf/fsync":            "on",
		"/etc/zz-bulkhead.conf/archive_command": "rm",
		my + "/sync_binlog":                     "0",
		pg + "/fsync":                           "off",
		"":                                      "",
	} {
		if err := optionfile.Check(addr, value); err == nil {
			t.Errorf("%s = %s is taken", addr, value)
		}
	}
	if err := optionfile.Check(my+"/sync_binlog", "1"); err != nil {
		t.Error(err)
	}
}

// The postmaster whose configuration is beside the directory reads its files again, and nobody else.
func TestReread(t *testing.T) {
	h := newHost(t, dirs(map[string]string{
		"proc/11/cmdline": "/usr/lib/postgresql/15/bin/postgres\x00-D\x00/var/lib/postgresql/15/main\x00-c\x00" +
			"config_file=/etc/postgresql/15/main/postgresql.conf\x00",
		"proc/12/cmdline": "postgres: 15/main: checkpointer \x00",
		"proc/13/cmdline": "/usr/lib/postgresql/16/bin/postgres\x00-c\x00config_file=/etc/postgresql/16/main/" +
			"postgresql.conf\x00",
		"proc/14/cmdline": "/bin/postgres\x00-D\x00.\x00", "proc/15/cmdline": "",
		"srv/pg/conf.d/1.conf": ""}))
	if err := os.Symlink("/srv/pg", filepath.Join(h.Dir, "proc/14/cwd")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/srv/pg", filepath.Join(h.Dir, "pgdata")); err != nil {
		t.Fatal(err)
	}
	var told []int
	h.Signal = func(pid int) error { told = append(told, pid); return nil }
	for dir, want := range map[string][]int{"/etc/postgresql/15/main/conf.d": {11}, "/srv/pg/conf.d": {14},
		"/pgdata/conf.d": {14}, "/none/conf.d": nil} {
		told = nil
		if err := h.Reread(dir); err != nil || !slices.Equal(told, want) {
			t.Errorf("%s: %v were told, want %v; %v", dir, told, want, err)
		}
	}
}

// A file of a later name that sets another value wins, and is named; one that sets the same does not, however it is
// written.
func TestOverruled(t *testing.T) {
	for _, tt := range []struct{ target, want, line, sets string }{
		{my + "/sync_binlog", "1", "sync-binlog = 0", "0"},
		{my + "/sync_binlog", "1", "sync_binlog=1 # the safe one", ""},
		{my + "/sync_binlog", "1", "#sync_binlog = 0", ""},
		{my + "/innodb_doublewrite", "ON", "innodb_doublewrite", ""},
		{my + "/innodb_doublewrite", "ON", "innodb-doublewrite = 1", ""},
		{my + "/innodb_doublewrite", "ON", "skip-innodb-doublewrite", "OFF"},
		{my + "/innodb_doublewrite", "ON", "loose-disable-innodb-doublewrite", "OFF"},
		{my + "/innodb_doublewrite", "ON", "skip-innodb-doublewrite = 0", ""},
		{pg + "/fsync", "on", "fsync = 'off' # for the night", "off"},
		{pg + "/fsync", "on", "fsync\toff", "off"},
		{pg + "/fsync", "on", "FSYNC = yes", ""},
		{pg + "/fsync", "on", "fsyncs = off", ""},
	} {
		file := filepath.Join(filepath.Dir(filepath.Dir(tt.target)), "zzz"+filepath.Ext(filepath.Dir(tt.target)))
		h := newHost(t, dirs(map[string]string{file: "\n" + tt.line + "\n", file + ".txt": "sync_binlog = 7\n"}))
		by := map[change.Target]string{}
		target := optionfile.Target(tt.target)
		optionfile.Overruled(h.Root, map[change.Target]string{target: tt.want}, by)
		want := ""
		if tt.sets != "" {
			want = "line 2 of " + file + " sets " + tt.sets
		}
		if by[target] != want {
			t.Errorf("%s: %q, want %q", tt.line, by[target], want)
		}
	}
}

// Nothing is written into a captured host.
func TestCaptured(t *testing.T) {
	h := newHost(t, dirs(nil))
	h.Dir = ""
	err := optionfile.Settings{Host: h}.Write(t.Context(), pg+"/fsync", "on")
	if !errors.Is(err, change.ErrCaptured) {
		t.Error(err)
	}
	if err := h.Reread("/x"); err == nil || !strings.Contains(err.Error(), change.ErrCaptured.Error()) {
		t.Error(err)
	}
}
