package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/systemdfake"
)

// said says whether one of the notes holds all of the words.
func said(notes []plan.Note, words ...string) bool {
	return slices.ContainsFunc(notes, func(n plan.Note) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(n.Text, w) })
	})
}

// file writes a unit file of an administrator's.
func (m *machine) file(name, text string) {
	m.t.Helper()
	at := filepath.Join(m.pid1.Root(), "etc/systemd/system", name)
	m.must(os.MkdirAll(filepath.Dir(at), 0o755))
	m.must(os.WriteFile(at, []byte(text), 0o644))
	m.must(m.bySystemd().Reload(m.t.Context()))
}

// mask masks a unit, and gives what unmasks it.
func (m *machine) mask(unit string) (unmask func()) {
	m.t.Helper()
	at := filepath.Join(m.pid1.Root(), "etc/systemd/system", unit)
	text, err := os.ReadFile(at)
	if err == nil {
		m.must(os.Remove(at))
	}
	m.must(os.Symlink("/dev/null", at))
	m.must(m.bySystemd().Reload(m.t.Context()))
	return func() {
		m.must(os.Remove(at))
		if text != nil {
			m.must(os.WriteFile(at, text, 0o644))
		}
		m.must(m.bySystemd().Reload(m.t.Context()))
	}
}

const (
	appAndJobs = "groups:\n  app: {role: database, match: [{exe: mysqld}], memory: {max: 1GiB}}\n  jobs: {role: " +
		"helper, match: [{exe: backup}], tasks: 50}\n"
	dbDir   = "/system.slice/db.service"
	jobsDir = "/bulkhead.jobs.slice"
)

// What systemd does not do ends a verb with an error that says what to do, and nothing of it is half done.
func TestBadInputFromSystemd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(m *machine)
		// words of the error, and of its hint
		text, hint string
	}{
		"systemd does not answer": {func(m *machine) {
			m.Disconnect()
			m.pid1.Hang(true)
		}, "does not answer", "systemctl status"},
		"systemd is away": {func(m *machine) { m.pid1.Away(true) }, "systemd", "systemctl status"},
		"a job times out": {func(m *machine) { m.pid1.Stall("bulkhead.jobs.slice", true) }, "timeout",
			"list-jobs"},
		"a masked service": {func(m *machine) { m.mask("db.service") }, "masked", "systemctl unmask"},
		"a masked slice":   {func(m *machine) { m.mask("bulkhead.jobs.slice") }, "masked", "unmask"},
		"an unknown property": {func(m *machine) { m.refuse("SetUnitProperties", "no such thing") }, "no such thing",
			""},
		"a container's rights": {func(m *machine) {
			m.pid1.Intercept(func(systemdfake.Call) error { return systemdfake.ErrDenied })
		}, "not permitted", "run as root"},
		"a slice of our name": {func(m *machine) {
			m.file("bulkhead.jobs.slice", "[Slice]\nTasksMax=7\n")
			m.must(m.bySystemd().Start(m.t.Context(), "bulkhead.jobs.slice"))
		}, "bulkhead did not make it", "give the group another name"},
		"a bad setting in file": {func(m *machine) { m.file("db.service", "[Service]\nTasksMax=321\n") }, "bad setting",
			"systemd-analyze"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "")
			m.service("db.service", "/usr/sbin/mysqld", "TasksMax=321")
			job := m.start("/usr/bin/backup all")
			c.spoil(m)
			before := m.state()
			_, err := m.do(api.Request{Verb: "apply", Sources: m.policy(appAndJobs)})
			if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(api.HintOf(err), c.hint) {
				t.Errorf("error %v\nhint %q", err, api.HintOf(err))
			}
			if err != nil && strings.Contains(err.Error(), "undone but for") {
				t.Errorf("not wholly undone: %v", err)
			}
			if after := m.state(); after != before {
				t.Errorf("not as before:\n%s", differs(after, before))
			}
			if at := m.where(job); at != "/" {
				t.Errorf("the job is in %s", at)
			}
			if _, s, err := m.Recorded(); err != nil || s.Applied != nil {
				t.Errorf("it counts as applied: %v", err)
			}
		})
	}
}

// With a systemd that does not answer a release lifts what the kernel holds, and says what is left.
func TestReleaseWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.service("db.service", "/usr/sbin/mysqld")
	m.start("/usr/bin/backup all")
	m.apply(appAndJobs)
	m.pid1.Hang(true)
	m.pid1.Drop()
	reply, err := m.do(api.Request{Verb: "release", All: true})
	if api.CodeOf(err) != api.CodeFailed || !strings.Contains(fmt.Sprint(err), "systemd could not be asked") {
		t.Errorf("%v, %+v", err, reply)
	}
	m.reads("released", dbDir, "memory.max", "max")
	m.reads("released", jobsDir, "pids.max", "max")
	m.pid1.Hang(false)
	m.release()
	m.leftNothing()
}

// A unit may have any name that systemd takes, and a group any that the policy takes.
func TestOddNames(t *testing.T) {
	for _, unit := range []string{`a\x2db@c:d_e.service`, "a-b-c.service", "0.service", "_.service"} {
		m := newMachine(t, "")
		if strings.Contains(unit, "@") {
			m.file(`a\x2db@.service`, "[Service]\nExecStart=/bin/sleep infinity\n")
		}
		m.service(unit, "/usr/sbin/mysqld", "TasksMax=99")
		m.start("/usr/bin/backup all")
		before := m.state()
		text := strings.NewReplacer("app:", `"a-b.c_d":`, "jobs:", `"0-9":`).Replace(appAndJobs)
		m.apply(text)
		m.reads(unit, "/system.slice/"+unit, "memory.max", "1073741824")
		m.reads(unit, `/bulkhead.0\x2d9.slice`, "pids.max", "50")
		if again := m.apply(text); again.Changed {
			t.Errorf("%s: a second apply changes %+v", unit, again.Plan.Steps)
		}
		m.release()
		if after := m.state(); after != before {
			t.Errorf("%s: after release:\n%s", unit, differs(after, before))
		}
	}
}

// A slice of an administrator's that the policy does not name is left as it is, with what runs in it where it is.
func TestSliceThatNobodyNamed(t *testing.T) {
	m := newMachine(t, "")
	m.file("site.slice", "[Slice]\nMemoryMax=3221225472\n")
	m.file("db.service", "[Service]\nExecStart=/bin/sleep infinity\nSlice=site.slice\n")
	m.must(m.bySystemd().Start(t.Context(), "db.service"))
	m.run(m.unit("db.service").MainPID, 1, "/usr/sbin/mysqld")
	m.start("/usr/bin/backup all")
	before := m.state()
	m.apply(appAndJobs)
	m.reads("applied", "/site.slice", "memory.max", "3221225472")
	m.reads("applied", "/site.slice/db.service", "memory.max", "1073741824")
	m.release()
	if after := m.state(); after != before {
		t.Errorf("after release:\n%s", differs(after, before))
	}
}

// A property that this release does not have goes by the kernel's file.
func TestPropertyOfANewerRelease(t *testing.T) {
	m := newMachine(t, "239")
	m.service("db.service", "/usr/sbin/mysqld")
	m.start("/usr/bin/backup all")
	before := m.state()
	reply := m.apply(strings.Replace(appAndJobs, "max: 1GiB", "max: 1GiB, min: 64MiB", 1))
	m.reads("applied", dbDir, "memory.max", "1073741824")
	m.reads("applied", dbDir, "memory.min", "67108864")
	for _, s := range reply.Plan.Steps {
		if s.File().Name == "memory.min" && s.Unit != "" {
			t.Errorf("by a property that came with 240: %+v", s)
		}
	}
	m.release()
	if after := m.state(); after != before {
		t.Errorf("after release:\n%s", differs(after, before))
	}
}

// The control groups cannot be written: an error that says so, and nothing is changed.
func TestReadOnlyTree(t *testing.T) {
	m := newMachine(t, "")
	m.start("/usr/bin/backup all")
	before := m.state()
	m.kernel.Intercept(func(o cgroupfake.Operation) error {
		if !m.byPID1 && (o.Op == "write" || o.Op == "mkdir") { // as below ProtectControlGroups=yes
			return syscall.EROFS
		}
		return m.notice(o)
	})
	_, err := m.do(api.Request{Verb: "apply",
		Sources: m.policy("groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n")})
	if err == nil || !strings.Contains(api.HintOf(err), "read-only") {
		t.Errorf("%v; hint %q", err, api.HintOf(err))
	}
	m.kernel.Intercept(m.notice)
	if after := m.state(); after != before {
		t.Errorf("not as before:\n%s", differs(after, before))
	}
}

// The last member ends: the group stays in force. Its keeper is killed: it is there again, and nobody else ended.
func TestLastMemberAndKeeper(t *testing.T) {
	m := newMachine(t, "")
	job, more := m.start("/usr/bin/backup all"), m.start("/usr/bin/backup more")
	m.apply(jobs)
	members := jobsDir + "/bulkhead.jobs.service/members"
	keeper := m.unit("bulkhead.jobs.service").MainPID
	m.pid1.Kill(keeper)
	if !m.kernel.Alive(job) {
		t.Fatal("a killed keeper cost a member its life")
	}
	if _, err := m.full(); err != nil {
		t.Errorf("a look: %v", err)
	}
	if u := m.unit("bulkhead.jobs.service"); !u.Active() || u.MainPID == keeper {
		t.Errorf("the keeper is %s", u.ActiveState)
	}
	for _, p := range []int{job.PID, more.PID} {
		if at := m.kernel.Membership(p)[procfs.UnifiedID]; at != members {
			t.Errorf("a member is in %s", at)
		}
		(*machineKernel)(m).End(p)
	}
	if done, err := m.full(); err != nil || done.Repaired > 0 {
		t.Errorf("without a member: %+v, %v", done, err)
	}
	m.reads("without a member", jobsDir, "pids.max", "50")
	next := m.start("/usr/bin/backup next")
	if _, err := m.full(); err != nil || m.where(next) != members {
		t.Errorf("the next one is in %s, %v", m.where(next), err)
	}
	m.release()
	m.leftNothing()
}

// A unit that systemd refuses costs its own group, and no other.
func TestOneBadUnitHoldsUpNobody(t *testing.T) {
	m := newMachine(t, "")
	m.service("db.service", "/usr/sbin/mysqld")
	m.start("/usr/bin/backup all")
	m.apply(appAndJobs)
	unmask := m.mask("db.service")
	m.must(m.kernel.Write(at(jobsDir).File("pids.max"), "77"))
	_, err := m.full()
	if err == nil || !strings.Contains(err.Error(), `group "app" is left out, the others go on`) ||
		!strings.Contains(err.Error(), "masked") {
		t.Errorf("the look says %v", err)
	}
	m.reads("the other group", jobsDir, "pids.max", "50")
	calls := len(m.pid1.Calls())
	if _, err := m.full(); err == nil || !strings.Contains(err.Error(), "masked") {
		t.Errorf("the next look says %v", err)
	}
	for _, call := range m.pid1.Calls()[calls:] {
		if call.Method == "SetUnitProperties" {
			t.Error("it is tried again at once")
		}
	}
	reply, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=40"}})
	if err != nil || !strings.Contains(strings.Join(reply.Notes, " "), `"app" is left out`) {
		t.Errorf("set of the other group: %v, %+v", err, reply)
	}
	m.reads("set", jobsDir, "pids.max", "40")
	if _, err := m.do(api.Request{Verb: "set", Assign: []string{"app:memory.max=900MiB"}}); !errors.Is(err,
		systemd.ErrMasked) {
		t.Errorf("set of its own group: %v", err)
	}
	unmask()
	m.Reconciler = reconcile.New(m.Controller) // as after five minutes
	if _, err := m.full(); err != nil {
		t.Errorf("unmasked: %v", err)
	}
	m.reads("unmasked", dbDir, "memory.max", "1073741824")
}
