package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/inspect"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
	"bulkhead/internal/verify"
)

// Records of units without a file that are gone go, too.
func TestRecordsOfUnitsThatAreGone(t *testing.T) {
	m := newMachine(t, "")
	m.service("db.service", "/usr/sbin/mysqld")
	m.must(m.bySystemd().StartTransient(t.Context(),
		systemd.Transient{Name: "run-r1.service", Slice: "system.slice", Exec: []string{"/bin/sleep", "infinity"}}))
	pid := m.unit("run-r1.service").MainPID
	m.run(pid, 1, "/usr/bin/report all")
	text := appAndJobs + "  reports: {role: helper, match: [{exe: report}], tasks: 30}\n"
	m.apply(text)
	units := func() []string {
		kept := map[string]layout.Kept{}
		_, err := m.Store.Load(state.DocUnits, &kept)
		m.must(err)
		var names []string
		for name := range kept {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	if got := units(); !slices.Equal(got, []string{"db.service", "run-r1.service"}) {
		t.Errorf("records of %v", got)
	}
	m.must(m.bySystemd().Stop(t.Context(), "run-r1.service"))
	m.must(m.bySystemd().Stop(t.Context(), "db.service"))
	if reply, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=40"}}); err != nil {
		t.Fatal(err, reply)
	}
	if got := units(); !slices.Equal(got, []string{"db.service"}) { // that one starts again, and has its limits then
		t.Errorf("records of %v are left", got)
	}
	m.release()
	if got := units(); len(got) > 0 {
		t.Errorf("after release records of %v", got)
	}
	m.leftNothing()
}

// Release of the last group that an anchor was for ends it, without an agent.
func TestAnchorGoesWithItsGroup(t *testing.T) {
	m := newMachine(t, "")
	m.service("db.service", "/usr/sbin/mysqld")
	m.start("/usr/bin/backup all")
	m.apply(strings.Replace(appAndJobs, "match: [{exe: mysqld}]", "adopt: next-start, match: [{exe: mysqld}]", 1))
	anchor := "/system.slice/system-bulkhead.slice"
	if there, err := m.kernel.Exists(at(anchor)); err != nil || !there {
		t.Fatalf("no anchor: %v", err)
	}
	m.release("jobs")
	if there, _ := m.kernel.Exists(at(anchor)); !there {
		t.Error("the anchor went with another group")
	}
	m.release("app")
	if there, _ := m.kernel.Exists(at(anchor)); there {
		t.Error("the anchor is left")
	}
	if u := m.unit("system-bulkhead.slice"); u.Active() {
		t.Errorf("it is %s", u.ActiveState)
	}
}

// A slice that the policy names and that nobody has made goes again; one with a file, or that ran already, stays.
func TestSliceThatWeMade(t *testing.T) {
	text := "groups:\n  h: {role: helper, slice: site-helper.slice, match: [{exe: backup}], tasks: 50}\n"
	for name, c := range map[string]struct {
		file, gone bool
		how        func(m *machine)
	}{
		"released":         {false, true, func(m *machine) { m.release() }},
		"released by name": {false, true, func(m *machine) { m.release("h") }},
		"no such group any more": {false, true,
			func(m *machine) { m.apply("groups:\n  other: {role: helper, match: [{exe: nothing}], tasks: 9}\n") }},
		"an administrator's": {true, false, func(m *machine) { m.release() }},
		"an administrator's group": {true, false,
			func(m *machine) { m.apply("groups:\n  other: {role: helper, match: [{exe: nothing}], tasks: 9}\n") }},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "")
			if c.file {
				m.file("site-helper.slice", "[Slice]\nTasksMax=900\n")
			}
			job := m.start("/usr/bin/backup all")
			m.apply(text)
			m.reads("applied", "/site.slice/site-helper.slice", "pids.max", "50")
			c.how(m)
			there, err := m.kernel.Exists(at("/site.slice/site-helper.slice"))
			if err != nil || there == c.gone {
				t.Errorf("there %v, %v", there, err)
			}
			if !there && strings.Contains(m.state(), "site-helper") {
				t.Errorf("left behind\n%s", m.state())
			}
			if there {
				m.reads("given back", "/site.slice/site-helper.slice", "pids.max", "900")
			}
			if at := m.where(job); at != "/" || !m.kernel.Alive(job) {
				t.Errorf("the job is in %s", at)
			}
		})
	}
}

// Systemd reads its files once for a whole release, and on 257 once more for the traces of that.
func TestReleaseReloadsOnce(t *testing.T) {
	for version, want := range map[string]int{"252.39": 1, "257.13": 2} {
		m := newMachine(t, version)
		for i := range 4 {
			m.service(fmt.Sprintf("db%d.service", i), "/usr/sbin/mysqld", "MemoryMax=2147483648")
		}
		m.start("/usr/bin/backup all")
		before := m.state()
		m.apply(strings.Replace(appAndJobs, "match: [{exe: mysqld}]", "adopt: next-start, match: [{exe: mysqld}]", 1))
		calls := len(m.pid1.Calls())
		if reply := m.release(); len(reply.Notes) > 0 {
			t.Errorf("%s: notes %q", version, reply.Notes)
		}
		reloads := 0
		for _, call := range m.pid1.Calls()[calls:] {
			if call.Method == "Reload" {
				reloads++
			}
		}
		if reloads != want {
			t.Errorf("%s: %d reloads, want %d", version, reloads, want)
		}
		if after := m.state(); after != before {
			t.Errorf("%s: after release:\n%s", version, differs(after, before))
		}
	}
}

// A drop-in that wins over a property at each reload is named, in plan, status and verify.
func TestDropInThatSortsLater(t *testing.T) {
	m := newMachine(t, "")
	m.service("db.service", "/usr/sbin/mysqld")
	m.start("/usr/bin/backup all")
	m.file("db.service.d/override.conf", "[Service]\nMemoryMax=3G\nNice=5\n")
	m.file("db.service.d/10-early.conf", "[Service]\nMemoryMax=4G\n")
	reply := m.apply(appAndJobs)
	words := []string{"/etc/systemd/system/db.service.d/override.conf", "db.service", "MemoryMax=3G",
		"sorts before 50-MemoryMax.conf"}
	if !said(reply.Plan.Notes, words...) || said(reply.Plan.Notes, "10-early.conf") {
		t.Errorf("apply says %+v", reply.Plan.Notes)
	}
	if st, err := inspect.Status(t.Context(), m.Reconciler.Controller); err != nil || !said(st.Notes, words...) {
		t.Errorf("status says %+v, %v", st.Notes, err)
	}
	all, err := inspect.Verify(t.Context(), m.Reconciler.Controller, nil)
	m.must(err)
	if !slices.ContainsFunc(all, func(v verify.Reading) bool {
		return v.OK &&
			strings.Contains(v.Reason, "override.conf")
	}) {
		t.Errorf("verify says %+v", all)
	}
	m.must(m.bySystemd().Reload(t.Context()))
	m.reads("reloaded", dbDir, "memory.max", "3221225472")
	if done, err := m.full(); err != nil || done.Repaired != 1 {
		t.Errorf("the look: %+v, %v", done, err)
	}
	m.reads("looked", dbDir, "memory.max", "1073741824")
}

// A unit's own smaller memory limit does not come back below what it holds.
func TestOwnMemoryLimitIsHeld(t *testing.T) {
	for name, c := range map[string]struct {
		kind  cgroupfake.Kind
		code  api.Code
		limit string
		words []string
	}{
		"that can be reclaimed": {cgroupfake.File, 0, "314572800", []string{"db.service", "in steps"}},
		"that cannot": {cgroupfake.Anonymous, api.CodeFailed, "1073741824",
			[]string{"db.service", "MemoryMax=300 MiB", "release again"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "")
			db := m.service("db.service", "/usr/sbin/mysqld", "MemoryMax=300M")
			m.start("/usr/bin/backup all")
			m.apply(appAndJobs)
			m.must(m.kernel.Charge(db.PID, c.kind, 600<<20))
			reply, err := m.do(api.Request{Verb: "release", All: true})
			if api.CodeOf(err) != c.code {
				t.Errorf("release: %v", err)
			}
			m.reads("released", dbDir, "memory.max", c.limit)
			if !said(reply.Plan.Notes, c.words...) {
				t.Errorf("it says %+v", reply.Plan.Notes)
			}
			if !m.kernel.Alive(db) {
				t.Error("the database was killed")
			}
			if c.code == 0 {
				m.leftNothing()
				return
			}
			// By force, and in a policy that asks for less, too.
			if _, err := m.do(api.Request{Verb: "apply",
				Sources: m.policy(strings.Replace(appAndJobs, "memory: {max: 1GiB}", "tasks: 500",
					1))}); api.CodeOf(err) != api.CodeRefused {
				t.Errorf("a policy without the limit: %v", err)
			}
			if _, err := m.do(api.Request{Verb: "release", All: true, Force: true, Reason: "test"}); err != nil {
				t.Errorf("by force: %v", err)
			}
			m.leftNothing()
		})
	}
}

// A process that a unit keeps out of its group is not told as one that the group's limits hold.
func TestKeptInAUnitIsNotHeld(t *testing.T) {
	m := newMachine(t, "")
	m.service("cron.service", "/usr/sbin/cron")
	backup := m.start("/usr/bin/backup all")
	(*machineKernel)(m).Move(backup.PID, "/system.slice/cron.service")
	m.apply(jobs)
	c := m.Reconciler.Controller
	readings, err := inspect.Verify(t.Context(), c, nil)
	m.must(err)
	i := slices.IndexFunc(readings, func(r verify.Reading) bool { return r.Key == verify.KeyMembers })
	if i < 0 || !readings[i].Fault() || !strings.Contains(readings[i].Reason, "kept in cron.service") {
		t.Errorf("verify: %+v", readings)
	}
	e, err := inspect.Explain(t.Context(), c, backup.PID, inspect.ExplainOptions{})
	m.must(err)
	if e.Group != "jobs" || e.Placed || !strings.Contains(e.Reason, "a part of cron.service") {
		t.Errorf("explain: %+v", e)
	}
	status, err := inspect.Status(t.Context(), c)
	m.must(err)
	if got := status.Groups[0].Members; len(got) != 1 || got[0].Placed || got[0].Kept != "cron.service" {
		t.Errorf("status: %+v", got)
	}
	if done, err := m.full(); err != nil || done.Repaired > 0 || m.where(backup) != "/system.slice/cron.service" {
		t.Errorf("a look: %+v, %v, it is in %s", done, err, m.where(backup))
	}
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50, from_unit: true}\n")
	if readings, err = inspect.Verify(t.Context(), c, nil); err != nil ||
		slices.ContainsFunc(readings, func(r verify.Reading) bool { return r.Fault() }) {
		t.Errorf("verify with from_unit: %+v, %v", readings, err)
	}
}
