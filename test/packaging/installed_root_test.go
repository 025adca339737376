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
	"regexp"
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

	p.service("start")
	p.do(program, "verify")
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

// step is a part of a test that goes on from where the one before it has ended.
type step struct {
	name string
	do   func(m *machine)
}

func (m *machine) run(steps []step) {
	t := m.t
	for _, s := range steps {
		ok := t.Run(s.name, func(t *testing.T) {
			m.t = t
			s.do(m)
		})
		if m.t = t; !ok {
			t.FailNow()
		}
	}
}

// bulkhead is installed, governs the databases and what runs beside them, and holds every limit of the README's policy
// through all that can happen to the agent, to systemd and to the databases. It is left so for
// TestInstalledAfterReboot.
func TestInstalled(t *testing.T) {
	m := newMachine(t)
	m.tasks = "500"
	var report int
	m.run([]step{
		{"install", (*machine).install},
		{"systemd_understands_it", (*machine).analyzed},
		{"applied", func(m *machine) {
			m.policy(m.tasks)
			out := m.do(program, "apply", "--reason", "first policy")
			m.holds("applied")
			if !strings.Contains(out, "agent") {
				m.t.Errorf("apply does not say that no agent runs:\n%s", out)
			}
		}},
		{"started", (*machine).start},
		{"new_process", func(m *machine) {
			report = m.report(t)
			m.placed(report)
		}},
		{"reload", (*machine).reload},
		{"reload_of_a_bad_policy", (*machine).badReload},
		{"agent_killed", (*machine).killed},
		{"daemon-reload", func(m *machine) {
			for i := range 3 {
				m.do("systemctl", "daemon-reload")
				m.holds(fmt.Sprintf("daemon-reload %d", i+1))
			}
		}},
		{"restart_of_the_databases", (*machine).restartDatabases},
		{"restart_of_the_agent", func(m *machine) {
			m.do("systemctl", "restart", agentUnit)
			m.holds("restarted")
			m.placed(report)
			m.agrees(2)
			m.verified()
		}},
	})
}

// install does what `make install` does, and remembers how the machine was.
func (m *machine) install() {
	if _, err := os.Stat(program); err == nil {
		m.t.Fatalf("%s is there already", program)
	}
	m.save(m.state())
	out := m.do("../../scripts/install")
	for _, want := range []string{program, "/usr/local/lib/systemd/system/" + agentUnit, script} {
		if !strings.Contains(out, want+"\n") {
			m.t.Errorf("it does not say %s:\n%s", want, out)
		}
	}
	m.do("systemctl", "daemon-reload")
	for _, unit := range []string{mariadb, m.postgresql} {
		if after, _ := m.unit(unit).Properties["After"].([]string); !slices.Contains(after, agentUnit) {
			m.t.Errorf("%s does not start after %s: %q", unit, agentUnit, after)
		}
	}
}

// analyzed has this systemd judge the unit.
func (m *machine) analyzed() {
	out, err := exec.Command("systemd-analyze", "verify", "--man=no",
		"/usr/local/lib/systemd/system/"+agentUnit).CombinedOutput()
	if err != nil || strings.Contains(string(out), "bulkhead") {
		m.t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	out, err = exec.Command("systemd-analyze", "security", "--no-pager", agentUnit).CombinedOutput()
	m.t.Log(regexp.MustCompile(`(?m)^.*Overall exposure.*$`).FindString(string(out)))
	if err != nil {
		m.t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

// start has the unit's start put in force what is not when it begins.
func (m *machine) start() {
	h, file, none := m.of("memory"), "memory.max", "max"
	if h.Version == 1 {
		file, none = "memory.limit_in_bytes", "-1"
	}
	dir := cgroup.Dir{Hierarchy: h.ID, Path: m.unit(mariadb).ControlGroup}
	if err := m.tree.Write(dir.File(file), none); err != nil {
		m.t.Fatal(err)
	}
	if m.held() == nil {
		m.t.Fatal("a limit that was taken away is held")
	}
	m.do("systemctl", "enable", "--now", "bulkhead")
	m.holds("the start has returned")
	if out := m.do("systemctl", "is-active", "bulkhead"); out != "active\n" {
		m.t.Errorf("it is %q", out)
	}
	m.agrees(1)
}

func (m *machine) reload() {
	m.tasks = "600"
	m.policy(m.tasks)
	m.do("systemctl", "reload", "bulkhead")
	m.holds("reloaded")
	m.agrees(2)
}

// badReload has a policy refused that cannot be: systemctl says that it failed, the journal says where, and nothing
// changes.
func (m *machine) badReload() {
	m.policy("6 hundred")
	before := m.unit(agentUnit).MainPID
	if out, err := exec.Command("systemctl", "reload", "bulkhead").CombinedOutput(); err == nil {
		m.t.Errorf("the reload did not fail:\n%s", out)
	}
	m.holds("a policy was refused")
	if want := "enforcing revision 2"; m.said() != want {
		m.t.Errorf("its status line is %q, want %q", m.said(), want)
	}
	testhost.WaitFor(m.t, "the journal to name the place", func() bool {
		return regexp.MustCompile(`policy\.yaml:15:\d+: `).MatchString(m.journal())
	})
	m.policy(m.tasks)
	if u := m.unit(agentUnit); !u.Active() || u.MainPID != before {
		m.t.Errorf("the agent is %s, process %d, was %d", u.ActiveState, u.MainPID, before)
	}
}

// killed ends the agent as nothing else does. systemd starts it again, every limit is in force meanwhile, and the new
// one finds nothing to do.
func (m *machine) killed() {
	before := m.unit(agentUnit).MainPID
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		m.t.Fatal(err)
	}
	m.holdsWhile("systemd to start it again", func() bool {
		u := m.unit(agentUnit)
		return u.ActiveState == "active" && u.MainPID != before
	})
	m.agrees(2)
}

// restartDatabases restarts both. Their units carry the limits all the while. PostgreSQL's moves into its group's
// slice, which has the limits, too, as soon as the agent has seen whose it is.
func (m *machine) restartDatabases() {
	for _, unit := range []string{mariadb, m.postgresql} {
		m.do("systemctl", "restart", unit)
		units, _ := m.limits()
		if err := m.heldOf(units); err != nil {
			m.t.Errorf("%s was restarted: %v\n%s", unit, err, m.story())
		}
	}
	if at := m.unit(m.postgresql).ControlGroup; at != postgresSlice+"/"+m.postgresql {
		m.t.Errorf("it is adopted, and runs in %s", at)
	}
	began := time.Now()
	for m.held() != nil && time.Since(began) < 30*time.Second {
		time.Sleep(20 * time.Millisecond)
	}
	m.holds("half a minute after the restarts")
	m.t.Logf("everything was in force %v after the last restart had returned",
		time.Since(began).Round(time.Millisecond))
}
