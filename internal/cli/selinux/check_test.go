package selinux

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/confinement"
	"bulkhead/internal/linux/apparmor"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/selinux/check"
	"bulkhead/internal/selinux/places"
	"bulkhead/internal/selinux/policydb"
	"bulkhead/internal/transaction"
)

var update = flag.Bool("update", false, "write testdata anew")

// found has one of each of what check prints.
func found() *confinement.Report {
	set := []string{"datadir (/etc/my.cnf:3)"}
	return &confinement.Report{
		SELinux: confinement.SELinux{Mode: "enforcing", Wanted: "permissive", Type: "targeted", Version: 33,
			Unknown:    "deny",
			Permissive: []string{"httpd_t"}, Modules: []selinux.Module{{Priority: 400, Name: "local", Disabled: true}}},
		AppArmor: true,
		Audit: confinement.Audit{Status: &audit.Status{Enabled: 1, PID: 712, Lost: 3, Backlog: 1,
			BacklogLimit: 8192}},
		NotAsked: []string{"modules of the policy: only root may read them; run it with sudo"},
		Instances: []confinement.Instance{
			{Name: "mysql3306", PID: 7, Booleans: []policydb.Boolean{{Name: "mysql_connect_any"}},
				SELinux: &check.Result{
					Domain: "mysqld_t", Domains: []check.InDomain{{Domain: "mysqld_t", Processes: []int{7, 8}},
						{Processes: []int{9}}},
					Paths: []check.Checked{{Fits: true}, {}, {Undecided: true}},
					Ports: []check.CheckedPort{{Port: places.Port{Number: 3306,
						Protocol: "tcp"}, Type: "mysqld_port_t", Fits: true}}, Undecided: []string{"/x: no answer"}},
				NotAsked: []string{"mysql3306 was not asked for its settings: refused"}},
			{Name: "redis6379", PID: 70, Profiles: []confinement.Profile{{Confinement: apparmor.Confinement{
				Profile: "/usr/bin/redis", Mode: "complain"}, Processes: []int{70}}, {Confinement: apparmor.Confinement{
				Mode: "unconfined"}, Processes: []int{71}}}},
		},
		Findings: []check.Finding{
			{Instance: "mysql3306", About: check.Label, Settings: set, Path: "/data/mysql", Class: "dir",
				Domain: "mysqld_t",
				Has:    "default_t", Contexts: "default_t", Want: "mysqld_db_t", Denied: true,
				Why: "mysqld_t is not allowed search",
				Fix: []string{"semanage fcontext -a -t mysqld_db_t '/data/mysql(/.*)?'",
					"restorecon -R -v /data/mysql"}},
			{Instance: "mysql3306", About: check.Label, Settings: []string{"a", "b", "c", "d", "e"},
				Path: "/data/x", Entries: 4,
				Has: "usr_t", Denied: true, Why: "so it is"},
			{Instance: "mysql3306", About: check.PortType, Protocol: "tcp", Port: 4444, Has: "kerberos_port_t",
				Want: "mysqld_port_t", Denied: true, Why: "it is another's", Fix: []string{"semanage port -m"}},
			{Instance: "mysql3306", About: check.Relabel, Path: "/y", Has: "mysqld_db_t", Want: "mysqld_db_t",
				Why: "it suits"},
			{Instance: "mysql3306", About: check.Drift, Path: "/z", Has: "mysqld_log_t", Want: "mysqld_db_t",
				Why: "both suit"},
			{Instance: "redis6379", About: check.Permissive, Domain: "mysqld_t", Has: "mysqld_t", Why: "only logged"},
			{Instance: "redis6379", About: check.Domain, Path: "/opt/mysqld", Domain: "init_t", Has: "init_t",
				Want: "mysqld_t",
				Why:  "nothing confines it"},
		},
		Rules: []confinement.Rule{
			{Instance: "redis6379", Profile: "/usr/bin/redis", Mode: "complain", Settings: set, Path: "/data",
				Missing: "wk",
				Rules:   []string{"/data/ r,", "/data/** rwk,"}, File: "/etc/apparmor.d/local/usr.bin.redis"},
			{Instance: "redis6379", Profile: "/usr/bin/redis", Path: "/bin/sh", Missing: "x", Denials: 2,
				In: "the log of the " +
					"kernel", Allowed: true},
		},
	}
}

func TestPrintCheck(t *testing.T) {
	const golden = "testdata/check.golden"
	var out bytes.Buffer
	printCheck(render.Printable(&out, 0), found())
	want, err := os.ReadFile(golden)
	if *update {
		err = os.WriteFile(golden, out.Bytes(), 0o600)
		want = out.Bytes()
	}
	if err != nil || out.String() != string(want) {
		t.Errorf("%v\n%s\nhint: read it, then go test ./internal/cli/selinux -update", err, out.String())
	}
}

// What others chose begins no line and steers no terminal.
func TestForeignTextInCheck(t *testing.T) {
	evil := "x\nINTERRUPTED: evil\u202e\x1b[2J"
	r := found()
	r.NotAsked[0], r.SELinux.Type, r.Instances[0].Name = evil, evil, evil
	r.Instances[0].SELinux.Undecided[0], r.Instances[1].Profiles[0].Profile = evil, evil
	r.SELinux.Modules[0].Name = evil
	for i := range r.Findings {
		f := &r.Findings[i]
		f.Path, f.Has, f.Want, f.Why, f.Settings, f.Fix = evil, evil, evil+"2", evil, []string{evil}, []string{evil}
	}
	for i := range r.Rules {
		l := &r.Rules[i]
		l.Path, l.Profile, l.Rules, l.Settings, l.File = evil, evil, []string{evil}, []string{evil}, evil
	}
	var out bytes.Buffer
	printCheck(render.Printable(&out, 80), r)
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "INTERRUPTED") || strings.ContainsAny(line, "\u202e\x1b") {
			t.Errorf("it prints %q", line)
		}
	}
}

// What is there and what is not is said in few words.
func TestPrintFew(t *testing.T) {
	for want, r := range map[string]*confinement.Report{
		"Neither SELinux nor AppArmor is on here: they deny the databases nothing.\n": {SELinux: confinement.SELinux{
			Mode: "off"}},
		"\nNo database runs here.\n": {AppArmor: true, SELinux: confinement.SELinux{Mode: "off"}},
		"audit     not known: refused\n": {AppArmor: true, SELinux: confinement.SELinux{Mode: "off"},
			Audit: confinement.Audit{Trouble: "refused"}},
		"nothing was found that does not fit.\n": {AppArmor: true, Instances: []confinement.Instance{{}}},
		"would be denied: mysql3306: /d has -\n": {SELinux: confinement.SELinux{Mode: "permissive"},
			Findings: []check.Finding{{Instance: "mysql3306", Denied: true, Path: "/d"}}},
		"would be denied: mysql3306: /d has default_t\n": {SELinux: confinement.SELinux{Mode: "enforcing"},
			Findings: []check.Finding{{Instance: "mysql3306", Denied: true, Path: "/d", Has: "default_t"},
				{Instance: "mysql3306", About: check.Domain}}},
		"off: denials go to the log of the kernel, without whole paths; 0 records were lost": {AppArmor: true,
			Audit: confinement.Audit{Status: &audit.Status{}}},
	} {
		var out bytes.Buffer
		printCheck(render.Printable(&out, 0), r)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

// The verb on a captured host: what it is asked wrongly is said, and without a database there is nothing to say.
func TestCheckVerb(t *testing.T) {
	root := linuxtest.Unpack(t, "-- proc/stat --\nctxt 1\n-- proc/self/mountinfo --\n-- proc/self/status --\nName: x\n")
	run := func(args ...string) (string, error) {
		look := func() (*transaction.Controller, error) {
			return transaction.Open(transaction.Options{State: filepath.Join(t.TempDir(), "state"), Root: root})
		}
		var out bytes.Buffer
		c := Command(render.Printable(&out, 0), look, func(_ any, text func()) error { text(); return nil })
		c.SetArgs(append([]string{"check"}, args...))
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		c.SilenceErrors, c.SilenceUsage = true, true
		err := c.Execute()
		return out.String(), err
	}
	if out, err := run(); err != nil || !strings.HasPrefix(out, "Neither SELinux nor AppArmor is on here") {
		t.Errorf("%q, %v", out, err)
	}
	dsn := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(dsn, []byte("mysql://root@localhost/?socket=/s"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		`no instance "mysql3306" runs here: none does`:        {"mysql3306"},
		`--dsn: no instance "mysql3306" runs here: none does`: {"--dsn", "mysql3306=@" + dsn},
		"--dsn is written INSTANCE=@FILE":                     {"--dsn", "mysql3306"},
	} {
		if _, err := run(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	if _, err := run("a", "b"); err == nil {
		t.Error("two instances are taken")
	}
}
