//go:build root

package packaging

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/systemd"
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
	program    string // bulkhead, as installed
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
	Tuned string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	testhost.RequireRoot(t)
	if os.Getenv("BULKHEAD_LAB") != "1" {
		t.Skip("installs bulkhead and governs the databases that run here: in the lab's machines only")
	}
	m := &machine{t: t, tree: testhost.Tree(t), program: program}
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
	out, _ := exec.Command(m.program, "history", "--long").CombinedOutput()
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
	r := record{Boot: string(boot), Units: map[string]string{}, Tuned: m.tuned()}
	for _, unit := range []string{mariadb, m.postgresql} {
		r.Units[unit] = m.stateOf(unit)
	}
	r.Files = installedFiles(m.t)
	return r
}

// tuned is what the kernel holds of the settings of the policy, and which files set them at boot.
func (m *machine) tuned() string {
	m.t.Helper()
	var held []string
	for _, name := range []string{"swappiness", "dirty_bytes", "dirty_ratio"} {
		text, err := os.ReadFile("/proc/sys/vm/" + name)
		if err != nil {
			m.t.Fatal(err)
		}
		held = append(held, strings.TrimSpace(string(text)))
	}
	if _, err := os.Stat("/etc/sysctl.d/60-bulkhead.conf"); err == nil {
		held = append(held, "and at boot")
	}
	return strings.Join(held, " ")
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
  tune: {vm.swappiness: 7, vm.dirty_bytes: 67108864}
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
	if got, want := m.tuned(), "7 67108864 0 and at boot"; got != want {
		return fmt.Errorf("settings of the kernel are %q, want %q", got, want)
	}
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
	const most = 10 * time.Minute // it is emulated, and its host may be busy
	for end := time.Now().Add(most); !is(); time.Sleep(20 * time.Millisecond) {
		m.holds(what)
		if time.Now().After(end) {
			m.t.Fatalf("waited %v for %s\n%s", most, what, m.story())
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
	text := m.do(m.program, "status", "--json")
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
	if out := m.do(m.program, "verify"); !strings.Contains(out, " 0 not enforced") {
		m.t.Errorf("verify says\n%s", out)
	}
	m.do(m.program, "plan", "--exit-code") // 3 when there is anything to do
}
