//go:build root

package packaging

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
)

// dropIn is what `bulkhead unit --write` writes.
const dropIn = "/etc/systemd/system/bulkhead.service.d/policy.conf"

// Policies that together have every key are put in force under bulkhead.service. What the unit forbids is said before
// anything is changed; with what is typed then each is in force, and nothing more is left out than root itself could
// not do. The files' order has this before TestInstalled.
func TestEveryKeyUnderTheUnit(t *testing.T) {
	m := newMachine(t)
	before := m.state()
	m.save(before)
	m.surroundings()
	m.do("../../scripts/install")
	m.do("systemctl", "daemon-reload")
	m.do("systemctl", "start", "bulkhead")
	for _, name := range everyKey {
		if name == "unified" && m.of("memory").Version == 1 {
			continue
		}
		if !t.Run(name, func(t *testing.T) {
			of := *m
			of.t = t
			of.everyKey(name)
		}) {
			break
		}
	}

	m.do(program, "release", "--all", "--reason", "the end")
	m.do("systemctl", "restart", m.postgresql) // out of the slice that it was adopted into
	m.do(program, "release", "--all", "--reason", "an empty slice")
	m.do("systemctl", "stop", "everykey-loose")
	m.do("mariadb", "-e", "drop user everykey@'127.0.0.1'")
	m.do("ip", "link", "del", "bh0")
	m.do("dd", "if=/dev/zero", "of=/dev/vdg", "bs=4096", "count=1", "conv=fsync")
	m.uninstall()
	m.isAs(before)
}

// surroundings makes what the policies name: a process in a unit, an interface, a login, two disks of ASM.
func (m *machine) surroundings() {
	m.t.Helper()
	m.do("systemd-run", "--quiet", "--unit=everykey-loose", "--uid=games", "sleep", "3600")
	m.do("ip", "link", "add", "bh0", "type", "dummy")
	m.do("ip", "addr", "add", "192.0.2.1/24", "dev", "bh0")
	m.do("ip", "link", "set", "bh0", "up")
	m.do("ip", "route", "add", "default", "via", "192.0.2.2", "dev", "bh0")
	m.do("mariadb", "-e", "create user everykey@'127.0.0.1' identified by 'everykey'")
	header := make([]byte, 4096) // as kfed(1) shows it
	header[2], header[32+0x27] = 1, 3
	copy(header[32:], "ORCLDISK")
	copy(header[32+0x48:], "DATA")
	disk, err := os.OpenFile("/dev/vdg", os.O_WRONLY, 0)
	if err == nil {
		_, err = disk.Write(header)
		err = errors.Join(err, disk.Sync(), disk.Close())
	}
	if err != nil {
		m.t.Fatal(err)
	}
	dir := filepath.Dir(policyAt)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "more"), os.DirFS("testdata/everykey/more")); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "asm-disks"), []byte("/dev/vdh\n"), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// typed is what a message says is to be typed, between the first two backticks.
var typed = regexp.MustCompile("`(bulkhead unit --write && [^`]*)`")

// type does what is to be typed. Messages are wrapped.
func (m *machine) typed(message string) {
	m.t.Helper()
	words := typed.FindStringSubmatch(strings.Join(strings.Fields(message), " "))
	if words == nil {
		m.t.Fatalf("it does not say what to type:\n%s", message)
	}
	m.do("sh", "-c", "PATH=/usr/local/bin:$PATH; "+words[1])
}

// notHeld is what of a plan this host does not hold.
func (m *machine) notHeld(text string) (list []string) {
	m.t.Helper()
	type plan struct {
		Notes []struct {
			Group, Key, Text string
			NotEnforced      bool `json:"not_enforced"`
		}
	}
	var p struct {
		plan
		Plan plan // of a reply
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		m.t.Fatalf("%v\n%s", err, text)
	}
	for _, n := range append(p.Notes, p.Plan.Notes...) {
		if n.NotEnforced {
			list = append(list, fmt.Sprintf("%s %s: %s", n.Group, n.Key, n.Text))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (m *machine) everyKey(name string) {
	text, err := os.ReadFile("testdata/everykey/" + name + ".yaml")
	if err == nil {
		err = os.WriteFile(policyAt, text, 0o644)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.do(program, "check")
	var needs []struct{ For string }
	if err := json.Unmarshal([]byte(m.do(program, "unit", "--json")), &needs); err != nil {
		m.t.Fatal(err)
	}
	m.t.Logf("it needs %q", needs)
	if len(needs) > 0 {
		m.forbidden(name)
	}
	root := m.notHeld(m.do(program, "plan", "--json"))
	since := strings.TrimSpace(m.do("date", "+%s"))
	out, err := exec.Command(program, "apply", "--json", "--reason", name).Output()
	if err != nil {
		m.t.Fatalf("apply: %v\n%s\n%s", err, out, m.story())
	}
	if agents := m.notHeld(string(out)); !slices.Equal(agents, root) {
		m.t.Errorf("the agent does not hold\n%s\nroot itself would not hold\n%s", strings.Join(agents, "\n"),
			strings.Join(root, "\n"))
	} else {
		m.t.Logf("not held here:\n%s", strings.Join(root, "\n"))
	}
	// A process that goes home is governed with its unit in the agent's next look.
	var status struct{ Differs int }
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Second) {
		err := json.Unmarshal([]byte(m.do(program, "status", "--json")), &status)
		if err == nil && status.Differs == 0 {
			break
		}
		if time.Now().After(end) {
			m.t.Fatalf("status: %v, %d differ\n%s\n%s", err, status.Differs, m.do(program, "plan", "--applied"),
				m.story())
		}
	}
	journal := m.do("journalctl", "--no-pager", "--unit="+agentUnit, "--since=@"+since)
	if regexp.MustCompile(`(?i)not permitted|permission denied|read-only file system`).MatchString(journal) {
		m.t.Errorf("the agent says\n%s", journal)
	}
	if name == "first" {
		m.ownedByGames()
	}
	if len(needs) > 0 {
		return
	}
	if _, err := os.Stat(dropIn); err == nil { // of the policy before
		out, err := exec.Command(program, "apply").CombinedOutput()
		if err != nil {
			m.t.Fatalf("apply: %v\n%s", err, out)
		}
		m.typed(string(out))
	}
	if _, err := os.Stat(dropIn); err == nil {
		m.t.Errorf("%s is there, and nothing needs it", dropIn)
	}
}

// forbidden sees that what the unit forbids is said by plan and apply, with the whole host as it was, and does what is
// to be typed next.
func (m *machine) forbidden(name string) {
	m.t.Helper()
	was, recorded := m.state(), m.do(program, "history")
	out, err := exec.Command(program, "plan").CombinedOutput()
	if !strings.Contains(string(out), "forbids the agent") {
		m.t.Fatalf("plan does not say what the unit forbids: %v\n%s", err, out)
	}
	out, err = exec.Command(program, "apply").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 5 || !strings.Contains(string(out), "forbids the agent") {
		m.t.Fatalf("apply under the unit as it is: %v\n%s", err, out)
	}
	m.t.Logf("%s: %s", name, out)
	is := m.state()
	for unit, before := range was.Units {
		if is.Units[unit] != before {
			m.t.Errorf("a refused apply has changed\n%s\nto\n%s", before, is.Units[unit])
		}
	}
	if now := m.do(program, "history"); now != recorded || is.Tuned != was.Tuned {
		m.t.Errorf("a refused apply is in the history:\n%s", now)
	}
	m.typed(string(out))
	if out := m.do(program, "plan"); strings.Contains(out, "forbids the agent") {
		m.t.Fatalf("what was to be typed does not help:\n%s\n%s", out, m.do("cat", dropIn))
	}
}

// ownedByGames sees that files of the kernel were given away.
func (m *machine) ownedByGames() {
	m.t.Helper()
	games := strings.TrimSpace(m.do("id", "-u", "games"))
	dir := m.tree.Abs(cgroup.Dir{Hierarchy: m.of("pids").ID, Path: "/everykey.slice/everykey-reports.slice"})
	out := m.do("find", dir, "-name", "cgroup.procs", "-uid", games)
	if strings.TrimSpace(out) == "" {
		m.t.Errorf("no cgroup.procs below %s belongs to games:\n%s", dir,
			m.do("find", dir, "-name", "cgroup.procs", "-ls"))
	}
}
