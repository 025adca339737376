package sepolicy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/linux/tunable/sepolicy/sepolicytest"
)

const active = sepolicytest.Active

type policy struct {
	*sepolicytest.Policy
	dir string
}

func newPolicy(t *testing.T) policy {
	t.Helper()
	dir := t.TempDir()
	return policy{sepolicytest.New(t, dir), dir}
}

func (p policy) host() sepolicy.Host {
	return sepolicy.Host{Root: sysroot.New(p.dir), Dir: p.dir, Run: p.Run, Files: p}
}

func TestConformance(t *testing.T) {
	p := newPolicy(t)
	p.Put("srv/db/ibdata1", "")
	p.Put("srv/db/sub/t.ibd", "")
	all := p.host().Actuators()
	for _, tt := range []conformance.Case{
		{Target: sepolicy.Target("context /srv/db.x"), Values: []string{"mysqld_db_t", "mysqld_log_t"},
			Refused: "no_such_t"},
		{Target: sepolicy.Target("port tcp/4444"), Values: []string{"mysqld_port_t", "other_port_t"},
			Refused: "no_such_t"},
		{Target: sepolicy.Target("port udp/4567-4568"), Values: []string{"mysqld_port_t"}, Refused: "x;y"},
		{Target: sepolicy.Target("boolean mysql_connect_any"), Values: []string{"on"}, Refused: "maybe"},
		{Target: change.Target{Kind: sepolicy.KindSwitch, Addr: "mysql_connect_any"}, Values: []string{"on"},
			Refused: "maybe", Gone: "none_such"},
		{Target: sepolicy.Target("module bulkhead_mysqld_t"),
			Values:  []string{"(allow mysqld_t self (process (setpgid)))", "(allow a_t b_t (file (read)))"},
			Refused: "(allow no_such_t self (process (setpgid)))"},
		{Target: sepolicy.Target("module permissive_mysqld_t"), Values: []string{sepolicy.Permissive("mysqld_t")}},
		{Target: sepolicy.Target("labels /srv/db"), Values: []string{"mysqld_db_t",
			"mysqld_db_t\nmysqld_log_t \"sub\""}, Refused: "no_such_t", Gone: "/srv/none"},
	} {
		tt.Actuator = all[tt.Target.Kind]
		t.Run(tt.Target.String(), func(t *testing.T) { conformance.Run(t, tt) })
	}
}

// What is no setting is refused, and so is a tree that is not one database's.
func TestCheck(t *testing.T) {
	for name, value := range map[string]string{
		"context /": "mysqld_db_t", "context /var/lib": "mysqld_db_t", "context /etc": "mysqld_db_t",
		"context srv/db": "mysqld_db_t", "context /srv/../etc": "mysqld_db_t", "context /srv/a b": "mysqld_db_t",
		"context /srv/db": "mysqld_db_t:s0", "labels /proc/1": "mysqld_db_t", "labels /srv/db": "",
		"labels /srv/db/x": "a_t\nb_t \"../y\"", "port 4444": "mysqld_port_t", "port tcp/0": "mysqld_port_t",
		"port tcp/4444": "mysqld_port_t -S x", "boolean a": "yes", "boolean a b": "on", "boolean b": "off",
		"module mine":                "(allow a b (c (d)))",
		"module bulkhead_x":          "(allow a b (c (d)))\n(boolean x true)",
		"module bulkhead_y":          "(typealias x)",
		"module permissive_mysqld_t": "(allow a b (c (d)))", "enforce": "0", "permissive mysqld_t": "on",
	} {
		if err := sepolicy.Check(name, value); err == nil {
			t.Errorf("%s = %q is taken", name, value)
		}
	}
	for name, value := range map[string]string{
		"context /srv/db1": "mysqld_db_t", "port tcp/4444": "mysqld_port_t from kerberos_port_t", "boolean a_b": "on",
		"labels /data": "mysqld_db_t\nmysqld_var_run_t \"mysql.sock\"", "port udp/4567-4568": "mysqld_port_t",
		"module bulkhead_mysqld_t":   "(allow mysqld_t self (process (setpgid getattr))) (allow a_t b_t (file (read)))",
		"module permissive_mysqld_t": "(typepermissive mysqld_t)",
	} {
		if err := sepolicy.Check(name, value); err != nil {
			t.Error(err)
		}
	}
}

// A port that the loaded policy gives somebody, alone or in a range, is taken only from the type that is named.
func TestPortOfAnother(t *testing.T) {
	p := newPolicy(t)
	p.Load("../../../selinux/policydb/testdata/small.hex")
	a := p.host().Actuators()[sepolicy.KindPort]
	for _, c := range []struct{ addr, value, want string }{
		{"tcp/4444", "mysqld_port_t from kerberos_port_t", "-m -t mysqld_port_t -p tcp 4444"},
		{"tcp/4444", "mysqld_port_t", "tcp/4444 is kerberos_port_t's"},
		{"tcp/4444", "mysqld_port_t from other_port_t", "tcp/4444 is kerberos_port_t's"},
		{"tcp/4443-4445", "mysqld_port_t", "tcp/4444 is kerberos_port_t's"},
		{"tcp/23306", "mysqld_port_t", "-a -t mysqld_port_t -p tcp 23306"},
	} {
		called := len(p.Called)
		err := change.Set(t.Context(), a, sepolicy.Target("port "+c.addr), c.value)
		got := strings.Join(p.Called[called:], "\n")
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s = %s: %q, want %q", c.addr, c.value, got, c.want)
		}
		if err := change.Set(t.Context(), a, sepolicy.Target("port "+c.addr), ""); err != nil {
			t.Fatal(err)
		}
	}
}

// A boolean is taken out of the store where it is the only one. The others stay, also where a program is killed: then
// it stays too, as the policy has it, and each has the value in the kernel that it had.
func TestOtherBooleansStay(t *testing.T) {
	for had, want := range map[string]string{
		"mysql_connect_any=1\n":                   "",
		"other=1\nthird=0\nmysql_connect_any=1\n": "other=1\nthird=0\nmysql_connect_any=0\n",
		"other=1\nmysql_connect_any=0\n":          "other=1\nmysql_connect_any=0\n",
		"other=1\n":                               "other=1\n",
	} {
		p := newPolicy(t)
		p.Put(active+"booleans.local", "# auto-generated\n"+had)
		p.Put("sys/fs/selinux/booleans/other", "0 0")
		p.Put("sys/fs/selinux/booleans/mysql_connect_any", "1 1")
		a := p.host().Actuators()[sepolicy.KindBoolean]
		if err := change.Set(t.Context(), a, sepolicy.Target("boolean mysql_connect_any"), ""); err != nil {
			t.Fatal(err)
		}
		if got := p.Text(active + "booleans.local"); got != "# auto-generated\n"+want {
			t.Errorf("of %q the store has %q", had, got)
		}
		for name, want := range map[string]string{"other": "0", "third": "0", "mysql_connect_any": "1"} {
			if got := p.Text("sys/fs/selinux/booleans/" + name); !strings.HasPrefix(got, want) {
				t.Errorf("of %q %s is %q in the kernel, want %s", had, name, got, want)
			}
		}
	}
}

// A line that somebody wrote with a user or a range of its own is not changed.
func TestForeignContext(t *testing.T) {
	p := newPolicy(t)
	const line = "/srv/db(/.*)?    staff_u:object_r:mysqld_db_t:s0:c1\n"
	p.Put(active+"file_contexts.local", line)
	a := p.host().Actuators()[sepolicy.KindContext]
	if err := a.Write(t.Context(), "/srv/db", "mysqld_log_t"); err == nil || !strings.Contains(err.Error(), "staff_u") {
		t.Errorf("it says %v", err)
	}
	if got := p.Text(active + "file_contexts.local"); got != line || len(p.Called) > 0 {
		t.Errorf("%q; called %q", got, p.Called)
	}
}

// inode is the number of a file, by which the policy knows its label.
func (p policy) inode(t *testing.T, file string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(p.dir, file), &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Labels: no symbolic link is followed, files that came since have what their directory had, and those that are gone
// do not matter.
func TestLabels(t *testing.T) {
	p := newPolicy(t)
	p.Put("etc/shadow", "")
	p.Put("srv/db/ibdata1", "")
	p.Put("srv/db/mysql.pid", "")
	p.Put("srv/db/sub/t.ibd", "")
	must(t, os.Symlink("../../etc/shadow", filepath.Join(p.dir, "srv/db/link")))
	const pid = "unconfined_u:object_r:mysqld_var_run_t:s0:c1"
	p.Labels[p.inode(t, "srv/db/mysql.pid")] = pid
	p.Labels[p.inode(t, "srv/db/sub")] = "unconfined_u:object_r:user_home_t:s0"
	a, target := p.host().Actuators()[sepolicy.KindLabels], sepolicy.Target("labels /srv/db")
	old, err := a.Read(t.Context(), "/srv/db")
	must(t, err)
	want := "system_u:object_r:var_t:s0\n" + pid + " \"mysql.pid\"\n" +
		"unconfined_u:object_r:user_home_t:s0 \"sub\"\nsystem_u:object_r:var_t:s0 \"sub/t.ibd\""
	if old != want {
		t.Errorf("it is\n%s\nwant\n%s", old, want)
	}
	must(t, change.Set(t.Context(), a, target, "mysqld_db_t"))
	if got := p.Labels[p.inode(t, "srv/db/mysql.pid")]; got != "unconfined_u:object_r:mysqld_db_t:s0:c1" {
		t.Errorf("the file has %s: user and range are not its own", got)
	}
	if got, set := p.Labels[p.inode(t, "etc/shadow")]; set {
		t.Errorf("the target of the link has %s", got)
	}
	must(t, os.Remove(filepath.Join(p.dir, "srv/db/mysql.pid")))
	p.Put("srv/db/sub/new.ibd", "")
	p.Labels[p.inode(t, "srv/db/sub/new.ibd")] = "system_u:object_r:mysqld_db_t:s0"
	undone, err := a.Undo(t.Context(), change.Of(target, old, "mysqld_db_t"))
	if err != nil || !undone {
		t.Fatal(undone, err)
	}
	if got := p.Labels[p.inode(t, "srv/db/sub/new.ibd")]; got != "unconfined_u:object_r:user_home_t:s0" {
		t.Errorf("a new file has %s", got)
	}
}

// What a running server makes while labels are written, or between, is no difference: files as their directory's, and
// sockets.
func TestLabelsOfServer(t *testing.T) {
	p := newPolicy(t)
	p.Put("srv/db/ibdata1", "")
	p.Labels[p.inode(t, "srv/db")] = "unconfined_u:object_r:var_t:s0"
	p.Labels[p.inode(t, "srv/db/ibdata1")] = "unconfined_u:object_r:var_t:s0"
	a, target := p.host().Actuators()[sepolicy.KindLabels], sepolicy.Target("labels /srv/db")
	old, err := a.Read(t.Context(), "/srv/db")
	must(t, err)
	must(t, change.Set(t.Context(), a, target, "mysqld_db_t"))
	must(t, unix.Mknod(filepath.Join(p.dir, "srv/db/mysql.sock"), unix.S_IFSOCK|0o600, 0))
	p.Labels[p.inode(t, "srv/db/mysql.sock")] = "system_u:object_r:mysqld_var_run_t:s0"
	must(t, change.Check(t.Context(), a, target, "mysqld_db_t"))
	_, err = a.Undo(t.Context(), change.Of(target, old, "mysqld_db_t"))
	must(t, err)
	p.Put("srv/db/new.ibd", "")
	p.Labels[p.inode(t, "srv/db/new.ibd")] = "system_u:object_r:var_t:s0"
	must(t, change.Check(t.Context(), a, target, old))
	p.Labels[p.inode(t, "srv/db/new.ibd")] = "system_u:object_r:mysqld_db_t:s0"
	if err := change.Check(t.Context(), a, target, old); !errors.Is(err, change.ErrDiffers) {
		t.Errorf("with a type that was taken back: %v", err)
	}
}

// A symbolic link above the tree leads nowhere: nothing is read, written or undone through it.
func TestLabelsBehindLink(t *testing.T) {
	p := newPolicy(t)
	p.Put("etc/pam.d/su", "")
	must(t, os.MkdirAll(filepath.Join(p.dir, "data"), 0o755))
	must(t, os.Symlink("../etc", filepath.Join(p.dir, "data/x")))
	a, target := p.host().Actuators()[sepolicy.KindLabels], sepolicy.Target("labels /data/x/pam.d")
	for what, err := range map[string]error{
		"write": a.Write(t.Context(), target.Addr, "mysqld_db_t"),
		"read":  change.Check(t.Context(), a, target, "var_t"),
	} {
		if !errors.Is(err, change.ErrGone) || !strings.Contains(err.Error(), "/data/x is a symbolic link") {
			t.Errorf("%s: %v", what, err)
		}
	}
	undone, err := a.Undo(t.Context(), change.Of(target, dbLabel, "mysqld_db_t"))
	if undone || err != nil || len(p.Labels) > 0 {
		t.Errorf("undone %t, %v; %v", undone, err, p.Labels)
	}
}

const dbLabel = "system_u:object_r:mysqld_db_t:s0"

// A file with another name is not labelled: with types it is an error, and an undo leaves one that came since.
func TestLabelsOfHardLinks(t *testing.T) {
	p := newPolicy(t)
	p.Put("srv/other/f", "")
	p.Put("srv/db/a", "")
	a, target := p.host().Actuators()[sepolicy.KindLabels], sepolicy.Target("labels /srv/db")
	old, err := a.Read(t.Context(), "/srv/db")
	must(t, err)
	must(t, change.Set(t.Context(), a, target, "mysqld_db_t"))
	other := p.inode(t, "srv/other/f")
	p.Labels[other] = "system_u:object_r:httpd_t:s0"
	must(t, os.Link(filepath.Join(p.dir, "srv/other/f"), filepath.Join(p.dir, "srv/db/f")))
	undone, err := a.Undo(t.Context(), change.Of(target, old, "mysqld_db_t"))
	if !undone || err != nil || p.Labels[other] != "system_u:object_r:httpd_t:s0" {
		t.Errorf("undone %t, %v; the file has %s", undone, err, p.Labels[other])
	}
	for _, tree := range []string{"/srv/db", "/srv/db/f"} {
		err = a.Write(t.Context(), tree, "mysqld_db_t")
		if err == nil || !strings.Contains(err.Error(), "hard link") ||
			p.Labels[other] != "system_u:object_r:httpd_t:s0" {
			t.Errorf("write %s: %v; the file has %s", tree, err, p.Labels[other])
		}
	}
}

// A program that changes the policy is not waited for by who only looks, but before a change and before an undo.
func TestWaits(t *testing.T) {
	p := newPolicy(t)
	lock, err := os.Open(filepath.Join(p.dir, "var/lib/selinux/default/semanage.trans.LOCK"))
	must(t, err)
	defer lock.Close()
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	for _, at := range []change.Target{sepolicy.Target("port tcp/4444"), sepolicy.Target("boolean other"),
		sepolicy.Target("module bulkhead_x"), sepolicy.Target("context /srv/db")} {
		a := p.host().Actuators()[at.Kind]
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := a.Read(ctx, at.Addr); err != nil || ctx.Err() != nil {
			t.Errorf("read %s: %v", at, err)
		}
		if err := a.Write(ctx, at.Addr, "on"); err == nil || !strings.Contains(err.Error(), "another program") {
			t.Errorf("write %s: %v", at, err)
		}
		cancel()
	}
	go func() {
		p.Put(active+"ports.local", "portcon tcp 4444 system_u:object_r:mysqld_port_t:s0\n")
		_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
	}()
	a := p.host().Actuators()[sepolicy.KindPort]
	undone, err := sepolicy.Waiting{Actuator: a, Host: p.host()}.Undo(t.Context(),
		change.Of(sepolicy.Target("port tcp/4444"), "", "mysqld_port_t"))
	if err != nil || !undone {
		t.Errorf("what came late is not undone: %t, %v", undone, err)
	}
}

// A host without SELinux has none of it, and one that is only captured cannot be changed.
func TestNone(t *testing.T) {
	h := sepolicy.Host{Root: sysroot.New(t.TempDir())}
	for kind, a := range h.Actuators() {
		addr := map[change.Kind]string{sepolicy.KindContext: "/srv/db", sepolicy.KindLabels: "/srv/db",
			sepolicy.KindPort: "tcp/1", sepolicy.KindModule: "bulkhead_x"}[kind]
		if addr == "" {
			addr = "a"
		}
		if _, err := a.Read(t.Context(), addr); !errors.Is(err, change.ErrGone) && !errors.Is(err, change.ErrCaptured) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	p := newPolicy(t)
	h = p.host()
	h.Dir = ""
	if err := h.Actuators()[sepolicy.KindPort].Write(t.Context(), "tcp/1", "a_t"); !errors.Is(err, change.ErrCaptured) {
		t.Errorf("captured: %v", err)
	}
}
