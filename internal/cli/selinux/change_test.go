package selinux

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/selinux/remedy"
	"bulkhead/internal/selinux/verdict"
	"bulkhead/internal/transaction"
)

const captured = `
-- sys/fs/selinux/enforce --
1
-- etc/selinux/config --
SELINUXTYPE=targeted
-- etc/selinux/targeted/contexts/files/file_contexts --
/var/lib/mysql(/.*)?	system_u:object_r:mysqld_db_t:s0
/var/lib/mysql/mysql.sock	-s	system_u:object_r:mysqld_var_run_t:s0
/usr/sbin/mariadbd	--	system_u:object_r:mysqld_exec_t:s0
-- proc/self/mountinfo --
1 0 8:1 / / rw - ext4 a rw
2 1 0:5 / /proc rw - proc proc rw
-- var/lib/mysql/a.ibd --
-- data --
symlink: /var/lib/mysql
-- proc/sys/kernel/random/boot_id --
6ec2e5a4-7d2a-4a36-9b1e-0f5e8a4f1c11
-- var/lib/selinux/targeted/active/commit_num --
1
`

// lab has denials of a host with the policy of package policydb's tests, and runs verbs on it.
type lab struct {
	t       *testing.T
	dir     string
	changed []api.Request
	fails   error  // of changes
	does    func() // what a change does before it is answered
	opens   func() // what is done before the state is opened
	audits  func() (audit.Status, error)
}

func (l *lab) run(log string, args ...string) (string, error) {
	l.t.Helper()
	open := func() (*transaction.Controller, error) {
		if l.opens != nil {
			l.opens()
		}
		c, err := transaction.Open(transaction.Options{State: filepath.Join(l.dir, "state"), Root: l.dir})
		if err == nil {
			c.Labels, c.LockWait = inTmp{}, time.Millisecond
		}
		return c, err
	}
	var out bytes.Buffer
	w := render.Printable(&out, 80)
	c := &cobra.Command{Use: "selinux"}
	c.AddCommand(Changes(Session{Out: w, Open: open, Print: func(_ any, text func()) error { text(); return nil },
		Flags: func(*cobra.Command) func(string) api.Request {
			return func(verb string) api.Request { return api.Request{Verb: verb} }
		},
		Change: func(_ *cobra.Command, q api.Request) error { l.changed = append(l.changed, q); return nil },
		Do: func(_ context.Context, q api.Request) (*api.Reply, error) {
			l.changed = append(l.changed, q)
			if l.does != nil {
				l.does()
			}
			return &api.Reply{}, l.fails
		},
		Who: func() string { return "test" }, Audit: l.audits,
	})...)
	c.SetArgs(args)
	c.SetIn(strings.NewReader(log))
	c.SetOut(io.Discard)
	c.SetErr(&out)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.Execute()
	return out.String(), err
}

// inTmp has the label of files in /tmp for all.
type inTmp struct{}

func (inTmp) Label(int) (string, error)  { return "system_u:object_r:tmp_t:s0", nil }
func (inTmp) SetLabel(int, string) error { return errors.ErrUnsupported }

// logs writes the log of auditd.
func (l *lab) logs(text string) {
	l.t.Helper()
	file := filepath.Join(l.dir, "var/log/audit/audit.log")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		l.t.Fatal(err)
	}
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, dir: linuxtest.Unpack(t, captured)}
	text, err := os.ReadFile("../../selinux/policydb/testdata/small.hex")
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err == nil {
		err = os.WriteFile(filepath.Join(l.dir, "sys/fs/selinux/policy"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func denial(permissions, extra, target, class string) string {
	return fmt.Sprintf("avc: denied { %s } for pid=7 comm=\"mysqld\" %s scontext=system_u:system_r:mysqld_t:s0 "+
		"tcontext=system_u:object_r:%s:s0 tclass=%s\n", permissions, extra, target, class)
}

// denials are of a server, which records of its system calls name; one file is named through a link.
var denials = byServer(denial("read write", `path="/data/a.ibd"`, "tmp_t", "file")) +
	denial("name_bind", "src=4444", "kerberos_port_t", "tcp_socket") + denial("read", `name="x"`, "nfs_t", "file") +
	strings.ReplaceAll(denial("read", `name="y"`, "mysqld_db_t", "file"), "mysqld_t", "init_t") +
	denial("read", `name="z"`, "removed_t", "file")

// byServer adds the record of a system call to a denial.
func byServer(text string) string {
	const event = "msg=audit(1732521600.001:7): "
	return "type=AVC " + event + text + "type=SYSCALL " + event + `pid=7 comm="mysqld" exe="/usr/sbin/mariadbd"` + "\n"
}

// A plan says what would be set and what is left, and apply asks for just that; a port of another is taken when it is
// named.
func TestPlanAndApply(t *testing.T) {
	l := newLab(t)
	out, err := l.run(denials, "plan", "-")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"set     selinux labels /var/lib/mysql/a.ibd = mysqld_db_t\n", "  for   1 denial\n",
		"set     selinux boolean use_nfs = on\n", "LEFT TO YOU\nwrong port  allow mysqld_t kerberos_port_t:tcp_socket",
		"tcp/4444 is kerberos_port_t's own port", "--take-port tcp/4444\n", "the loaded policy has no such type",
		"init_t is not known as the domain of a database", "`bulkhead selinux apply` sets it"} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is missing in\n%s", part, out)
		}
	}
	l.logs(denials)
	if out, err = l.run("", "apply", "--take-port", "tcp/4444"); err != nil || len(l.changed) != 1 {
		t.Fatalf("%v, %d changes\n%s", err, len(l.changed), out)
	}
	asked := ""
	for _, s := range l.changed[0].Tune {
		asked += s.Rule + ": " + s.Name + " = " + s.Value + "\n"
	}
	if want := "selinux: selinux boolean use_nfs = on\nselinux: selinux labels /var/lib/mysql/a.ibd = mysqld_db_t\n" +
		"selinux: selinux port tcp/4444 = mysqld_port_t from kerberos_port_t\n"; asked != want ||
		l.changed[0].Verb != "tune apply" {
		t.Errorf("%s asks for\n%swant\n%s", l.changed[0].Verb, asked, want)
	}
	if out, err = l.run("", "apply", "--only", "boolean use_nfs"); err != nil || len(l.changed[1].Tune) != 1 ||
		l.changed[1].Tune[0].Name != "selinux boolean use_nfs" {
		t.Errorf("one alone: %v, %+v\n%s", err, l.changed, out)
	}
	for _, only := range []string{"port tcp/4444", "boolean none"} { // which is left to you, and none
		if _, err := l.run("", "apply", "--only", only); err == nil || !strings.Contains(err.Error(),
			"nothing is planned of selinux "+only) || len(l.changed) != 2 {
			t.Errorf("--only %s: %v", only, err)
		}
	}
	if _, err := l.run("", "rollback"); err != nil || l.changed[2].Rules[0] != "selinux" {
		t.Errorf("rollback: %v, %+v", err, l.changed)
	}
}

// With --check the databases that run are looked at, too; here none does, and that is said. A setting that no denial
// stands behind says so.
func TestPlanWithCheck(t *testing.T) {
	l := newLab(t)
	with, err := l.run(denials, "plan", "-", "--check")
	without, other := l.run(denials, "plan", "-")
	const none = "warning: --check: no database runs, so that no settings were looked at\n"
	if err != nil || other != nil || with != none+without {
		t.Errorf("%v, %v\n%s\n%s", err, other, with, without)
	}
	var out bytes.Buffer
	printPlan(render.Printable(&out, 0), &remedy.Plan{Settings: []remedy.Setting{{Name: "selinux port tcp/4567",
		Value: "mysqld_port_t"}}, Left: []remedy.Left{{Verdict: verdict.Label, What: "allow a b:dir search;"}}})
	for _, part := range []string{"  for   what settings name\n",
		"wrong label  allow a b:dir search, what settings name"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
}

// What a plan cannot do is said: nothing was denied, a port is none, or the policy is not here.
func TestNoPlan(t *testing.T) {
	l := newLab(t)
	for _, verb := range []string{"plan", "apply"} {
		l.logs("")
		if out, err := l.run("", verb); err != nil || !strings.Contains(out, "nothing to do") {
			t.Errorf("%s of nothing: %v\n%s", verb, err, out)
		}
		l.logs(denials)
		if _, err := l.run("", verb, "--take-port", "4444"); err == nil || !strings.Contains(err.Error(),
			"is not a port") {
			t.Errorf("%s of a wrong port: %v", verb, err)
		}
	}
	unnamed := denial("read", `name="x"`, "nfs_t", "file")
	for _, domain := range []string{"mysqld_t", "httpd_t"} { // no program in the log, no server that runs
		out, err := l.run(unnamed, "plan", "-", "--domain", domain)
		sets := strings.Contains(out, "set     selinux boolean use_nfs")
		if err != nil || sets != (domain == "mysqld_t") {
			t.Errorf("plan --domain %s: %v\n%s", domain, err, out)
		}
	}
	if out, err := l.run(denials, "apply", "-"); err == nil || len(l.changed) > 0 {
		t.Errorf("apply takes what anybody may write: %v, %+v\n%s", err, l.changed, out)
	}
	if err := os.Remove(filepath.Join(l.dir, "sys/fs/selinux/policy")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.run("", "apply"); err == nil || !strings.Contains(err.Error(), "has loaded none") ||
		len(l.changed) > 0 {
		t.Errorf("without a policy: %v, %+v", err, l.changed)
	}
	for _, args := range [][]string{{"plan"}, {"export", filepath.Join(l.dir, "none")}} {
		out, err := l.run("", args...)
		if err != nil || !strings.Contains(out, "SELinux is not on here") {
			t.Errorf("%q without a policy: %v\n%s", args, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(l.dir, "none")); err == nil {
		t.Error("export has written something")
	}
}

// Of a change that was cut off half of the policy may be in place: no plan is made of that.
func TestInterrupted(t *testing.T) {
	l := newLab(t)
	s, err := journal.Open(filepath.Join(l.dir, "state"), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := s.Lock("tune apply", "test")
	if err == nil {
		_, err = s.Begin(journal.Txn{Verb: "tune apply"})
	}
	if err != nil {
		t.Fatal(err)
	}
	l.logs(denials)
	_, err = l.run("", "apply") // it is under way
	if api.CodeOf(err) != api.CodeLocked {
		t.Errorf("apply beside it: %v", err)
	}
	lock.Release()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.run(denials, "plan", "-"); err == nil || !strings.Contains(err.Error(), "has begun and not ended") {
		t.Errorf("plan: %v", err)
	}
}
