package loaded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/verdict"
)

const trees = `
-- etc/selinux/config --
SELINUXTYPE=targeted
-- etc/selinux/targeted/contexts/files/file_contexts --
/srv(/.*)?	system_u:object_r:var_t:s0
/srv/db/www(/.*)?	system_u:object_r:httpd_content_t:s0
/usr/sbin/mysqld	--	system_u:object_r:mysqld_exec_t:s0
/usr/sbin/httpd	--	system_u:object_r:httpd_exec_t:s0
-- srv/plain/a --
-- srv/db/www/b --
-- proc/7/attr/current --
system_u:system_r:postgresql_t:s0
-- proc/6/attr/current --
system_u:system_r:container_t:s0:c1,c2
-- proc/8/attr/current --
system_u:system_r:unconfined_service_t:s0
-- data --
symlink: srv/plain
`

// general has one label for all files.
type general struct{}

func (general) Label(int) (string, error)  { return "system_u:object_r:var_t:s0", nil }
func (general) SetLabel(int, string) error { panic("nothing is changed") }

// starts has the domains of programs.
type starts struct{}

func (starts) Domain(_, file string) string {
	return map[string]string{"mysqld_exec_t": "mysqld_t", "httpd_exec_t": "httpd_t"}[file]
}

// What is below a directory is told: its types, what has a context of its own, links, and other names.
func TestTree(t *testing.T) {
	dir := linuxtest.Unpack(t, trees)
	if err := os.Link(filepath.Join(dir, "srv/plain/a"), filepath.Join(dir, "srv/db/hard")); err != nil {
		t.Fatal(err)
	}
	root := sysroot.New(dir)
	l := loaded.Local{Root: root, Found: loaded.Of(root), Files: general{}}
	tree, err := l.Tree(t.Context(), "/srv/db")
	if err != nil || tree.Labels != "var_t\nhttpd_content_t \"www\"" || tree.Has["var_t"] == "" || len(tree.Has) != 1 ||
		!strings.HasPrefix(tree.Narrower, "/srv/db/www") || tree.Linked != "/srv/db/hard" || tree.Stranger != "" {
		t.Errorf("%+v, %v", tree, err)
	}
	l.Proc, l.Instances = procfs.New(sysroot.New("/")), []engine.Instance{{Main: procfs.ID{PID: os.Getpid()}}}
	if of, err := l.Tree(t.Context(), "/srv/db"); err != nil || !of.Owned || tree.Owned {
		t.Errorf("of the account of a database: %v, without one: %v, %v", of.Owned, tree.Owned, err)
	}
	if _, err := l.Tree(t.Context(), "/data/a"); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("through a link: %v", err)
	}
	denials := []avc.Denial{{Path: "/data/a", Class: "file"}, {Path: "/data/none", Class: "file"},
		{Path: "/data", Class: "lnk_file"}, {Path: "x", Class: "file"}}
	loaded.Resolve(root, denials)
	for i, want := range []string{"/srv/plain/a", "/srv/plain/none", "/data", "x"} {
		if denials[i].Path != want {
			t.Errorf("%s, want %s", denials[i].Path, want)
		}
	}
}

// Domains of databases are those of servers that run, and those in which systemd starts their programs. That of
// containers is one for all of them.
func TestDomains(t *testing.T) {
	root := sysroot.New(linuxtest.Unpack(t, trees))
	ask := verdict.Host{Files: loaded.Of(root).Ask.Files, Starts: starts{}}
	denied := func(exe, domain string) avc.Denial {
		return avc.Denial{Exe: exe, Source: avc.Context{Type: domain}}
	}
	got := loaded.Domains(root, ask, []engine.Instance{{Main: procfs.ID{PID: 7}}, {Main: procfs.ID{PID: 8}},
		{Main: procfs.ID{PID: 9}}, {Main: procfs.ID{PID: 6}, Container: true}}, []avc.Denial{
		denied("/usr/sbin/mysqld", "mysqld_t"), denied("/usr/sbin/mysqld", "httpd_t"),
		denied("/usr/sbin/httpd", "httpd_t"), denied("/tmp/mysqld", "user_t"),
		denied("", "ftpd_t")})
	if strings.Join(got, " ") != "postgresql_t mysqld_t" {
		t.Errorf("%q", got)
	}
}

// A database uses the directory of its data, through links too, and a container's is another.
func TestUsing(t *testing.T) {
	root := sysroot.New(linuxtest.Unpack(t, trees))
	l := loaded.Local{Root: root, Proc: procfs.New(root), Instances: []engine.Instance{
		{Engine: engine.MySQL, Port: 3306, DataDir: "/data", Main: procfs.ID{PID: 7}},
		{Engine: engine.MySQL, Port: 3307, DataDir: "/srv/plain2", Main: procfs.ID{PID: 8}},
		{Engine: engine.MySQL, Port: 3308, DataDir: "/srv/plain", Main: procfs.ID{PID: 8}, Container: true},
		{Engine: engine.MySQL, Port: 3309, Main: procfs.ID{PID: 9}}}}
	for at, want := range map[string]string{"/srv/plain": "mysql3306", "/srv": "mysql3306 mysql3307", "/srv/db": ""} {
		if got := strings.Join(l.Using(at), " "); got != want {
			t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
}
