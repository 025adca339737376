package sepolicy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
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
		{Target: sepolicy.Target("boolean mysql_connect_any"), Values: []string{"on", "off"}, Refused: "maybe"},
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
		"port tcp/4444": "mysqld_port_t -S x", "boolean a": "yes", "boolean a b": "on",
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
		"context /srv/db1": "mysqld_db_t", "port tcp/4444": "mysqld_port_t from kerberos_port_t", "boolean a_b": "off",
		"labels /data": "mysqld_db_t\nmysqld_var_run_t \"mysql.sock\"", "port udp/4567-4568": "mysqld_port_t",
		"module bulkhead_mysqld_t":   "(allow mysqld_t self (process (setpgid getattr))) (allow a_t b_t (file (read)))",
		"module permissive_mysqld_t": "(typepermissive mysqld_t)",
	} {
		if err := sepolicy.Check(name, value); err != nil {
			t.Error(err)
		}
	}
}

// A port that the policy has is taken from its type only where that is named.
func TestPortOfAnother(t *testing.T) {
	p := newPolicy(t)
	a := p.host().Actuators()[sepolicy.KindPort]
	for _, value := range []string{"mysqld_port_t", "", "mysqld_port_t from kerberos_port_t", ""} {
		if err := change.Set(t.Context(), a, sepolicy.Target("port tcp/4444"), value); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"semanage port -a -t mysqld_port_t -p tcp 4444", "semanage port -d -p tcp 4444",
		"semanage port -m -t mysqld_port_t -p tcp 4444", "semanage port -d -p tcp 4444"}
	if !slices.Equal(p.Called, want) {
		t.Errorf("called\n%s\nwant\n%s", strings.Join(p.Called, "\n"), strings.Join(want, "\n"))
	}
}

// Taking one boolean out leaves the others in the store, and in the kernel as they were there.
func TestOtherBooleansStay(t *testing.T) {
	p := newPolicy(t)
	p.Put(active+"booleans.local", "# auto-generated\nother=1\nthird=0\nmysql_connect_any=1\n")
	p.Put("sys/fs/selinux/booleans/other", "0 0")
	p.Put("sys/fs/selinux/booleans/mysql_connect_any", "1 1")
	a := p.host().Actuators()[sepolicy.KindBoolean]
	if err := change.Set(t.Context(), a, sepolicy.Target("boolean mysql_connect_any"), ""); err != nil {
		t.Fatal(err)
	}
	if got := p.Text(active + "booleans.local"); got != "# auto-generated\nother=1\nthird=0\n" {
		t.Errorf("the store has %q", got)
	}
	for name, want := range map[string]string{"other": "0", "third": "0", "mysql_connect_any": "1"} {
		if got := p.Text("sys/fs/selinux/booleans/" + name); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q in the kernel, want %s", name, got, want)
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

// Labels: no symbolic link is followed, files that came since have what their directory had, and those that are gone
// do not matter. A file with another name outside of the tree is refused.
func TestLabels(t *testing.T) {
	p := newPolicy(t)
	p.Put("etc/shadow", "")
	p.Put("srv/db/ibdata1", "")
	p.Put("srv/db/mysql.sock", "")
	p.Put("srv/db/sub/t.ibd", "")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink("../../etc/shadow", filepath.Join(p.dir, "srv/db/link")))
	at := func(file string) uint64 {
		var st unix.Stat_t
		must(unix.Lstat(filepath.Join(p.dir, file), &st))
		return st.Ino
	}
	const sock = "unconfined_u:object_r:mysqld_var_run_t:s0:c1"
	p.Labels[at("srv/db/mysql.sock")] = sock
	p.Labels[at("srv/db/sub")] = "unconfined_u:object_r:user_home_t:s0"
	a, target := p.host().Actuators()[sepolicy.KindLabels], sepolicy.Target("labels /srv/db")
	old, err := a.Read(t.Context(), "/srv/db")
	must(err)
	want := "system_u:object_r:var_t:s0\n" + sock + " \"mysql.sock\"\n" +
		"unconfined_u:object_r:user_home_t:s0 \"sub\"\nsystem_u:object_r:var_t:s0 \"sub/t.ibd\""
	if old != want {
		t.Errorf("it is\n%s\nwant\n%s", old, want)
	}
	must(change.Set(t.Context(), a, target, "mysqld_db_t"))
	if got := p.Labels[at("srv/db/mysql.sock")]; got != "unconfined_u:object_r:mysqld_db_t:s0:c1" {
		t.Errorf("the socket has %s: user and range are not its own", got)
	}
	if got, set := p.Labels[at("etc/shadow")]; set {
		t.Errorf("the target of the link has %s", got)
	}
	must(os.Remove(filepath.Join(p.dir, "srv/db/mysql.sock")))
	p.Put("srv/db/sub/new.ibd", "")
	p.Labels[at("srv/db/sub/new.ibd")] = "system_u:object_r:mysqld_db_t:s0"
	undone, err := a.Undo(t.Context(), change.Of(target, old, "mysqld_db_t"))
	if err != nil || !undone {
		t.Fatal(undone, err)
	}
	if got := p.Labels[at("srv/db/sub/new.ibd")]; got != "unconfined_u:object_r:user_home_t:s0" {
		t.Errorf("a new file has %s", got)
	}
	must(os.Link(filepath.Join(p.dir, "etc/shadow"), filepath.Join(p.dir, "srv/db/hard")))
	err = a.Write(t.Context(), "/srv/db", "mysqld_db_t")
	if err == nil || !strings.Contains(err.Error(), "hard link") {
		t.Errorf("a hard link: %v", err)
	}
}

// A program that still changes the policy is waited for, when a change is undone too.
func TestWaits(t *testing.T) {
	p := newPolicy(t)
	lock, err := os.Open(filepath.Join(p.dir, "var/lib/selinux/default/semanage.trans.LOCK"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	w := sepolicy.Waiting{Actuator: p.host().Actuators()[sepolicy.KindPort], Host: p.host()}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if value, err := w.Read(ctx, "tcp/4444"); value != "" || err != nil {
		t.Errorf("read: %q, %v", value, err)
	}
	if err := w.Write(ctx, "tcp/4444", "a_t"); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("written: %v", err)
	}
	go func() {
		p.Put(active+"ports.local", "portcon tcp 4444 system_u:object_r:mysqld_port_t:s0\n")
		_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
	}()
	undone, err := w.Undo(t.Context(), change.Of(sepolicy.Target("port tcp/4444"), "", "mysqld_port_t"))
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
