//go:build root

package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bulkhead/internal/testhost"
)

// rpmRoot is a directory that rpm takes for a host: it has what the packages' scripts call, and no systemd.
type rpmRoot struct {
	t   *testing.T
	dir string
}

var library = regexp.MustCompile(`(/\S+) \(0x`)

func newRPMRoot(t *testing.T) *rpmRoot {
	t.Helper()
	testhost.RequireRoot(t)
	r := &rpmRoot{t, t.TempDir()}
	for _, program := range []string{"sh", "ls", "cp", "rm", "mkdir", "cat", "chmod"} {
		file, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		r.copy(file, "/bin/"+program)
		for _, m := range library.FindAllStringSubmatch(do(t, "ldd", file), -1) {
			r.copy(m[1], m[1])
		}
	}
	if err := os.MkdirAll(r.at("/dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.write("/dev/null", "")
	return r
}

func (r *rpmRoot) at(name string) string { return filepath.Join(r.dir, name) }

func (r *rpmRoot) copy(from, to string) {
	r.t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		if err = os.MkdirAll(filepath.Dir(r.at(to)), 0o755); err == nil {
			err = os.WriteFile(r.at(to), text, 0o755)
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rpmRoot) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(r.at(name), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// rpm runs it on this root. A script that fails is an error of rpm only at times, but it always says so.
func (r *rpmRoot) rpm(args ...string) string {
	r.t.Helper()
	out := do(r.t, "rpm", append([]string{"--root", r.dir, "--dbpath", "/var/lib/rpm"}, args...)...)
	if strings.Contains(out, "scriptlet failed") {
		r.t.Errorf("rpm %q: %s", args, out)
	}
	return out
}

func (r *rpmRoot) has(when, name string, want bool) {
	r.t.Helper()
	if _, err := os.Lstat(r.at(name)); (err == nil) != want {
		r.t.Errorf("%s: %s is there: %v, want %v", when, name, err == nil, want)
	}
}

// The rpm is installed, upgraded and removed by rpm, with its scripts, in a directory that holds no systemd.
func TestRPMInARoot(t *testing.T) {
	r := newRPMRoot(t)
	first, second := find(t, pack(t, version), "rpm"), find(t, pack(t, "v0.0.2"), "rpm")
	r.rpm("-i", "--nodeps", first)
	r.has("installed", "/usr/bin/bulkhead", true)
	r.has("installed", "/var/lib/bulkhead", true)
	const policy = "# mine\nversion: 1\n"
	r.write("/etc/bulkhead/policy.yaml", policy)

	r.rpm("-U", "--nodeps", second)
	if got := strings.TrimSpace(r.rpm("-q", "--queryformat", "%{VERSION}", "bulkhead")); got != "0.0.2" {
		t.Errorf("after the upgrade it is %s", got)
	}
	if text, err := os.ReadFile(r.at("/etc/bulkhead/policy.yaml")); err != nil || string(text) != policy {
		t.Errorf("after the upgrade the policy is %q, %v", text, err)
	}
	r.has("upgraded", "/var/lib/bulkhead/removed", false)

	// As it is when something was applied here.
	r.write("/var/lib/bulkhead/lock", "")
	r.write("/etc/sysconfig/bulkhead", "BULKHEAD_OPTIONS=\"--socket /run/other.sock\"\n")
	out := r.rpm("-e", "bulkhead")
	if !strings.Contains(out, "lift them with `sh /var/lib/bulkhead/removed/release`") {
		t.Errorf("the removal says\n%s", out)
	}
	r.has("removed", "/usr/bin/bulkhead", false)
	r.has("removed", "/etc/bulkhead/policy.yaml.rpmsave", true)
	text, err := os.ReadFile(r.at("/var/lib/bulkhead/removed/release"))
	if want := "exec /var/lib/bulkhead/removed/bulkhead --socket /run/other.sock release --all "; err != nil ||
		!strings.Contains(string(text), want) {
		t.Errorf("what lifts the limits is %q, %v", text, err)
	}
	if out := do(t, r.at("/var/lib/bulkhead/removed/bulkhead"), "version"); !strings.Contains(out, "v0.0.2") {
		t.Errorf("what lifts the limits is %s", out)
	}

	r.rpm("-i", "--nodeps", second)
	r.has("installed again", "/var/lib/bulkhead/removed", false)
	if err := os.Remove(r.at("/var/lib/bulkhead/lock")); err != nil {
		t.Fatal(err)
	}
	if out := r.rpm("-e", "bulkhead"); strings.Contains(out, "limits") {
		t.Errorf("nothing was ever applied, and the removal says\n%s", out)
	}
	r.has("removed again", "/var/lib/bulkhead", false)
}

// underSystemd has a root look like one in which systemd runs, with programs that only say what they were asked for. It
// gives what was said since the last time.
func (r *rpmRoot) underSystemd() (said func() string) {
	if err := os.MkdirAll(r.at("/run/systemd/system"), 0o755); err != nil {
		r.t.Fatal(err)
	}
	for _, program := range []string{"systemctl", "deb-systemd-helper", "deb-systemd-invoke", "update-rc.d"} {
		r.write("/bin/"+program, "#!/bin/sh\necho "+program+` "$@" >>/said`+"\n")
		if err := os.Chmod(r.at("/bin/"+program), 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	return func() string {
		text, err := os.ReadFile(r.at("/said"))
		if err != nil {
			r.t.Fatal(err)
		}
		r.write("/said", "")
		return string(text)
	}
}

// links has a service wait for the agent, as `systemctl enable bulkhead-before@db` does.
func (r *rpmRoot) links() (link string) {
	link = "/etc/systemd/system/multi-user.target.wants/bulkhead-before@db.service"
	err := os.MkdirAll(filepath.Dir(r.at(link)), 0o755)
	if err == nil {
		err = os.Symlink("/usr/lib/systemd/system/bulkhead-before@.service", r.at(link))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return link
}

// Whoever runs bulkhead-serve has the new one after an upgrade, and none after a removal.
func TestRPMServe(t *testing.T) {
	r := newRPMRoot(t)
	said := r.underSystemd()
	r.rpm("-i", "--nodeps", find(t, pack(t, version), "rpm"))
	link := r.links()
	said()
	r.rpm("-U", "--nodeps", find(t, pack(t, "v0.0.2"), "rpm"))
	if text := said(); !strings.Contains(text, "try-restart bulkhead.service bulkhead-serve.service\n") ||
		strings.Contains(text, "disable") {
		t.Errorf("the upgrade asks systemd for\n%s", text)
	}
	r.has("upgraded", link, true)
	r.rpm("-e", "bulkhead")
	if text := said(); !strings.Contains(text, "disable --now bulkhead.service bulkhead-serve.service\n") {
		t.Errorf("the removal asks systemd for\n%s", text)
	}
	r.has("removed", link, false)
}

// The same of the Debian package, whose links stay until a purge.
func TestDebServe(t *testing.T) {
	r := newRPMRoot(t)
	said := r.underSystemd()
	link := r.links()
	r.copy(filepath.Join(top, "packaging/removed"), "/usr/share/bulkhead/removed")
	script := func(name string, args ...string) string {
		t.Helper()
		r.copy(filepath.Join(top, "packaging/deb", name), "/"+name)
		do(t, "chroot", append([]string{r.dir, "/bin/sh", "/" + name}, args...)...)
		return said()
	}
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"postinst", []string{"configure", ""}, []string{"helper update-state bulkhead-serve.service"}},
		{"postinst", []string{"configure", "0.0.1"}, []string{"helper update-state bulkhead-serve.service",
			"invoke try-restart bulkhead-serve.service"}},
		{"prerm", []string{"remove"}, []string{"invoke stop bulkhead.service bulkhead-serve.service"}},
		{"postrm", []string{"remove"}, nil},
		{"postrm", []string{"purge"}, []string{"helper purge bulkhead.service bulkhead-serve.service"}},
	} {
		r.has(tt.name, link, true)
		text := script(tt.name, tt.args...)
		for _, want := range tt.want {
			if !strings.Contains(text, "deb-systemd-"+want+"\n") {
				t.Errorf("%s %q does not do %q, but\n%s", tt.name, tt.args, want, text)
			}
		}
	}
	r.has("purged", link, false)
}
