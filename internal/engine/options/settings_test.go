package options

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/linux/procfs"
)

// files are what a process sees.
type files map[string]string

func (f files) ReadRootFile(_ int, path string, _ int64) ([]byte, error) {
	text, ok := f[path]
	if !ok {
		return nil, errors.New("not there")
	}
	return []byte(text), nil
}
func (files) Cwd(int) (string, error)       { return "/", nil }
func (files) Environ(int) ([]string, error) { return nil, nil }
func (files) UserName(int) string           { return "" }

func (f files) list(dir string) (names []string) {
	for name := range f {
		if base, inside := strings.CutPrefix(name, dir+"/"); inside && !strings.Contains(base, "/") {
			names = append(names, base)
		}
	}
	return names
}

func TestMySQLWithListed(t *testing.T) {
	f := files{"/etc/my.cnf": "[mysqld]\nport=1\n!includedir /etc/my.cnf.d\n",
		"/etc/my.cnf.d/zz-site.cnf": "[mysqld]\n# a comment\ninnodb-buffer-pool-size = 1G\n",
		"/etc/my.cnf.d/aa.cnf":      "[mysqld]\ninnodb_buffer_pool_size = 2G\n",
		"/etc/my.cnf.d/x.old":       "[mysqld]\nport=3\n"}
	o := Reader{f}.MySQLWith(&procfs.Process{Args: []string{"mysqld", "--port=7"}}, f.list)
	for name, want := range map[string]string{"innodb_buffer_pool_size": "1G /etc/my.cnf.d/zz-site.cnf:3",
		"port": "7 the command line", "socket": " "} {
		if got := o.Value(name) + " " + o.From(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	want := []string{"/etc/my.cnf:2", "/etc/my.cnf.d/aa.cnf:2", "/etc/my.cnf.d/zz-site.cnf:3"}
	if got := o.Lines(); !slices.Equal(got, want) { // of a setting with the last word elsewhere, too
		t.Errorf("lines %q, want %q", got, want)
	}
}

func TestPostgresSettings(t *testing.T) {
	f := files{
		"/c/postgresql.conf": "shared_buffers = 1GB\ninclude_dir 'conf.d'\ninclude_if_exists = 'none.conf'\n",
		"/c/conf.d/b.conf":   "shared_buffers = 2GB\nfsync = off\n", "/c/conf.d/.h.conf": "fsync = x\n",
		"/c/conf.d/a.conf":        "shared_buffers = 3GB\n",
		"/d/postgresql.auto.conf": "work_mem = '8MB'\n",
	}
	p := &procfs.Process{Args: []string{"postgres", "-D", "/d", "-c", "huge_pages=on"}}
	got, unread := Reader{f}.PostgresSettings(p, "/c/postgresql.conf", "/d", f.list)
	for name, want := range map[string]Setting{"shared_buffers": {"2GB", "/c/conf.d/b.conf:1"},
		"fsync": {"off", "/c/conf.d/b.conf:2"}, "work_mem": {"8MB", "/d/postgresql.auto.conf:1"},
		"huge_pages": {"on", "the command line"}} {
		if got[name] != want {
			t.Errorf("%s: %+v", name, got[name])
		}
	}
	if len(unread) > 0 {
		t.Error(unread)
	}
	f["/c/postgresql.conf"] = "include 'postgresql.conf'\ninclude 'gone.conf'\n"
	if _, unread := (Reader{f}).PostgresSettings(p, "/c/postgresql.conf", "/d", f.list); len(unread) == 0 {
		t.Error("a loop of includes and a missing file are not told: " + fmt.Sprint(unread))
	}
}

// Of an option and its skip-NAME the last one counts, and the command line before files.
func TestSwitched(t *testing.T) {
	const off = "[mysqld]\nskip-innodb-doublewrite\n"
	for _, c := range []struct{ file, arg, value, from string }{
		{off, "", "OFF", "/etc/my.cnf:2"}, {off + "innodb_doublewrite = ON\n", "", "ON", "/etc/my.cnf:3"},
		{"[mysqld]\ninnodb-doublewrite = ON\nskip_innodb_doublewrite\n", "", "OFF", "/etc/my.cnf:3"},
		{off, "--innodb-doublewrite=ON", "ON", "the command line"},
		{"[mysqld]\ninnodb_doublewrite = ON\n", "--skip-innodb-doublewrite", "OFF", "the command line"},
		{"[mysqld]\n", "", "", ""},
		{"[mysqld]\nskip-innodb-doublewrite # on ZFS = not needed\n", "", "OFF", "/etc/my.cnf:2"},
		{"[mysqld]\nskip-innodb-doublewrite = 0\n", "", "ON", "/etc/my.cnf:2"},
		{"[mysqld]\nloose-disable-innodb-doublewrite\n", "", "OFF", "/etc/my.cnf:2"},
		{off, "--enable-innodb-doublewrite", "", "the command line"},
		{"!include\t/etc/off.cnf\n", "", "OFF", "/etc/off.cnf:2"},
	} {
		args := MySQLArgs([]string{"mysqld", c.arg})
		read := func(name string) []byte {
			switch name {
			case "/etc/my.cnf":
				return []byte(c.file)
			case "/etc/off.cnf":
				return []byte(off)
			}
			return nil
		}
		o := MySQLOptions{args, readMySQLConfig(read, nil, args)}
		if value, from := o.Switched("innodb_doublewrite"); value != c.value || from != c.from {
			t.Errorf("%q %s: %q from %q", c.file, c.arg, value, from)
		}
	}
}
