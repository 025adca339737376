//go:build root

package packaging

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/testhost"
)

// machine is one of the lab's with systemd, on which bulkhead is installed as on a host of its own: with its own paths,
// its own root group and the services that run there.
type machine struct {
	t          *testing.T
	tree       *cgroup.Tree
	systemd    *systemd.Manager
	postgresql string // the unit: each release of Debian has another
	tasks      string // what the policy asks for
}

const (
	agentUnit = "bulkhead.service"
	mariadb   = "mariadb.service"
	keeper    = "bulkhead.reports.service"
	program   = "/usr/local/bin/bulkhead"
	policyAt  = "/etc/bulkhead/policy.yaml"
	// recordAt outlives the reboot.
	recordAt = "/var/lib/bulkhead-test-installed.json"
)

// record is the machine before the first apply.
type record struct {
	Boot  string
	Units map[string]string
	Files []string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	testhost.RequireRoot(t)
	if os.Getenv("BULKHEAD_LAB") != "1" {
		t.Skip("installs bulkhead and governs the databases that run here: in the lab's machines only")
	}
	m := &machine{t: t, tree: testhost.Tree(t)}
	var err error
	if m.systemd, err = systemd.Connect(t.Context(), systemd.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.systemd.Close)
	all, err := m.systemd.Units(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all {
		if strings.HasPrefix(u.Name, "postgresql@") {
			m.postgresql = u.Name
		}
	}
	if m.postgresql == "" {
		t.Fatal("no PostgreSQL runs as a service")
	}
	return m
}

// do runs a program that is to succeed.
func (m *machine) do(name string, args ...string) string {
	m.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s %q: %v\n%s\n%s", name, args, err, out, m.story())
	}
	return string(out)
}

// journal is the end of what the agent's unit has said.
func (m *machine) journal() string {
	out, _ := exec.Command("journalctl", "--no-pager", "--output=short-monotonic", "--lines=60",
		"--unit="+agentUnit).CombinedOutput()
	return string(out)
}

// story is what there is to tell when something is not as it should be.
func (m *machine) story() string {
	out, _ := exec.Command(program, "history", "--long").CombinedOutput()
	return m.journal() + string(out[max(0, len(out)-8000):])
}

func (m *machine) unit(name string) *systemd.Unit {
	m.t.Helper()
	u, err := m.systemd.Unit(context.Background(), name)
	if err != nil {
		m.t.Fatal(err)
	}
	return u
}

// monotonic is a time of a unit, in microseconds since the machine's start.
func (m *machine) monotonic(unit, property string) uint64 {
	m.t.Helper()
	at, ok := m.unit(unit).Properties[property+"Monotonic"].(uint64)
	if !ok || at == 0 {
		m.t.Fatalf("%s of %s is %v", property, unit, m.unit(unit).Properties[property+"Monotonic"])
	}
	return at
}

// said is what the agent last told systemd of itself.
func (m *machine) said() string {
	text, _ := m.unit(agentUnit).Properties["StatusText"].(string)
	return text
}

func (m *machine) save(r record) {
	m.t.Helper()
	text, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(recordAt, text, 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) saved() record {
	m.t.Helper()
	var r record
	text, err := os.ReadFile(recordAt)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		m.t.Fatalf("what TestInstalled has left: %v", err)
	}
	return r
}

// state is the machine as it is: all that systemd and the kernel hold of the databases' units, and the files of
// systemd, of init scripts and of what is installed by hand.
func (m *machine) state() record {
	m.t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		m.t.Fatal(err)
	}
	r := record{Boot: string(boot), Units: map[string]string{}}
	for _, unit := range []string{mariadb, m.postgresql} {
		r.Units[unit] = m.stateOf(unit)
	}
	r.Files = installedFiles(m.t)
	return r
}

func (m *machine) stateOf(unit string) string {
	m.t.Helper()
	u := m.unit(unit)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s in %s, slice %s, drop-ins %v\n", u.Name, u.ActiveState, u.ControlGroup, u.Slice,
		u.DropInPaths)
	for _, row := range systemd.Table() {
		if v, ok := u.Properties[row.Name]; ok && row.Form != systemd.FormFlag {
			fmt.Fprintf(&b, "%s=%v\n", row.Name, v)
		}
	}
	overrides, err := m.systemd.Overrides(unit)
	if err != nil {
		m.t.Fatal(err)
	}
	fmt.Fprintf(&b, "%d overrides\n", len(overrides))
	b.WriteString(testhost.Snapshot(m.t, m.tree, strings.TrimPrefix(u.ControlGroup, "/")))
	return b.String()
}

// policy writes the README's policy, with limits that fit this machine. The one of PostgreSQL's tasks is the argument,
// so that it can be changed, and broken.
func (m *machine) policy(tasks string) {
	m.t.Helper()
	text := `version: 1
host:
  reserve: {cpu: 0.5, memory: 256MiB}
groups:
  "mysql{port}":
    role: database
    each: {engine: mysql}
    cpu: {limit: 2}
    memory: {max: 768MiB}
  "postgresql{port}":
    role: database
    each: {engine: postgresql}
    adopt: next-start
    tasks: ` + tasks + `
  reports:
    role: batch
    match: [{user: games}]
    cpu: {limit: 1.5}
    memory: {max: 256MiB}
    io: [{on: /dev/vda, read: {bandwidth: 50MB/s}}]
`
	if err := os.MkdirAll(filepath.Dir(policyAt), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(policyAt, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// report starts a process that the group reports claims, in a session and in no unit, and gives its id. It ends with a
// test.
func (m *machine) report(with *testing.T) int {
	m.t.Helper()
	cmd := exec.Command("systemd-run", "--quiet", "--scope", "--slice=user.slice", "--uid=games", "sleep", "3600")
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	with.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testhost.WaitFor(m.t, "the report to run", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return string(comm) == "sleep\n"
	})
	return cmd.Process.Pid
}

// Directories of the groups.
const (
	reportsSlice  = "/bulkhead.reports.slice"
	reportsInside = reportsSlice + "/" + keeper + "/members"
	postgresSlice = "/bulkhead.postgresql5432.slice"
)

// limit is a value that the kernel is to hold, in a file of either version. One that is not exact is a part of it.
type limit struct {
	dir           string
	file1, value1 string
	file2, value2 string
	controller    string
	part          bool
}

// limits are those of the policy, in the directories of the units as they are now: those that the databases' units
// carry themselves, and the others.
func (m *machine) limits() (units, rest []limit) {
	m.t.Helper()
	var disk unix.Stat_t
	if err := unix.Stat("/dev/vda", &disk); err != nil {
		m.t.Fatal(err)
	}
	device := fmt.Sprintf("%d:%d ", unix.Major(disk.Rdev), unix.Minor(disk.Rdev))
	databases, postgresql := m.unit(mariadb).ControlGroup, m.unit(m.postgresql).ControlGroup
	tasks := func(dir string) limit {
		return limit{dir: dir, controller: "pids", file1: "pids.max", value1: m.tasks, file2: "pids.max",
			value2: m.tasks}
	}
	cpu := func(dir, quota string) limit {
		return limit{dir: dir, controller: "cpu", file1: "cpu.cfs_quota_us", value1: quota, file2: "cpu.max",
			value2: quota + " 100000"}
	}
	memory := func(dir, bytes string) limit {
		return limit{dir: dir, controller: "memory", file1: "memory.limit_in_bytes", value1: bytes, file2: "memory.max",
			value2: bytes}
	}
	disks := limit{dir: reportsSlice, controller: "blkio", file2: "io.max", value2: device + "rbps=50000000 ",
		part: true}
	if h := m.of("blkio"); h.Version == 1 { // it does not descend there
		disks.dir, disks.file1, disks.value1 = reportsInside, "blkio.throttle.read_bps_device", device+"50000000"
	}
	units = []limit{
		cpu(databases, "200000"), memory(databases, "805306368"), tasks(postgresql),
		{dir: databases, controller: "cpu", file1: "cpu.shares", value1: "10240", file2: "cpu.weight", value2: "1000"},
	}
	rest = []limit{cpu(reportsSlice, "150000"), memory(reportsSlice, "268435456"), disks}
	if strings.HasPrefix(postgresql, postgresSlice+"/") {
		rest = append(rest, tasks(postgresSlice))
	}
	return units, rest
}

func (m *machine) of(controller string) host.Hierarchy {
	m.t.Helper()
	for _, h := range m.tree.Hierarchies() {
		if h.Has(controller) {
			return h
		}
	}
	m.t.Fatalf("no hierarchy holds %s", controller)
	return host.Hierarchy{}
}

// held says which limit the kernel does not hold.
func (m *machine) held() error {
	m.t.Helper()
	units, rest := m.limits()
	return m.heldOf(slices.Concat(units, rest))
}

func (m *machine) heldOf(limits []limit) error {
	m.t.Helper()
	for _, l := range limits {
		h := m.of(l.controller)
		file, want := l.file1, l.value1
		if h.Version == 2 {
			file, want = l.file2, l.value2
		}
		got, err := m.tree.Read(cgroup.Dir{Hierarchy: h.ID, Path: l.dir}.File(file))
		if got = strings.TrimSpace(got); err != nil || got != want && !(l.part && strings.Contains(got+" ", want)) {
			return fmt.Errorf("%s of %s holds %q, want %q (%v)", file, l.dir, got, want, err)
		}
	}
	return nil
}

// holds fails unless every limit is in force now.
func (m *machine) holds(when string) {
	m.t.Helper()
	if err := m.held(); err != nil {
		m.t.Fatalf("%s: %v\n%s", when, err, m.story())
	}
}

// holdsWhile sees that every limit is in force again and again until something is so.
func (m *machine) holdsWhile(what string, is func() bool) {
	m.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		m.holds(what)
		if time.Now().After(end) {
			m.t.Fatalf("waited a minute for %s\n%s", what, m.story())
		}
	}
	m.holds(what)
}

// placed waits until a report is in its group.
func (m *machine) placed(pid int) {
	m.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		at := ""
		procs, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{pid}})
		if err != nil || len(procs) != 1 {
			m.t.Fatalf("the report has ended: %v", err)
		}
		for _, controller := range []string{"cpu", "memory", "pids", "blkio"} {
			if dir := procs[0].Cgroups[m.of(controller).ID]; dir != reportsInside {
				at = fmt.Sprintf("in %s of %s", dir, controller)
			}
		}
		switch {
		case at == "":
			return
		case time.Now().After(end):
			m.t.Fatalf("process %d is %s\n%s", pid, at, m.story())
		}
	}
}

// agrees holds `status` and the unit's status line to it that the policy is wholly in force.
func (m *machine) agrees(revision int) {
	m.t.Helper()
	var st struct {
		Revision, Differs int
		Agent             struct {
			Running       bool
			Error, Source string
		}
		Problems []any
		Groups   []any
	}
	text := m.do(program, "status", "--json")
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		m.t.Fatalf("status: %v\n%s", err, text)
	}
	if st.Revision != revision || st.Differs != 0 || !st.Agent.Running || st.Agent.Error != "" ||
		len(st.Problems) > 0 || len(st.Groups) != 3 || st.Agent.Source != "events of the kernel" {
		m.t.Errorf("status is %+v", st)
	}
	if want := fmt.Sprintf("enforcing revision %d", revision); m.said() != want {
		m.t.Errorf("its status line is %q, want %q", m.said(), want)
	}
}

// verified has every limit read back, by `verify`, and the policy has nothing to do.
func (m *machine) verified() {
	m.t.Helper()
	if out := m.do(program, "verify"); !strings.Contains(out, " 0 not enforced") {
		m.t.Errorf("verify says\n%s", out)
	}
	m.do(program, "plan", "--exit-code") // 3 when there is anything to do
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
		return regexp.MustCompile(`policy\.yaml:14:\d+: `).MatchString(m.journal())
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
