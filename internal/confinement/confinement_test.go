package confinement_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/confinement"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/apparmor"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/selinux"
)

// read gives a file of another package's tests.
func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// servers is a Debian 12 with a MariaDB (process 15598), two PostgreSQL and a Redis, its directories below /srv/db.
func servers(t testing.TB) string {
	t.Helper()
	return strings.ReplaceAll(read(t, "../engine/recognise/testdata/debian12.txtar"), "/tmp/bh-eng.4XS5", "/srv/db") + `
-- srv/db/my/ibdata1 --
-- srv/db/my/app/t.ibd --
-- srv/db/run/my.pid --
-- srv/db/my/vm.err --
-- usr/lib/mysql/plugin/a.so --
-- usr/sbin/mariadbd --
`
}

// setUp is SELinux, enforcing, with the policy of package check's tests.
func setUp(t testing.TB) string {
	t.Helper()
	return `
-- sys/fs/selinux/enforce --
1
-- sys/fs/selinux/reject_unknown --
0
-- sys/fs/selinux/deny_unknown --
1
-- etc/selinux/config --
SELINUX=enforcing
SELINUXTYPE=targeted
-- etc/selinux/targeted/contexts/files/file_contexts --
` + read(t, "../selinux/check/testdata/file_contexts") + `
-- etc/selinux/targeted/contexts/files/file_contexts.local --
/srv/db/my/app(/.*)?	system_u:object_r:mysqld_db_t:s0
-- var/lib/selinux/targeted/active/modules/100/base/cil --
-- var/lib/selinux/targeted/active/modules/400/local_mysql/cil --
-- var/lib/selinux/targeted/active/modules/400/bulkhead_x/cil --
-- var/lib/selinux/targeted/active/modules/disabled/local_mysql --
-- proc/15598/attr/current --
system_u:system_r:mysqld_t:s0
-- proc/15493/attr/current --
system_u:system_r:unconfined_service_t:s0
-- proc/15492/attr/current --
system_u:system_r:postgresql_t:s0
`
}

// captured is a host of text; its policy is added where SELinux is on.
func captured(t testing.TB, text string) (*host.Host, string) {
	t.Helper()
	dir := linuxtest.Unpack(t, text)
	if strings.Contains(text, "selinux/enforce") {
		data, err := hex.DecodeString(strings.ReplaceAll(read(t, "../selinux/check/testdata/server.hex"), "\n", ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "sys/fs/selinux/policy"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return host.New(dir), dir
}

func look(t testing.TB, h *host.Host, o confinement.Options) *confinement.Report {
	t.Helper()
	all, err := recognise.OfHost(h)
	if err != nil {
		t.Fatal(err)
	}
	r, err := confinement.Of(t.Context(), h, all, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// labels has a type for each path: of the longest prefix.
func labels(types map[string]string) func(string) (string, error) {
	return func(file string) (string, error) {
		best := "/"
		for prefix := range types {
			if strings.HasPrefix(file, prefix) && len(prefix) > len(best) {
				best = prefix
			}
		}
		if types[best] == "" {
			return "", selinux.ErrNoLabel
		}
		return "system_u:object_r:" + types[best] + ":s0", nil
	}
}

func quiet() (audit.Status, error) {
	return audit.Status{Enabled: 1, PID: 9, Lost: 2, BacklogLimit: 64}, nil
}

// A captured host with a MariaDB in a place of its own: what its command line names is held against policy and file
// contexts, and each finding has where the setting was read.
func TestSELinux(t *testing.T) {
	h, _ := captured(t, servers(t)+setUp(t))
	r := look(t, h, confinement.Options{Instance: "mysql23306", Audit: quiet, Labels: labels(map[string]string{
		"/": "var_t", "/usr": "usr_t", "/usr/lib": "lib_t", "/tmp": "tmp_t", "/srv/db/run": "mysqld_var_run_t"})})
	s := r.SELinux
	if s.Mode != "enforcing" || s.Wanted != "enforcing" || s.Type != "targeted" || s.Version != 33 ||
		s.Unknown != "deny" ||
		fmt.Sprint(s.Permissive) != "[postgresql_t]" || fmt.Sprint(s.Modules) !=
		"[{400 bulkhead_x false} {400 local_mysql true}]" {
		t.Errorf("%+v", s)
	}
	if r.Audit.Status == nil || r.Audit.Lost != 2 || r.AppArmor || len(r.NotAsked) > 0 || len(r.Instances) != 1 {
		t.Fatalf("%+v", r)
	}
	i := r.Instances[0]
	if i.SELinux == nil || i.SELinux.Domain != "mysqld_t" || fmt.Sprint(i.SELinux.Domains) !=
		"[{mysqld_t [15598]} {unconfined_service_t [15493]}]" || fmt.Sprint(i.Booleans) !=
		"[{mysql_connect_any false} {use_nfs false}]" {
		t.Errorf("%+v", i)
	}
	got := []string{}
	for _, f := range r.Findings {
		got = append(got, fmt.Sprintf("%s %s%s %s>%s %s %v", f.About, f.Path,
			map[bool]string{true: fmt.Sprint(f.Port)}[f.Port >
				0], f.Has, f.Want, f.Pattern, f.Settings))
	}
	want := []string{
		`label /srv/db/my var_t>mysqld_db_t /srv/db/my(/.*)? [datadir (the command line) log_error (the command line)]`,
		`port 23306 unreserved_port_t>mysqld_port_t  [port (the command line)]`,
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, p := range i.SELinux.Paths {
		if p.Path == "/usr/lib/mysql/plugin" && (p.Kind != "library" || !p.Fits || p.Type != "lib_t") {
			t.Errorf("%+v", p)
		}
	}
}

// Each instance has findings of its own, one whose domain is not told is undecided, and none runs twice.
func TestAllInstances(t *testing.T) {
	h, _ := captured(t, servers(t)+setUp(t))
	r := look(t, h, confinement.Options{Audit: quiet, Labels: labels(map[string]string{"/": "var_t"})})
	var got []string
	for _, i := range r.Instances {
		got = append(got, fmt.Sprintf("%s %s %d", i.Name, i.SELinux.Domain, len(i.SELinux.Undecided)))
	}
	if want := []string{"mysql23306 mysqld_t 0", "postgresql25432 postgresql_t 0", "postgresql25433  1",
		"redis26379  1"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if said := strings.Join(r.Instances[3].NotAsked, "\n"); !strings.Contains(said, "none of its settings of paths") ||
		!strings.Contains(said, "--dsn") {
		t.Errorf("Redis, whose title hides its settings: %q", said)
	}
	for at, f := range r.Findings[1:] {
		if f.Denied && !r.Findings[at].Denied {
			t.Errorf("what is denied comes after %+v", r.Findings[at])
		}
	}
}

// Without SELinux and AppArmor nothing is looked at; what is there and cannot be asked is said.
func TestModes(t *testing.T) {
	for name, c := range map[string]struct{ text, gone, mode, said string }{
		"not there": {servers(t), "", "not there", ""},
		"off": {servers(t) + "\n-- etc/selinux/config --\nSELINUX=disabled\nSELINUXTYPE=targeted\n", "",
			"off", ""},
		"no policy to read": {servers(t) + setUp(t), "etc/selinux/targeted/contexts/files/file_contexts", "enforcing",
			"labels of paths:"},
		"no modules": {servers(t) + setUp(t), "var/lib/selinux", "enforcing",
			"modules of the policy: this host keeps none"},
		"no mode": {servers(t) + setUp(t), "sys/fs/selinux/enforce", "not told", ""},
		"no answer": {servers(t) + setUp(t), "sys/fs/selinux/deny_unknown", "enforcing",
			"permissions that its policy"},
	} {
		h, dir := captured(t, c.text)
		if c.gone != "" {
			if err := os.RemoveAll(filepath.Join(dir, c.gone)); err != nil {
				t.Fatal(err)
			}
		}
		r := look(t, h, confinement.Options{Audit: func() (audit.Status, error) {
			return audit.Status{}, errors.New("not for you")
		}, Labels: labels(nil)})
		if said := strings.Join(r.NotAsked, "\n"); r.SELinux.Mode != c.mode || !strings.Contains(said, c.said) ||
			c.said == "" && said != "" {
			t.Errorf("%s: %+v", name, r)
		}
		if on := strings.Contains(c.text, "enforce --"); r.Confines() != on || on != (len(r.Instances) > 0) ||
			on != (r.Audit.Trouble == "not for you") {
			t.Errorf("%s: %+v", name, r)
		}
		text, err := json.Marshal(r)
		if err != nil || strings.Contains(string(text), "null") {
			t.Errorf("%s: %v: null in %s", name, err, text)
		}
		for _, m := range regexp.MustCompile(`"([A-Za-z_]+)":`).FindAllStringSubmatch(string(text), -1) {
			if strings.ToLower(m[1]) != m[1] {
				t.Errorf("JSON has the name %q", m[1])
			}
		}
	}
}

const confined = `
-- sys/module/apparmor/parameters/enabled --
Y
-- proc/15598/attr/apparmor/current --
/usr/sbin/mariadbd (enforce)
-- proc/15493/attr/apparmor/current --
unconfined
-- proc/15492/attr/apparmor/current --
pg server (complain)
-- etc/apparmor.d/usr.sbin.mariadbd --
-- var/log/audit/audit.log --
type=AVC msg=audit(1.1:4): apparmor="DENIED" profile="/usr/sbin/mariadbd" name="/x y/a" denied_mask="rc"
type=AVC msg=audit(1.1:5): apparmor="DENIED" operation="open" profile="/usr/sbin/other" name="/other" denied_mask="r"
type=AVC msg=audit(1.1:6): apparmor="DENIED" profile="/usr/sbin/mariadbd" name="/bin/sh" denied_mask="x"
`

// A profile of AppArmor is asked for each path, and what a log has is said with the rule that would allow it.
func TestAppArmor(t *testing.T) {
	h, _ := captured(t, servers(t)+confined)
	asked := map[string]string{}
	r := look(t, h, confinement.Options{Audit: quiet, AuditLogs: []string{"/var/log/audit/audit.log", "/none"},
		KernelLog: func() ([]byte, error) {
			return []byte(`apparmor="DENIED" operation="capable" profile="/usr/sbin/mariadbd//null-/bin/x" ` +
				`capname="sys_nice"`), nil
		},
		Missing: func(profile, path string, wanted ...apparmor.Right) ([]apparmor.Right, error) {
			asked[path] = fmt.Sprint(profile, wanted)
			if profile == "pg server" {
				return nil, apparmor.ErrNotAsked
			}
			if strings.HasPrefix(path, "/srv/db/my/") {
				return wanted[1:], nil
			}
			return nil, nil
		}})
	if !r.AppArmor || r.SELinux.Mode != "not there" || strings.Join(r.NotAsked, "") !=
		"denials in /none: no such file or directory" {
		t.Errorf("%+v", r)
	}
	if got := asked["/srv/db/my/file"]; got != "/usr/sbin/mariadbd[r w k]" {
		t.Errorf("asked of a directory of data: %q in %v", got, asked)
	}
	got := []string{}
	for _, rule := range r.Rules {
		got = append(got, fmt.Sprintf("%s %s %s %s %v %d %s", rule.Instance, rule.Path, rule.Missing, rule.File,
			rule.Rules,
			rule.Denials, rule.In))
	}
	want := []string{
		"mysql23306 /srv/db/my wk /etc/apparmor.d/local/usr.sbin.mariadbd [/srv/db/my/ r, /srv/db/my/** rwk,] 0 ",
		`mysql23306 /x y/a rc  ["/x y/a" rw,] 1 /var/log/audit/audit.log`,
		"mysql23306 /bin/sh x  [] 1 /var/log/audit/audit.log",
		"mysql23306  sys_nice  [capability sys_nice,] 1 the log of the kernel",
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s is missing in\n%s", w, strings.Join(got, "\n"))
		}
	}
	for _, i := range r.Instances {
		switch i.Name {
		case "mysql23306":
			if fmt.Sprint(i.Profiles) != "[{{/usr/sbin/mariadbd enforce} [15598]} {{ unconfined} [15493]}]" {
				t.Errorf("%+v", i.Profiles)
			}
		case "postgresql25432":
			if said := strings.Join(i.NotAsked, "\n"); !strings.Contains(said, `whether profile "pg server" allows`) {
				t.Errorf("%q", said)
			}
		}
	}
}

// A container has labels of its own, and a server that ended is left out.
func TestContainerAndEnd(t *testing.T) {
	h, _ := captured(t, servers(t)+setUp(t))
	all, err := recognise.OfHost(h)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(i engine.Instance) bool { return i.Name() == "mysql23306" })
	inside, ended := all[at], all[at]
	inside.Container = true
	ended.Main.Start++
	r, err := confinement.Of(t.Context(), h, []engine.Instance{inside, ended}, confinement.Options{Audit: quiet})
	if err != nil || len(r.Instances) != 1 || len(r.Instances[0].SELinux.Paths) > 0 ||
		!strings.Contains(r.Instances[0].NotAsked[0], "container") {
		t.Errorf("%+v, %v", r, err)
	}
}

// A server that cannot be asked is said, and its option files and arguments are read.
func TestLoginFails(t *testing.T) {
	h, _ := captured(t, servers(t)+setUp(t))
	l, err := dblogin.Parse("mysql://root@localhost/?socket=/nowhere/x.sock")
	if err != nil {
		t.Fatal(err)
	}
	r := look(t, h, confinement.Options{Instance: "mysql23306", Audit: quiet,
		Labels: labels(map[string]string{"/": "var_t"}),
		Logins: map[string]*dblogin.Login{"mysql23306": l}})
	if said := r.Instances[0].NotAsked; len(said) != 1 || !strings.Contains(said[0],
		"was not asked for its settings") ||
		len(r.Findings) == 0 || !strings.Contains(r.Findings[0].Settings[0], "the command line") {
		t.Errorf("%q, %+v", said, r.Findings)
	}
}
