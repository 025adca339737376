// Package packaging holds what `make install` puts on a host: the units, the init script, completion.
package packaging

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/testhost"
)

// top is the repository as seen from here.
const top = "../.."

// TestMain gives the tests a directory to install into, which goes at the end.
func TestMain(m *testing.M) {
	if err := testhost.SetSurroundings(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(withDestdir(m))
}

const prefix = "/opt/bulkhead"

var destdir string

func withDestdir(m *testing.M) int {
	dir, err := os.MkdirTemp("", "bulkhead-install-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	// Others than root get as far as the binary.
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	destdir = dir
	return m.Run()
}

// install does what `make install` does, once, and gives what that has said. The lab's machines have a built binary
// instead of make and Go.
var install = sync.OnceValues(func() ([]byte, error) {
	cmd := exec.Command("make", "--no-print-directory", "install", "DESTDIR="+destdir, "PREFIX="+prefix)
	if os.Getenv("BULKHEAD_LAB") == "1" {
		cmd = exec.Command("./scripts/install")
		cmd.Env = append(os.Environ(), "DESTDIR="+destdir, "PREFIX="+prefix)
	}
	cmd.Dir = top
	return cmd.CombinedOutput()
})

// path gives a file as installed.
func path(t *testing.T, name string) string {
	t.Helper()
	if out, err := install(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	return filepath.Join(destdir, name)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(path(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const (
	binary   = prefix + "/bin/bulkhead"
	unit     = prefix + "/lib/systemd/system/bulkhead.service"
	before   = prefix + "/lib/systemd/system/bulkhead-before@.service"
	serve    = prefix + "/lib/systemd/system/bulkhead-serve.service"
	after    = prefix + "/lib/systemd/system/postgresql@.service.d/10-bulkhead.conf"
	script   = "/etc/init.d/bulkhead"
	complete = prefix + "/share/bash-completion/completions/bulkhead"
)

func TestInstalledFiles(t *testing.T) {
	for name, mode := range map[string]fs.FileMode{
		binary: 0o755, unit: 0o644, before: 0o644, serve: 0o644, after: 0o644, script: 0o755, complete: 0o644,
		prefix + "/share/zsh/site-functions/_bulkhead":            0o644,
		prefix + "/share/fish/vendor_completions.d/bulkhead.fish": 0o644,
		prefix + "/share/doc/bulkhead/install.md":                 0o644,
		prefix + "/share/doc/bulkhead/policy.schema.json":         0o644,
		prefix + "/share/doc/bulkhead/bulkhead-grafana.json":      0o644,
		prefix + "/share/doc/bulkhead/bulkhead-alerts.yml":        0o644,
		prefix + "/share/doc/bulkhead/scylladb.yaml":              0o644,
	} {
		info, err := os.Stat(path(t, name))
		if err != nil || info.Mode() != mode || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	for _, name := range []string{unit, before, serve, script} {
		if text := read(t, name); strings.Contains(text, "/usr/local/bin/bulkhead") ||
			strings.Contains(text, "/usr/local/share") {
			t.Errorf("%s still names the default prefix", name)
		}
	}
	out, err := exec.Command(path(t, binary), "version").CombinedOutput()
	if err != nil {
		t.Errorf("the binary: %v\n%s", err, out)
	}
	if text := read(t, complete); !strings.Contains(text, "__start_bulkhead") {
		t.Errorf("no completion for bash: %.80q", text)
	}
	err = filepath.WalkDir(destdir, func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".new") {
			t.Errorf("%s was left", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// What was installed is taken away again, and nothing else.
func TestUninstall(t *testing.T) {
	path(t, "")
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(destdir)); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(copied, prefix, "bin", "other")
	if err := os.WriteFile(kept, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to do
		cmd := exec.Command("make", "--no-print-directory", "uninstall", "DESTDIR="+copied, "PREFIX="+prefix)
		cmd.Dir = top
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make uninstall: %v\n%s", err, out)
		}
		err := filepath.WalkDir(copied, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && name != kept || strings.HasSuffix(name, ".service.d") ||
				strings.HasSuffix(name, "doc/bulkhead") {
				t.Errorf("%s was left", name)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// settings reads a unit: the values of each key, in their order.
func settings(text string) map[string][]string {
	keys := map[string][]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			keys[key] = append(keys[key], value)
		}
	}
	return keys
}

func TestUnit(t *testing.T) {
	keys := settings(read(t, unit))
	for key, want := range map[string]string{
		"Type": "notify", "ExecStart": binary + " $BULKHEAD_OPTIONS agent", "WatchdogSec": "60",
		"ExecReload":     binary + ` $BULKHEAD_OPTIONS apply --reason "systemctl reload"`,
		"StateDirectory": "bulkhead", "RuntimeDirectory": "bulkhead", "WantedBy": "multi-user.target",
		// Without these it could not do its work.
		"ProtectControlGroups": "no", "PrivateNetwork": "no", "ProtectProc": "default", "DeviceAllow": "/dev/zfs rw",
	} {
		if got := keys[key]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s=%q, want %q", key, got, want)
		}
	}
	all := strings.Fields(strings.Join(keys["Before"], " "))
	for _, service := range []string{"mariadb", "mysql", "mysqld", "postgresql", "redis-server", "redis", "mongod",
		"cassandra", "scylla-server", "cron"} {
		if !slices.Contains(all, service+".service") {
			t.Errorf("it is not ordered before %s", service)
		}
	}
	for _, key := range []string{"Requires", "BindsTo", "PartOf", "RequiredBy", "Requisite"} {
		if keys[key] != nil {
			t.Errorf("%s=%q: a database must start without the agent too", key, keys[key])
		}
	}
	template := settings(read(t, before))
	if !slices.Equal(template["Before"], []string{"%i.service"}) ||
		!slices.Equal(template["After"], []string{"bulkhead.service"}) {
		t.Errorf("the template: %q", template)
	}
	for _, service := range []string{"postgresql@", "postgresql-", "mariadb@", "mysql@", "mysqld@", "redis-server@"} {
		keys := settings(read(t, filepath.Dir(unit)+"/"+service+".service.d/10-bulkhead.conf"))
		if len(keys) != 1 || !slices.Equal(keys["After"], []string{"bulkhead.service"}) {
			t.Errorf("what %s.service is told: %q", service, keys)
		}
	}
}

// analyze runs systemd-analyze on the units with paths that are there, and with a drop-in of bulkhead.service if any.
func analyze(t *testing.T, dropIn string, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze here")
	}
	dir := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, as := range map[string]string{unit: "bulkhead.service", serve: "bulkhead-serve.service",
		before: "bulkhead-before@postgresql@15-main.service"} {
		write(as, strings.ReplaceAll(read(t, name), prefix+"/bin/", path(t, prefix)+"/bin/"))
	}
	if dropIn != "" {
		write("bulkhead.service.d/policy.conf", dropIn)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "unrecognized option") {
		t.Skipf("this systemd-analyze is too old for it: %s", out)
	}
	if err != nil {
		t.Errorf("systemd-analyze %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestSystemdUnderstandsTheUnits(t *testing.T) {
	for _, dropIn := range []string{"", widest(t)} {
		if out := analyze(t, dropIn, "verify", "--man=no", "./bulkhead.service", "./bulkhead-serve.service",
			"./bulkhead-before@postgresql@15-main.service"); strings.Contains(out, "bulkhead") {
			t.Errorf("systemd-analyze verify says\n%s", out)
		}
	}
}

// exposure is how systemd-analyze rates bulkhead.service, of 10; it must be below 10 times most.
func exposure(t *testing.T, dropIn, most string) string {
	t.Helper()
	out := analyze(t, dropIn, "security", "--offline=yes", "--no-pager", "--threshold="+most, "./bulkhead.service")
	rated := regexp.MustCompile(`Overall exposure level for bulkhead.service: ([0-9.]+)`).FindStringSubmatch(out)
	if rated == nil {
		t.Fatalf("systemd-analyze security says\n%s", out)
	}
	return rated[1]
}

// rated are policies, without their groups' matches, and what docs/install.md calls what they ask for.
var rated = []struct{ said, group, rest string }{
	{"`owner`", "owner: {user: games, may: [run, set]}", ""},
	{"`agent: {fast_moves: on}`", "", "agent: {fast_moves: on}\n"},
	{"`io` on `asm:NAME`", "io: [{on: asm:DATA, read: {iops: 500}}]", ""},
	{"`network`", "network: [{on: eth0, egress: 100Mbit/s}]", ""},
	{"`host.network` with a `peer`", "", "host: {network: [{on: eth0, rate: 1Gbit/s, peer: \"192.0.2.1:22\"}]}\n"},
	{"`guard` with a `dsn` over TCP", "",
		"guard: {groups: {reports: {throughput_falls: 20%, dsn: \"redis://localhost:6379\"}}}\n"},
}

// The exposure is that of a root service which must see every process and may write settings of the kernel: at most 4.0
// of 10 for a policy that needs nothing more, and what the documentation says with each of what it may need, and all.
func TestUnitIsHardened(t *testing.T) {
	text, err := os.ReadFile(top + "/docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	said := func(what, rating string) {
		t.Helper()
		// The next release may rate otherwise.
		version, _ := exec.Command("systemd-analyze", "--version").Output()
		of252 := strings.HasPrefix(string(version), "systemd 252")
		line := regexp.MustCompile("(?m)^.*" + regexp.QuoteMeta(what) + ".*$").FindString(string(text))
		if of252 && !strings.Contains(line, " "+rating+" ") {
			t.Errorf("systemd-analyze rates %s %s; docs/install.md says %q", what, rating, line)
		}
		t.Log(what, rating)
	}
	ordinary := exposure(t, "", "40")
	said("`systemd-analyze security` rates it", ordinary)
	for _, r := range rated {
		said("| "+r.said, exposure(t, dropInFor(t, r.group, r.rest), "46"))
	}
	widest := exposure(t, widest(t), "46")
	said("with all of it", widest)
	if ordinary == widest {
		t.Error("the drop-in of `unit --print` changes nothing")
	}
	out := analyze(t, "", "security", "--offline=yes", "--no-pager", "--threshold=20", "./bulkhead-serve.service")
	t.Log(regexp.MustCompile(`(?m)^.*Overall exposure.*$`).FindString(out))
}

// widest is the drop-in for a policy that needs all that one can need.
func widest(t *testing.T) string {
	t.Helper()
	group, rest := "", ""
	for _, r := range rated {
		if r.group != "" {
			group += ", " + r.group
		}
		rest += r.rest
	}
	return dropInFor(t, strings.TrimPrefix(group, ", "), rest)
}

// dropInFor is what `unit --print` prints for a policy with these keys of a group, and these beside it.
func dropInFor(t *testing.T, group, rest string) string {
	t.Helper()
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if group != "" {
		group = ", " + group
	}
	text := "version: 1\ngroups: {reports: {match: [{user: games}]" + group + "}}\n" + rest
	if err := os.WriteFile(policy, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path(t, binary), "--policy", policy, "unit", "--print").Output()
	if err != nil || !strings.Contains(string(out), "[Service]\n") {
		t.Fatalf("unit --print: %v\n%s", err, out)
	}
	return string(out)
}

func TestInitScriptHasItsHeader(t *testing.T) {
	text := read(t, script)
	_, header, _ := strings.Cut(text, "### BEGIN INIT INFO\n")
	header, _, found := strings.Cut(header, "### END INIT INFO")
	if !found {
		t.Fatal("no LSB header")
	}
	for _, key := range []string{"Provides", "Required-Start", "Required-Stop", "Default-Start", "Default-Stop",
		"Short-Description", "X-Start-Before"} {
		if !regexp.MustCompile(`(?m)^# ` + key + `: +\S`).MatchString(header) {
			t.Errorf("the header has no %s", key)
		}
	}
	// dash is Debian's sh, and stricter than others.
	for _, shell := range []string{"dash", "bash"} {
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		if out, err := exec.Command(shell, "-n", path(t, script)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
}
