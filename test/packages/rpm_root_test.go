//go:build root

package packages

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/testdoc"
	"bulkhead/internal/testhost"
)

// rpmRoot is a directory that rpm takes for a host: it has what the packages' scripts call, and no systemd.
type rpmRoot struct {
	t   *testing.T
	dir string
	pid string // its first process as this machine numbers it, once it is a host
}

var library = regexp.MustCompile(`(/\S+) \(0x`)

func newRPMRoot(t *testing.T) *rpmRoot {
	t.Helper()
	testhost.RequireRoot(t)
	r := &rpmRoot{t: t, dir: t.TempDir()}
	for _, program := range []string{"sh", "ls", "cp", "rm", "rmdir", "mkdir", "cat", "chmod"} {
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
	cmd := r.inside(append([]string{"rpm", "--root", r.dir, "--dbpath", "/var/lib/rpm"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "scriptlet failed") {
		r.t.Fatalf("rpm %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// files are those of the root, but for what rpm and the MariaDB hold.
func (r *rpmRoot) files() (all []string) {
	r.t.Helper()
	err := filepath.WalkDir(r.dir, func(name string, e fs.DirEntry, err error) error {
		switch short := strings.TrimPrefix(name, r.dir); {
		case err != nil:
			return err
		case e.IsDir() && short == "/var/lib/rpm":
			return filepath.SkipDir
		case !e.IsDir():
			all = append(all, short)
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// boot makes the root a host, which sees its own processes alone and the groups of this kernel. It ends with the test.
func (r *rpmRoot) boot() {
	r.t.Helper()
	for _, file := range []string{"passwd", "group"} {
		r.copy("/etc/"+file, "/etc/"+file)
	}
	for _, dir := range []string{"proc", "sys", "run", "tmp"} {
		if err := os.MkdirAll(r.at(dir), 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c",
		`mount -t proc proc "$0/proc"; mount --rbind /sys "$0/sys"; mount -t proc proc /proc; echo up; read -r _`,
		r.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	end, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	up, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = end.Close(); _ = cmd.Wait() })
	if n, err := up.Read(make([]byte, 10)); n == 0 {
		r.t.Fatalf("make a host of the root: %v", err)
	}
	child, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	r.pid = strings.TrimSpace(string(child))
}

// inside is a command among the root's processes.
func (r *rpmRoot) inside(args ...string) *exec.Cmd {
	if r.pid != "" {
		args = append([]string{"nsenter", "-t", r.pid, "-m", "-p", "--"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// types is a line typed in the root.
func (r *rpmRoot) types(line string) string {
	r.t.Helper()
	out, err := r.inside("chroot", r.dir, "/bin/sh", "-c", line).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// mariadb starts one among the root's processes and gives its port. It ends with the test.
func (r *rpmRoot) mariadb() (port int) {
	r.t.Helper()
	const pkg = "mariadb-server"
	dir, _, as := testhost.AccountDir(r.t, "mysql", pkg)
	data, port := filepath.Join(dir, "data"), testhost.FreePort(r.t)
	install := exec.Command(testhost.Program(r.t, pkg, "/usr/bin/mariadb-install-db"), "--no-defaults",
		"--datadir="+data, "--skip-test-db")
	install.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if out, err := install.CombinedOutput(); err != nil {
		r.t.Fatalf("%v\n%s", err, out)
	}
	cmd := r.inside("setpriv", "--reuid", strconv.Itoa(int(as.Uid)), "--regid", strconv.Itoa(int(as.Gid)),
		"--clear-groups", "--", testhost.Program(r.t, pkg, "/usr/sbin/mariadbd"), "--no-defaults", "--datadir="+data,
		"--port="+strconv.Itoa(port), "--socket="+dir+"/m.sock", "--pid-file="+dir+"/m.pid",
		"--bind-address=127.0.0.1", "--innodb-buffer-pool-size=8M")
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testhost.WaitLong(r.t, time.Minute, "MariaDB to listen", func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return port
}

// agent starts it, as systemd would, and gives what ends it.
func (r *rpmRoot) agent() (end func()) {
	r.t.Helper()
	cmd := r.inside("chroot", r.dir, "/usr/bin/bulkhead", "agent", "--ready-fd", "3")
	var said bytes.Buffer
	ready, writes, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	defer ready.Close()
	cmd.Stderr, cmd.ExtraFiles = &said, []*os.File{writes}
	err = cmd.Start()
	writes.Close()
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := ready.Read(make([]byte, 100)); err != nil {
		_ = cmd.Wait()
		r.t.Fatalf("the agent is not ready: %v\n%s", err, said.Bytes())
	}
	child, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(child)))
	if err != nil {
		r.t.Fatal(err)
	}
	return func() { _ = syscall.Kill(pid, syscall.SIGTERM); _ = cmd.Wait() }
}

// tenCommands does docs/start.md's on the root: rpm has installed the package, and the editor is this test.
func (r *rpmRoot) tenCommands() {
	r.t.Helper()
	page, err := os.ReadFile(filepath.Join(top, "docs/start.md"))
	if err != nil {
		r.t.Fatal(err)
	}
	blocks := testdoc.RunBy(string(page), "TestRPMInARoot")
	if len(blocks) != 1 {
		r.t.Fatalf("%d blocks of docs/start.md are for an rpm", len(blocks))
	}
	for i, line := range blocks[0].Commands() {
		switch {
		case i == 0:
		case strings.Contains(line, "EDITOR"):
			text, err := os.ReadFile(r.at("/etc/bulkhead/policy.yaml"))
			if err != nil {
				r.t.Fatal(err)
			}
			r.write("/etc/bulkhead/policy.yaml", regexp.MustCompile(`(?m)^    # cpu: \{limit: .*\}`).
				ReplaceAllString(string(text), "    cpu: {limit: 1.5}"))
		default:
			r.types(line)
		}
	}
	if out := r.types("bulkhead verify"); !strings.Contains(out, " 0 not enforced") {
		r.t.Errorf("verify says\n%s", out)
	}
}

// limited holds the kernel to the limit on CPU time of MariaDB's group, or to it that there is no such group.
func (r *rpmRoot) limited(when string, port int, want bool) {
	r.t.Helper()
	tree, group := testhost.Tree(r.t), fmt.Sprintf("/bulkhead.mysql%d", port)
	for _, h := range tree.Hierarchies() {
		if !h.Has("cpu") {
			continue
		}
		file, limit := "cpu.max", "150000 100000"
		if h.Version == 1 {
			file, limit = "cpu.cfs_quota_us", "150000"
		}
		d := cgroup.Dir{Hierarchy: h.ID, Path: group}
		got, err := tree.Read(d.File(file))
		if is := err == nil && strings.TrimSpace(got) == limit; is != want {
			r.t.Errorf("%s: %s of %s is %q, %v", when, file, group, got, err)
		}
		procs, _ := tree.Read(d.File("cgroup.procs"))
		if (procs != "") != want {
			r.t.Errorf("%s: processes of %s: %q", when, group, procs)
		}
	}
}

func (r *rpmRoot) has(when, name string, want bool) {
	r.t.Helper()
	if _, err := os.Lstat(r.at(name)); (err == nil) != want {
		r.t.Errorf("%s: %s is there: %v, want %v", when, name, err == nil, want)
	}
}

// The rpm is installed, upgraded and removed by rpm, with its scripts, in a directory that holds no systemd. Between
// that the ten commands of docs/start.md are typed there, on a real MariaDB: its limits are in force until they are
// lifted by what the removal has left.
func TestRPMInARoot(t *testing.T) {
	t.Parallel()
	r := newRPMRoot(t)
	first, second := find(t, pack(t, version), "rpm"), upgrade(t)
	r.boot()
	before := r.files()
	r.rpm("-i", "--nodeps", first)
	r.has("installed", "/usr/bin/bulkhead", true)
	r.has("installed", "/var/lib/bulkhead", true)
	port := r.mariadb()
	program, err := filepath.Abs(top + "/bulkhead") // `make packages` has built it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after a failure
		if t.Failed() {
			out, err := r.inside(program, "--state", r.at("/var/lib/bulkhead"), "--socket", r.at("/none"), "release",
				"--all").CombinedOutput()
			t.Logf("release: %v\n%s", err, out)
		}
	})
	agent := r.agent()
	r.tenCommands()
	policy, err := os.ReadFile(r.at("/etc/bulkhead/policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r.limited("applied", port, true)

	r.rpm("-U", "--nodeps", second)
	r.limited("upgraded", port, true)
	if got := strings.TrimSpace(r.rpm("-q", "--queryformat", "%{VERSION}", "bulkhead")); got != "0.0.2" {
		t.Errorf("after the upgrade it is %s", got)
	}
	if text, err := os.ReadFile(r.at("/etc/bulkhead/policy.yaml")); err != nil || string(text) != string(policy) {
		t.Errorf("after the upgrade the policy is %q, %v", text, err)
	}
	r.has("upgraded", "/var/lib/bulkhead/removed", false)

	agent() // systemd would have stopped it
	r.write("/etc/sysconfig/bulkhead", "BULKHEAD_OPTIONS=\"--socket /run/other.sock\"\n")
	out := r.rpm("-e", "bulkhead")
	if !strings.Contains(out, "lift them with `sh /var/lib/bulkhead/removed/release`") {
		t.Errorf("the removal says\n%s", out)
	}
	r.limited("removed", port, true)
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
	r.types("sh /var/lib/bulkhead/removed/release")
	r.limited("released", port, false)

	r.rpm("-i", "--nodeps", second)
	r.has("installed again", "/var/lib/bulkhead/removed", false)
	if out := r.rpm("-e", "bulkhead"); strings.Contains(out, "limits") {
		t.Errorf("nothing is in force, and the removal says\n%s", out)
	}
	r.types("rm -r /etc/bulkhead /var/lib/bulkhead /run/bulkhead /etc/sysconfig")
	if after := r.files(); !slices.Equal(after, before) {
		t.Errorf("before there was\n%q\nin the end there is\n%q", before, after)
	}
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
	r.rpm("-U", "--nodeps", upgrade(t))
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
