//go:build root

package packaging

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/systemd/unitname"
)

// The machine was started anew: everything is in force before the databases start. Then bulkhead is taken away, and the
// machine is as it was before it came.
func TestInstalledAfterReboot(t *testing.T) {
	m := newMachine(t)
	m.tasks = "600"
	before := m.saved()
	m.run([]step{
		{"in_force_before_the_databases", func(m *machine) { m.booted(before) }},
		{"new_process", func(m *machine) { m.placed(m.report(m.t)) }},
		{"released", (*machine).release},
		{"uninstalled", (*machine).uninstall},
		{"as_before", func(m *machine) { m.isAs(before) }},
	})
}

func seconds(microseconds uint64) float64 { return float64(microseconds) / 1e6 }

func (m *machine) booted(before record) {
	if m.state().Boot == before.Boot {
		m.t.Fatal("it is the same boot")
	}
	ready := m.monotonic(agentUnit, "ActiveEnterTimestamp")
	kept := m.monotonic(keeper, "ActiveEnterTimestamp")
	m.t.Logf("the agent was ready %.3f s after the kernel had started, the keeper ran at %.3f s", seconds(ready),
		seconds(kept))
	for _, unit := range []string{mariadb, m.postgresql} {
		begun, server, active := m.monotonic(unit, "InactiveExitTimestamp"),
			m.monotonic(unit, "ExecMainStartTimestamp"), m.monotonic(unit, "ActiveEnterTimestamp")
		m.t.Logf("%s: its start began at %.3f s, its server ran at %.3f s, it was ready at %.3f s; it is in %s",
			unit, seconds(begun), seconds(server), seconds(active), m.unit(unit).ControlGroup)
		if ready >= begun || kept >= begun || ready >= server {
			m.t.Errorf("%s did not wait for the limits", unit)
		}
	}
	m.holds("after the reboot")
	if at := m.unit(m.postgresql).ControlGroup; at != postgresSlice+"/"+m.postgresql {
		m.t.Errorf("PostgreSQL is adopted, and runs in %s", at)
	}
	m.agrees(2)
	m.verified()
}

func (m *machine) release() {
	m.do(program, "release", "--all", "--reason", "the end")
	if units, rest := m.limits(); m.heldOf(units[:1]) == nil || m.heldOf(units[2:3]) == nil ||
		m.heldOf(rest[:1]) == nil {
		m.t.Error("limits are in force after the release")
	}
	m.do("systemctl", "restart",
		m.postgresql) // out of the slice that it was adopted into, which the second release takes away
	m.do(program, "release", "--all", "--reason", "an empty slice")
}

// uninstall is what docs/install.md says under "Taking it away".
func (m *machine) uninstall() {
	m.do("systemctl", "disable", "--now", "bulkhead")
	m.do("../../scripts/install", "uninstall")
	if _, err := exec.LookPath("update-rc.d"); err == nil { // systemctl had it make links for the init script
		m.do("update-rc.d", "bulkhead", "remove")
	}
	for _, dir := range []string{"/etc/bulkhead", "/var/lib/bulkhead"} {
		if err := os.RemoveAll(dir); err != nil {
			m.t.Fatal(err)
		}
	}
	m.do("systemctl", "daemon-reload")
}

func (m *machine) isAs(before record) {
	after := m.state()
	for unit, was := range before.Units {
		if is := after.Units[unit]; is != was {
			m.t.Errorf("now:\n%s\nbefore the first apply:\n%s", is, was)
		}
	}
	if after.Tuned != before.Tuned {
		m.t.Errorf("settings of the kernel are %q, before the first apply %q", after.Tuned, before.Tuned)
	}
	wantFiles(m.t, before.Files)
	all, err := m.systemd.Units(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, u := range all {
		if strings.HasPrefix(u.Name, "bulkhead") && u.ActiveState != "inactive" {
			m.t.Errorf("%s is %s", u.Name, u.ActiveState)
		}
	}
	for _, h := range m.tree.Hierarchies() {
		names, err := m.tree.Children(cgroup.Dir{Hierarchy: h.ID, Path: "/"})
		if err != nil {
			m.t.Error(err)
		}
		for _, name := range names {
			if strings.HasPrefix(name, unitname.TopPrefix) {
				m.t.Errorf("%s is there in %s", name, h.ID)
			}
		}
	}
	if err := os.Remove(recordAt); err != nil {
		m.t.Error(err)
	}
}
