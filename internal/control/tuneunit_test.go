package control

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tunable/service"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
)

const dropIn = "etc/systemd/system/db.service.d/90-bulkhead.conf"

// unitMachine is a machine with a database that may open 1024 files, or 524288 if it asks.
func unitMachine(t *testing.T) *machine { return unitMachineOf(t, "252.39") }

// unitMachineOf is one with a version of systemd.
func unitMachineOf(t *testing.T, version string) *machine {
	t.Helper()
	m := newMachine(t, version)
	m.put("run/systemd/system/.keep", "")
	m.put("etc/systemd/system/db.service", "[Service]\n")
	m.limited(m.service("db.service", "/usr/sbin/mysqld"), "1024", "524288")
	return m
}

// limited gives a process a limit, and the machine a kernel that does.
func (m *machine) limited(id procfs.ID, soft, hard string) {
	m.t.Helper()
	limits := func(pid int, soft, hard string) {
		m.put("proc/"+strconv.Itoa(pid)+"/limits", fmt.Sprintf("Limit   Soft Limit   Hard Limit   Units\n"+
			"Max open files            %-20s %-20s files\n", soft, hard))
	}
	m.SetLimit = func(pid, _ int, soft, hard uint64) error {
		limits(pid, strconv.FormatUint(soft, 10), strconv.FormatUint(hard, 10))
		return nil
	}
	limits(id.PID, soft, hard)
}

var (
	moreFiles = state.Tuned{Rule: "LIM-01", Name: "unit db.service/LimitNOFILE", Value: "65535"}
	lastToDie = state.Tuned{Rule: "MEM-36", Name: "unit db.service/OOMScoreAdjust", Value: "-600"}
)

const (
	untunedUnit = "1024 524288"
	tunedUnit   = "65535 65535; [Service]; LimitNOFILE=65535; OOMScoreAdjust=-600"
)

// ofUnit is what the database may open, and its drop-in without what bulkhead says of it.
func (m *machine) ofUnit() string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.proc, strconv.Itoa(m.unit("db.service").MainPID), "limits"))
	m.must(err)
	held := []string{strings.Join(strings.Fields(string(text))[9:11], " ")}
	text, err = os.ReadFile(filepath.Join(m.root, dropIn))
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			held = append(held, strings.TrimSpace(line))
		}
	}
	return strings.Join(held, "; ")
}

func (m *machine) unitAs(when, want string) {
	m.t.Helper()
	if got := m.ofUnit(); got != want {
		m.t.Errorf("%s: it is %q, want %q", when, got, want)
	}
}

// bootUnit starts the machine again: the database starts with what its drop-in says.
func (m *machine) bootUnit() {
	m.t.Helper()
	soft, hard := "1024", "524288"
	if strings.Contains(m.ofUnit(), "LimitNOFILE=65535") {
		soft, hard = "65535", "65535"
	}
	m.must(m.bySystemd().Stop(m.t.Context(), "db.service"))
	m.must(m.bySystemd().Start(m.t.Context(), "db.service"))
	id := m.alive[m.unit("db.service").MainPID]
	m.put("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
	m.reopened(-1)
	m.limited(id, soft, hard)
}

// reloads counts how often systemd read its files.
func (m *machine) reloads() (n int) {
	for _, c := range m.pid1.Calls() {
		if c.Method == "Reload" {
			n++
		}
	}
	return n
}

// shown is the plan as it is shown, on one line.
func shown(reply *api.Reply) string {
	return strings.Join(strings.Fields(plan.Render(reply.Plan, plan.RenderOptions{Form: plan.FormBrief})), " ")
}

// A limit is in the drop-in and with the process that runs, over a boot, and both go again. systemd reads the file
// once, and the process is the same.
func TestTuneUnit(t *testing.T) {
	m := unitMachine(t)
	main := m.unit("db.service").MainPID
	reply := m.tune(moreFiles, lastToDie)
	m.unitAs("tuned", tunedUnit)
	if n := m.reloads(); n != 1 {
		t.Errorf("%d reloads", n)
	}
	if text := shown(reply); !strings.Contains(text,
		"it counts when db.service") || !strings.Contains(text, "as MySQL does") {
		t.Errorf("it says\n%s", text)
	}
	if m.unit("db.service").MainPID != main {
		t.Error("the database was restarted")
	}
	if reply := m.tune(moreFiles); len(reply.Plan.Steps) > 0 {
		t.Errorf("once more: %+v", reply.Plan.Steps)
	}
	m.must(m.SetLimit(main, 7, 512, 512))
	all, err := inspect.Tuning(t.Context(), m.Reconciler.Controller)
	m.must(err)
	if len(all) != 2 || all[1].Holds != "65535" || all[1].Running != "512" || !all[1].Unit {
		t.Errorf("status: %+v", all)
	}
	_, err = m.full()
	m.must(err)
	m.unitAs("put right", tunedUnit)
	m.bootUnit()
	m.unitAs("booted", tunedUnit)
	_, err = m.do(api.Request{Verb: "tune rollback", Rules: []string{"MEM-36"}})
	m.must(err)
	m.unitAs("without MEM-36", "65535 65535; [Service]; LimitNOFILE=65535")
	_, err = m.do(api.Request{Verb: "tune rollback"})
	m.must(err)
	m.unitAs("rolled back", untunedUnit)
	if _, err := os.Stat(filepath.Dir(filepath.Join(m.root, dropIn))); !os.IsNotExist(err) {
		t.Errorf("the directory of the drop-in: %v", err)
	}
}

// The policy has it too: verified, edits kept aside, given back by a release. A service that is not there is said.
func TestTuneUnitByPolicy(t *testing.T) {
	m := unitMachine(t)
	reply := m.apply("host: {tune: {unit db.service: {LimitNOFILE: 65535, OOMScoreAdjust: -600}, " +
		"unit none.service: {LimitNOFILE: 65535}}}\n")
	m.unitAs("by the policy", tunedUnit)
	if text := shown(reply); !strings.Contains(text,
		"there is no none.service here") {
		t.Errorf("it says\n%s", text)
	}
	m.put(dropIn, "[Service]\nNice=5\n")
	_, err := m.full()
	m.must(err)
	m.unitAs("put right", tunedUnit)
	if text, err := os.ReadFile(filepath.Join(m.root, dropIn+".edited")); err != nil || !strings.Contains(string(text),
		"Nice=5") {
		t.Errorf("kept aside: %q, %v", text, err)
	}
	m.put("etc/systemd/system/db.service.d/99-site.conf", "[Service]\nLimitNOFILE=4096\n")
	reply = m.apply("host: {tune: {unit db.service: {LimitNOFILE: 65536}}}\n")
	if text := shown(reply); !strings.Contains(text,
		"lasts until db.service starts again: then line 2 of /etc/systemd/system/db.service.d/99-site.conf sets 4096") {
		t.Errorf("it says\n%s", text)
	}
	m.unitAs("another one", "65536 65536; [Service]; LimitNOFILE=65536")
	m.release()
	m.unitAs("released", untunedUnit)
}

// From systemd 260 on a service has a mode of transparent huge pages of its own, by its drop-in and from its next start
// on; an older one has none, which is said.
func TestTuneTransparentOfAUnit(t *testing.T) {
	const policy = "host: {tune: {unit db.service: {MemoryTHP: madvise}}}\n"
	m := unitMachineOf(t, "260.1-1")
	m.put("proc/sys/kernel/osrelease", "6.18.2\n")
	own := state.Tuned{Rule: "MEM-12", Name: "unit db.service/MemoryTHP", Value: "madvise"}
	if text := shown(m.tune(own)); !strings.Contains(text, "it counts when db.service starts next") {
		t.Errorf("it says\n%s", text)
	}
	m.unitAs("tuned", untunedUnit+"; [Service]; MemoryTHP=madvise")
	m.bootUnit()
	m.unitAs("booted", untunedUnit+"; [Service]; MemoryTHP=madvise")
	_, err := m.do(api.Request{Verb: "tune rollback"})
	m.must(err)
	m.unitAs("rolled back", untunedUnit)
	m.apply(policy)
	m.unitAs("by the policy", untunedUnit+"; [Service]; MemoryTHP=madvise")
	older := unitMachineOf(t, "259.5")
	older.put("proc/sys/kernel/osrelease", "6.18.2\n")
	if text := shown(older.apply(policy)); !strings.Contains(text, "or its systemd is older than 260") {
		t.Errorf("on systemd 259 it says\n%s", text)
	}
	older.unitAs("on systemd 259", untunedUnit)
	kernel := unitMachineOf(t, "260.1-1")
	kernel.put("proc/sys/kernel/osrelease", "6.17.9\n")
	if text := shown(kernel.apply(policy)); !strings.Contains(text, "madvise needs Linux 6.18") {
		t.Errorf("on Linux 6.17 it says\n%s", text)
	}
	kernel.unitAs("on Linux 6.17", untunedUnit)
	kernel.apply(strings.Replace(policy, "madvise", "disable", 1))
	kernel.unitAs("disable on Linux 6.17", untunedUnit+"; [Service]; MemoryTHP=disable")
}

// A service that does not run gets its drop-in.
func TestTuneStoppedUnit(t *testing.T) {
	m := unitMachine(t)
	m.must(m.bySystemd().Stop(t.Context(), "db.service"))
	reply := m.tune(moreFiles)
	if len(reply.Plan.Steps) != 1 || reply.Plan.Steps[0].Kind != service.KindSetting {
		t.Errorf("steps: %+v", reply.Plan.Steps)
	}
	_, err := m.do(api.Request{Verb: "tune rollback"})
	m.must(err)
	if _, err := os.Stat(filepath.Join(m.root, dropIn)); !os.IsNotExist(err) {
		t.Errorf("the drop-in: %v", err)
	}
}

// Killed after any step, settings of a service are undone by whoever comes next, after a boot too.
func TestTuneUnitKilled(t *testing.T) {
	tuneKilled(t, tuneTrial{
		machine: unitMachine, settings: []state.Tuned{moreFiles, lastToDie}, untuned: untunedUnit, tuned: tunedUnit,
		steps: 3, step: func(*machine, plan.Step) {}, boot: (*machine).bootUnit, held: (*machine).ofUnit,
	})
}

// A systemd that does not answer holds up no other part of a release, and the next release gives the rest back.
func TestReleaseOfATunedUnitWithoutSystemd(t *testing.T) {
	m := unitMachine(t)
	m.apply("host: {tune: {unit db.service: {LimitNOFILE: 65535}}}\ngroups:\n  app: {role: database, " + dbRule +
		", memory: {max: 1GiB}}\n")
	m.unitAs("tuned", "65535 65535; [Service]; LimitNOFILE=65535")
	m.pid1.Away(true)
	_, err := m.do(api.Request{Verb: "release", All: true})
	if api.CodeOf(err) != api.CodeFailed || !strings.Contains(fmt.Sprint(err), "systemd could not be asked") {
		t.Errorf("a release while systemd is away: %v", err)
	}
	m.reads("released", "/system.slice/db.service", "memory.max", "max")
	m.pid1.Away(false)
	m.release()
	m.unitAs("released", untunedUnit)
}
