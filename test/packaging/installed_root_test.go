//go:build root

package packaging

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/systemd"
	"bulkhead/internal/testhost"
)

// installedFiles are the files of systemd, of init scripts and of what is installed by hand.
func installedFiles(t *testing.T) (files []string) {
	t.Helper()
	for _, dir := range []string{"/etc", "/usr/local", "/run/systemd/system", "/run/systemd/system.control",
		"/var/lib/bulkhead", "/run/bulkhead"} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case !d.IsDir():
				files = append(files, name)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// wantFiles holds them to those before.
func wantFiles(t *testing.T, before []string) {
	t.Helper()
	after := installedFiles(t)
	for _, file := range after {
		if !slices.Contains(before, file) {
			t.Errorf("%s was left", file)
		}
	}
	for _, file := range before {
		if !slices.Contains(after, file) {
			t.Errorf("%s is gone", file)
		}
	}
}

// plain is one of the lab's machines without systemd, on which bulkhead is installed as on a host of its own, and a
// MariaDB started by hand.
type plain struct {
	t    *testing.T
	tree *cgroup.Tree
}

func newPlain(t *testing.T) *plain {
	t.Helper()
	testhost.RequireRoot(t)
	if os.Getenv("BULKHEAD_LAB") != "1" || systemd.Running("") {
		t.Skip("installs bulkhead and governs the database that runs here: in the lab's machines without systemd only")
	}
	p := &plain{t, testhost.Tree(t)}
	for _, dir := range []string{"/run/mysqld", filepath.Dir(policyAt)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.do("chown", "mysql", "/run/mysqld")
	p.do("ip", "link", "set", "lo", "up")
	return p
}

func (p *plain) do(name string, args ...string) string {
	p.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile("/var/log/bulkhead.log")
		p.t.Fatalf("%s %q: %v\n%s\nthe agent's log:\n%s", name, args, err, out, log)
	}
	return string(out)
}

// service runs a verb of the init script: its agent would hold a pipe open.
func (p *plain) service(verb string) {
	p.t.Helper()
	p.do("sh", "-c", script+" "+verb+" >/tmp/said 2>&1 </dev/null || { cat /tmp/said; exit 1; }")
}

// database starts MariaDB and waits for its first connection. It ends with the test.
func (p *plain) database() *exec.Cmd {
	p.t.Helper()
	cmd := exec.Command("mariadbd", "--user=mysql")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { p.stop(cmd) })
	for end := time.Now().Add(2 * time.Minute); exec.Command("mariadb", "-N", "-e",
		"select 1").Run() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatal("MariaDB takes no connections after two minutes")
		}
	}
	return cmd
}

func (p *plain) stop(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
}

// held says where the kernel does not hold the policy: a limit of a group, or a process outside of its group. A pid of
// 0 is none.
func (p *plain) held(group string, pid int, limits map[string]string) error {
	var inside []byte
	if pid != 0 {
		var err error
		if inside, err = os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err != nil {
			return err
		}
	}
	for _, h := range p.tree.Hierarchies() {
		d := cgroup.Dir{Hierarchy: h.ID, Path: "/bulkhead." + group}
		for file, want := range limits {
			controller, _, _ := strings.Cut(file, ".")
			if !h.Has(controller) || (h.Version == 2) != strings.HasSuffix(file, "max") && controller != "pids" {
				continue
			}
			got, err := p.tree.Read(d.File(file))
			if err != nil || strings.TrimSpace(got) != want {
				return fmt.Errorf("%s of %s holds %q, not %s: %v", file, group, got, want, err)
			}
			if pid != 0 && !strings.Contains(string(inside), ":"+d.Path+"\n") &&
				!strings.Contains(string(inside), ":"+d.Path+"/") {
				return fmt.Errorf("process %d is not in %s:\n%s", pid, d.Path, inside)
			}
		}
	}
	return nil
}

func (p *plain) holds(when, group string, pid int, limits map[string]string) {
	p.t.Helper()
	if err := p.held(group, pid, limits); err != nil {
		p.t.Errorf("%s: %v", when, err)
	}
}

// What the policy asks for, as the kernel's files hold it.
var (
	databaseLimits = map[string]string{"cpu.cfs_quota_us": "150000", "cpu.max": "150000 100000",
		"memory.limit_in_bytes": "536870912", "memory.max": "536870912"}
	reportsLimits = map[string]string{"cpu.cfs_quota_us": "50000", "cpu.max": "50000 100000", "pids.max": "60"}
)

const plainPolicy = `version: 1
host:
  reserve: {cpu: 0.5, memory: 256MiB}
groups:
  "mysql{port}":
    role: database
    each: {engine: mysql}
    cpu: {limit: 1.5}
    memory: {max: 512MiB}
  reports:
    role: batch
    match: [{user: games}]
    cpu: {limit: 0.5}
    tasks: 60
`

// A MariaDB without systemd is governed through restarts of it and of the agent, which the init script runs. It is left
// so for TestInitInstalledAfterReboot, so that it comes after the other tests of the init script.
func TestInitInstalled(t *testing.T) {
	p := newPlain(t)
	text, err := json.Marshal(installedFiles(t))
	if err == nil {
		err = os.WriteFile(recordAt, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.do("../../scripts/install")
	if err := os.WriteFile(policyAt, []byte(plainPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	server := p.database()
	p.do(program, "check")
	p.do(program, "apply", "--reason", "first policy")
	p.holds("applied", "mysql3306", server.Process.Pid, databaseLimits)
	p.holds("applied", "reports", 0, reportsLimits)
	p.do(program, "plan", "--exit-code")
	p.do(program, "verify")

	p.service("start")
	p.service("status")
	p.stop(server)
	server = p.database()
	p.holds("its first connection after a restart", "mysql3306", server.Process.Pid, databaseLimits)
	p.service("restart")
	p.service("reload")
	p.holds("the agent restarted", "mysql3306", server.Process.Pid, databaseLimits)
	p.do(program, "verify")
}

// The machine was started anew: once the init script returns everything is in force, and a database has its limits when
// it takes its first connection. Then bulkhead is taken away, and nothing of it is left.
func TestInitInstalledAfterReboot(t *testing.T) {
	p := newPlain(t)
	var before []string
	text, err := os.ReadFile(recordAt)
	if err == nil {
		err = json.Unmarshal(text, &before)
	}
	if err != nil {
		t.Fatalf("what TestInitInstalled has left: %v", err)
	}
	p.service("start")
	p.holds("the agent started", "reports", 0, reportsLimits)
	server := p.database()
	p.holds("its first connection after the reboot", "mysql3306", server.Process.Pid, databaseLimits)
	p.do(program, "verify")

	p.do(program, "release", "--all", "--reason", "the end")
	p.service("stop")
	for _, h := range p.tree.Hierarchies() {
		if there, err := p.tree.Exists(cgroup.Dir{Hierarchy: h.ID, Path: "/bulkhead.reports"}); err != nil || there {
			t.Errorf("after the release %s has a root group: %v", h.ID, err)
		}
	}
	if err := exec.Command("mariadb", "-N", "-e", "select 1").Run(); err != nil {
		t.Errorf("after the release MariaDB does not answer: %v", err)
	}
	p.do("../../scripts/install", "uninstall")
	for _, dir := range []string{"/etc/bulkhead", "/var/lib/bulkhead"} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	wantFiles(t, before)
}
