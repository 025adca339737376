package control

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/state"
)

// overrides are those that are kept, whether their end has come or not.
func (m *machine) overrides() (all []string) {
	m.t.Helper()
	d, err := state.Load(m.Store, state.DocOverrides)
	m.must(err)
	for _, o := range d.Overrides {
		all = append(all, o.Text)
	}
	return all
}

// What has ended stays so when the clock is set back.
func TestEndedStaysEnded(t *testing.T) {
	m := newMachine(t, "252.39")
	other := m.start("/usr/bin/report all")
	home, now := m.where(other), time.Now()
	m.Clock = func() time.Time { return now }
	m.apply(fifty)
	for _, text := range []string{"jobs:tasks=70", "jobs:cpu.limit=1"} {
		_, err := m.do(api.Request{Verb: "set", Assign: []string{text}, For: time.Hour})
		m.must(err)
	}
	_, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:cpu.weight=200"}})
	m.must(err)
	_, err = m.do(api.Request{Verb: "move", Group: "jobs", PIDs: []int{other.PID}, For: time.Hour})
	m.must(err)
	now = now.Add(61 * time.Minute)
	_, err = m.full()
	m.must(err)
	now = now.Add(-31 * time.Minute)
	for range 2 {
		_, err = m.full()
		m.must(err)
		m.tasks("with the clock set back", "50")
		m.reads("with the clock set back", jobsDir, "cpu.max", "max 100000")
	}
	if at := m.where(other); at != home {
		t.Errorf("the process is in %s, want %s", at, home)
	}
	if all := m.overrides(); len(all) != 1 || all[0] != "jobs:cpu.weight=200" {
		t.Errorf("kept: %q", all)
	}
}

// The end of one that changes nothing is forgotten without an entry in the history.
func TestEndThatChangesNothing(t *testing.T) {
	m := newMachine(t, "252.39")
	m.atTime("23 10:00")
	m.apply(fifty)
	_, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=50"}, For: time.Hour})
	m.must(err)
	before := m.last().N
	m.atTime("23 11:01")
	_, err = m.full()
	m.must(err)
	if all := m.overrides(); len(all) > 0 || m.last().N != before {
		t.Errorf("kept: %q, and the history says %+v", all, m.last())
	}
}

// pass is a look of the agent's loop, which does not wait long.
func (m *machine) pass() (took time.Duration, err error) {
	m.t.Helper()
	m.refresh()
	procs, err := m.Host.Proc.Processes(procfs.Options{})
	m.must(err)
	begun := time.Now()
	_, err = m.Look(reconcile.Impatient(m.t.Context(), m.Reconciler), reconcile.LookOptions{Processes: procs})
	return time.Since(begun), err
}

// Where memory has to fall for the end of an override, no look of the agent waits long for that, and later ones go on.
// The history has one entry, once it is done.
func TestAgentWaitsForMemoryInSeveralLooks(t *testing.T) {
	m := newMachine(t, "252.39")
	job := m.start("/usr/bin/backup all")
	m.atTime("23 10:00")
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], memory: {max: 64MiB, swap: 512MiB}, tasks: 50}\n")
	for _, text := range []string{"jobs:memory.max=1GiB", "jobs:tasks=70"} {
		_, err := m.do(api.Request{Verb: "set", Assign: []string{text}, For: time.Hour})
		m.must(err)
	}
	m.must(m.kernel.Charge(job.PID, cgroupfake.Anonymous, 128<<20))
	m.atTime("23 11:01")
	before := m.last().N
	for range 2 {
		took, err := m.pass()
		if took > 4*time.Second || err == nil || !strings.Contains(err.Error(), "has not fallen to 64 MiB yet") {
			t.Fatalf("a look takes %s: %v", took, err)
		}
		m.reads("meanwhile", jobsDir, "memory.max", gib)
		m.reads("meanwhile", jobsDir, "memory.high", "max")
		lock, err := m.Store.Lock("test", "test")
		m.must(err)
		lock.Release()
		if took, err := m.pass(); took > time.Second || err != nil {
			t.Errorf("the look after it takes %s: %v", took, err)
		}
		time.Sleep(2500 * time.Millisecond) // others do what they wait for
	}
	if now := m.last(); now.N != before || len(m.overrides()) != 2 {
		t.Errorf("the history says %+v, and overrides are kept: %q", now, m.overrides())
	}
	(*machineKernel)(m).End(job.PID)
	_, err := m.pass()
	m.must(err)
	m.reads("once it has fallen", jobsDir, "memory.max", "67108864")
	m.tasks("once it has fallen", "50")
	if e := m.last(); e.Verb != "end" || e.N != before+1 || !strings.Contains(e.What, "memory.max=1GiB") ||
		len(m.overrides()) > 0 {
		t.Errorf("the history says %+v, and overrides are kept: %q", e, m.overrides())
	}
}

// A window that lowers memory is put in force under the guard, also where several looks wait for that. One in between,
// which has nothing to do, does not say that it began.
func TestWindowThatWaitsForMemoryIsGuarded(t *testing.T) {
	m := newMachine(t, "252.39")
	job := m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], memory: {max: 1GiB, swap: 512MiB}}\n" +
		"schedules: [{name: night, when: \"0 22 * * *\", zone: UTC, for: 6h, set: {jobs: {memory: {max: 64MiB}}}}]\n" +
		"guard: {for: 1h, groups: {jobs: {oom_kills: 0}}}\n")
	m.tended()
	m.atTime("23 13:00")
	m.watched()
	_, err := m.full()
	m.must(err)
	m.must(m.kernel.Charge(job.PID, cgroupfake.Anonymous, 128<<20))
	before := m.last().N
	m.atTime("23 22:00")
	if _, err := m.pass(); err == nil || !strings.Contains(err.Error(), "has not fallen to 64 MiB yet") {
		t.Fatalf("the first look says %v", err)
	}
	m.atTime("23 22:01")
	if _, _ = m.pass(); m.last().N != before { // it says that the group is left out
		t.Errorf("after a look in between the history says %+v", m.last())
	}
	time.Sleep(2500 * time.Millisecond)
	(*machineKernel)(m).End(job.PID)
	_, err = m.pass()
	m.must(err)
	m.reads("once it has fallen", jobsDir, "memory.max", "67108864")
	if st, err := inspect.Status(t.Context(), m.Reconciler.Controller); err != nil || st.Trial == nil ||
		st.Trial.Verb != "schedule" || st.Trial.Guard == nil {
		t.Errorf("on trial is %+v, %v", st.Trial, err)
	}
}
