//go:build root

package packaging

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// The Debian package is installed on a machine that knows nothing of it, the ten commands of docs/start.md are typed,
// and a wider policy is applied. The machine is left so for TestDebPackageAfterReboot.
func TestDebPackage(t *testing.T) {
	m := newMachine(t)
	m.tasks, m.program = "500", "/usr/bin/bulkhead"
	m.run([]step{
		{"ten_commands", (*machine).debStarted},
		{"applied", func(m *machine) {
			m.policy(m.tasks)
			m.do(m.program, "apply", "--reason", "more limits")
			m.holds("applied")
			m.placed(m.report(t))
			m.agrees(2)
		}},
		{"commands_of_install.md", (*machine).debDocumented},
	})
}

// debDocumented does what docs/install.md says of hosts with systemd, and takes it back.
func (m *machine) debDocumented() {
	documented(m.t, installPage, "TestDebPackage", "With systemd", 6, nil)
	m.holds("after the commands of docs/install.md")
	m.do("systemctl", "disable", "bulkhead-before@oracle-rdbms", "bulkhead-before@scylla@2")
	if err := os.RemoveAll("/etc/systemd/system/bulkhead.service.d"); err != nil {
		m.t.Fatal(err)
	}
	m.do("systemctl", "daemon-reload")
}

// The machine was started anew: the limits are in force before the databases start. Then the package is upgraded under
// limits that are held all the while, removed with the limits in force, and purged: the machine is as it was before.
func TestDebPackageAfterReboot(t *testing.T) {
	m := newMachine(t)
	m.tasks, m.program = "500", "/usr/bin/bulkhead"
	m.run([]step{
		{"in_force_before_the_databases", func(m *machine) { m.booted(m.saved()) }},
		{"upgraded", (*machine).debUpgraded},
		{"removed", (*machine).debRemoved},
		{"purged", func(m *machine) {
			out := m.do("dpkg", "--purge", "bulkhead")
			if units, rest := m.limits(); m.heldOf(units[:1]) == nil || m.heldOf(rest[:1]) == nil {
				m.t.Errorf("limits are in force after the purge:\n%s", out)
			}
			// It was adopted, and is in the slice until its next start: docs/install.md.
			slice := strings.TrimPrefix(postgresSlice, "/")
			m.do("systemctl", "restart", m.postgresql)
			m.do("systemctl", "stop", slice)
			m.do("systemctl", "revert", slice)
			m.isAs(m.saved())
			for _, left := range []string{"/etc/bulkhead", "/var/lib/bulkhead", "/run/bulkhead", m.program} {
				if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
					m.t.Errorf("%s is there: %v", left, err)
				}
			}
		}},
	})
}

// debStarted does the ten commands. From the first on the agent runs, and runs after the next boot, with a policy that
// asks for nothing.
func (m *machine) debStarted() {
	m.save(m.state())
	want := started(m.t, "TestDebPackage", func(i int) {
		if i == 1 {
			m.debInstalled()
		}
	})
	m.heldAsStarted(want)
	documented(m.t, startPage, "TestDebPackage", "The agent", 1, nil)
}

// heldAsStarted holds the kernel's files of MariaDB's unit to the starter's limits.
func (m *machine) heldAsStarted(want map[string]string) {
	m.t.Helper()
	dir := m.unit(mariadb).ControlGroup
	var limits []limit
	for controller, files := range map[string][2]string{"cpu": {"cpu.cfs_quota_us", "cpu.max"},
		"memory": {"memory.limit_in_bytes", "memory.max"}} {
		limits = append(limits, limit{dir: dir, controller: controller, file1: files[0], value1: want[files[0]],
			file2: files[1], value2: want[files[1]]})
	}
	if err := m.heldOf(limits); err != nil {
		m.t.Errorf("after the ten commands: %v\n%s", err, m.story())
	}
}

func (m *machine) debInstalled() {
	for verb, want := range map[string]string{"is-active": "active\n", "is-enabled": "enabled\n"} {
		if out := m.do("systemctl", verb, "bulkhead"); out != want {
			m.t.Errorf("%s: %s", verb, out)
		}
	}
	for _, unit := range []string{mariadb, m.postgresql} {
		if after, _ := m.unit(unit).Properties["After"].([]string); !slices.Contains(after, agentUnit) {
			m.t.Errorf("%s does not start after %s: %q", unit, agentUnit, after)
		}
	}
	m.do(m.program, "check")
}

// debUpgraded reads every limit again and again while the package is replaced.
func (m *machine) debUpgraded() {
	before := m.unit(agentUnit).MainPID
	done := make(chan error, 1)
	samples, began := 0, time.Now()
	second := deb(m.t, "second")
	go func() {
		out, err := exec.Command("dpkg", "--install", second).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("dpkg: %w\n%s", err, out)
		}
		done <- err
	}()
	m.holdsWhile("the upgrade", func() bool {
		samples++
		select {
		case err := <-done:
			if err != nil {
				m.t.Error(err)
			}
			return true
		default:
			return false
		}
	})
	m.t.Logf("every limit was in force in %d samples over %v", samples, time.Since(began).Round(time.Millisecond))
	after := m.unit(agentUnit)
	if !after.Active() || after.MainPID == before || samples < 10 {
		m.t.Errorf("the agent is %s, process %d, was %d; %d samples", after.ActiveState, after.MainPID, before, samples)
	}
	if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", after.MainPID)); program != m.program {
		m.t.Errorf("the agent runs %s, %v", program, err)
	}
	if out := m.do(m.program, "version"); !strings.HasPrefix(out, "bulkhead v0.0.2 ") {
		m.t.Errorf("it is %s", out)
	}
	m.agrees(2)
}

func (m *machine) debRemoved() {
	out := m.do("dpkg", "--remove", "bulkhead")
	m.holds("removed")
	if _, err := os.Stat(m.program); err == nil {
		m.t.Errorf("%s is there", m.program)
	}
	if !strings.Contains(out, "lift them with `sh /var/lib/bulkhead/removed/release`") {
		m.t.Errorf("it does not say how to lift the limits:\n%s", out)
	}
	if out, _ := exec.Command("systemctl", "is-active", "bulkhead").Output(); string(out) != "inactive\n" {
		m.t.Errorf("the agent is %s", out)
	}
}
