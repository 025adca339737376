//go:build root

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
)

// A policy whose group's files get another owner, and that asks for fast moves, fails under the unit as packaged and
// changes nothing; with the drop-in of `unit --print` it is in force. The files' order has this before TestInstalled.
func TestDropInOfUnit(t *testing.T) {
	m := newMachine(t)
	const dropIn = "/etc/systemd/system/bulkhead.service.d/policy.conf"
	before := m.state()
	m.save(before)
	m.do("../../scripts/install")
	m.do("systemctl", "daemon-reload")
	m.do("systemctl", "start", "bulkhead")
	policy := "version: 1\ngroups:\n  reports:\n    match: [{user: games}]\n    tasks: 100\n" +
		"    owner: {user: games, may: [run, set]}\n"
	if m.of("memory").Version == 2 {
		policy += "agent: {fast_moves: on}\n"
	}
	if err := os.MkdirAll(filepath.Dir(policyAt), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(policyAt, []byte(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program, "apply").CombinedOutput()
	if err == nil {
		t.Errorf("it is applied under the unit as packaged:\n%s", out)
	}
	t.Logf("as packaged: %s", out)

	text := m.do(program, "unit", "--print")
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dropIn, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	m.do("systemctl", "daemon-reload")
	m.do("systemctl", "restart", "bulkhead")
	m.do(program, "apply", "--reason", "with the drop-in")
	m.verified()
	games := strings.TrimSpace(m.do("id", "-u", "games"))
	file := filepath.Join(m.tree.Abs(cgroup.Dir{Hierarchy: m.of("pids").ID, Path: reportsInside}), "cgroup.procs")
	if owner := strings.TrimSpace(m.do("stat", "-c", "%u", file)); owner != games {
		t.Errorf("%s belongs to %s, not to %s\n%s", file, owner, games, m.story())
	}

	m.do(program, "release", "--all", "--reason", "the end")
	m.do("systemctl", "stop", "bulkhead")
	if err := os.RemoveAll(filepath.Dir(dropIn)); err != nil {
		t.Fatal(err)
	}
	m.uninstall()
	m.isAs(before)
}
