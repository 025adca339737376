//go:build root

package packaging

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// debs are two versions of the Debian package, which the lab's driver makes.
const debs = "../../packages/"

// The Debian package is installed, upgraded under limits that are held all the while, removed with the limits in force,
// and purged: then the machine is as it was. The files' order has this before TestInstalled.
func TestDebPackage(t *testing.T) {
	m := newMachine(t)
	m.tasks, m.program = "500", "/usr/bin/bulkhead"
	m.run([]step{
		{"installed", (*machine).debInstalled},
		{"applied", func(m *machine) {
			m.policy(m.tasks)
			m.do(m.program, "apply", "--reason", "first policy")
			m.holds("applied")
			m.placed(m.report(t))
			m.agrees(1)
		}},
		{"upgraded", (*machine).debUpgraded},
		{"removed", (*machine).debRemoved},
		{"purged", func(m *machine) {
			out := m.do("dpkg", "--purge", "bulkhead")
			if units, rest := m.limits(); m.heldOf(units[:1]) == nil || m.heldOf(rest[:1]) == nil {
				m.t.Errorf("limits are in force after the purge:\n%s", out)
			}
			m.isAs(m.saved())
			for _, left := range []string{"/etc/bulkhead", "/var/lib/bulkhead", "/run/bulkhead", m.program} {
				if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
					m.t.Errorf("%s is there: %v", left, err)
				}
			}
		}},
	})
}

// deb installs a version of the package.
func (m *machine) deb(version string) string {
	m.t.Helper()
	files, err := filepath.Glob(debs + version + "/*.deb")
	if err != nil || len(files) != 1 {
		m.t.Fatalf("packages of version %s: %q, %v", version, files, err)
	}
	return m.do("dpkg", "--install", files[0])
}

// debInstalled has the agent run, and run after the next boot, with the policy that asks for nothing.
func (m *machine) debInstalled() {
	m.save(m.state())
	m.deb("first")
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
	files, _ := filepath.Glob(debs + "second/*.deb")
	go func() {
		out, err := exec.Command("dpkg", "--install", files[0]).CombinedOutput()
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
	m.agrees(1)
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
