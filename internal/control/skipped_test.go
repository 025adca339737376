package control

import (
	"strings"
	"testing"

	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/inspect"
	"bulkhead/internal/state"
)

// A window that does harm is undone by the guard until it closes; the next one counts again, and an apply makes this
// one count.
func TestGuardClosesAWindow(t *testing.T) {
	const text = "groups:\n  app: {role: helper, match: [{exe: backup}], memory: {max: 1GiB}}\n" +
		"schedules: [{name: night, when: \"0 22 * * *\", zone: UTC, for: 6h, set: {app: {memory: {max: 64MiB}}}}]\n" +
		"guard: {for: 1h, groups: {app: {oom_kills: 0}}}\n"
	const dir, file = "/bulkhead.app.slice", "memory.max"
	m := newMachine(t, "252.39")
	p := m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(text)
	look := func() {
		t.Helper()
		if _, err := m.full(); err != nil {
			t.Fatal(err)
		}
	}
	m.tended()
	m.atTime("23 13:00")
	m.watched() // the guard is content with the apply
	m.atTime("23 22:00")
	look()
	m.tended()
	m.reads("open", dir, file, "67108864")
	st, err := inspect.Status(t.Context(), m.Reconciler.Controller)
	if err != nil || st.Trial == nil || st.Trial.Verb != "schedule" || st.Trial.Guard == nil {
		t.Fatalf("nothing is on trial: %+v, %v", st.Trial, err)
	}
	if m.kernel.Charge(p.PID, cgroupfake.Anonymous, 128<<20) == nil {
		t.Fatal("the kernel kills nobody")
	}
	(*machineKernel)(m).End(p.PID)
	m.trials = nil
	m.tended()
	m.reads("undone", dir, file, "1073741824")
	look()
	m.reads("after a look", dir, file, "1073741824")
	st, err = inspect.Status(t.Context(), m.Reconciler.Controller)
	m.must(err)
	if st.Trial != nil || len(st.Schedules) != 1 ||
		!strings.Contains(st.Schedules[0].Skipped, "killed 1 of its processes") || st.Differs > 0 {
		t.Errorf("status: %+v, %+v", st.Trial, st.Schedules)
	}
	entries, err := m.Store.History()
	m.must(err)
	if last := entries[len(entries)-1]; last.Verb != "revert" ||
		!strings.Contains(last.Reason, "killed 1 of its processes") || !strings.Contains(last.What, "schedule") {
		t.Errorf("the history says %+v", last)
	}
	m.reopened(-1)
	m.atTime("24 03:00")
	look()
	m.reads("in the night, by another process", dir, file, "1073741824")
	m.atTime("24 12:00")
	look()
	m.reads("by day", dir, file, "1073741824")
	m.atTime("24 22:30")
	look()
	m.reads("the next night", dir, file, "67108864")
	m.atTime("25 05:00")
	look()
	if st, err := inspect.Status(t.Context(), m.Reconciler.Controller); err != nil || st.Trial != nil {
		t.Errorf("a window that closed is still on trial: %+v, %v", st.Trial, err)
	}
	m.reads("closed", dir, file, "1073741824")
	m.release()
}

// An apply gives a window that was undone another chance.
func TestApplyOpensASkippedWindow(t *testing.T) {
	const text = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n" +
		"schedules: [{name: night, when: \"0 22 * * *\", zone: UTC, for: 6h, set: {jobs: {tasks: 20}}}]\n"
	m := newMachine(t, "252.39")
	m.atTime("23 12:00")
	m.apply(text)
	m.atTime("23 22:00")
	lock, err := m.Lock(t.Context(), "test", "test")
	m.must(err)
	m.must(m.Store.Save(state.DocSkipped, []state.Skipped{{Schedule: "night", Revision: 1,
		Until: m.Clock().Add(6 * 3600e9), Why: "it did harm"}}))
	lock.Release()
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	m.tasks("skipped", "50")
	if reply := m.apply(text); !reply.Changed {
		t.Errorf("the same policy again changes nothing: %+v", reply)
	}
	m.tasks("applied again", "20")
	m.release()
}
