package control

import (
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/inspect"
)

// A process that the kernel kills for want of memory after a change undoes it, and one that was killed before does not.
func TestGuardSeesAKill(t *testing.T) {
	const text = "groups:\n  app: {role: helper, match: [{exe: backup}], memory: {max: 1GiB}}\nguard: {for: 1h, " +
		"groups: {app: {oom_kills: 0}}}\n"
	m := newMachine(t, "252.39")
	p := m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(text)
	st, err := inspect.Status(t.Context(), m.Reconciler.Controller)
	m.must(err)
	if st.Trial == nil || st.Trial.Guard == nil || !st.Trial.Confirm.IsZero() {
		t.Fatalf("on trial: %+v", st.Trial)
	}
	// The next change settles it, and stands on trial itself.
	_, err = m.do(api.Request{Verb: "set", Assign: []string{"app:memory.max=64MiB"}})
	m.must(err)
	m.tended()
	const dir, file = "/bulkhead.app.slice", "memory.max"
	m.reads("set", dir, file, "67108864")
	if m.kernel.Charge(p.PID, cgroupfake.Anonymous, 128<<20) == nil {
		t.Fatal("the kernel kills nobody")
	}
	(*machineKernel)(m).End(p.PID)
	m.trials = nil // as when the watchdog was killed: another one knows what was before
	m.tended()
	m.reads("after the kill", dir, file, "1073741824")
	entries, err := m.Store.History()
	m.must(err)
	if last := entries[len(entries)-1]; last.Verb != "revert" ||
		last.Reason != "guard: group app: the kernel killed 1 of its processes for want of memory" {
		t.Errorf("the history says %+v", last)
	}
	m.apply(strings.Replace(text, "1GiB", "2GiB", 1))
	m.atTime("23 12:30")
	m.tended()
	m.atTime("23 13:00")
	m.watched()
	if st, err = inspect.Status(t.Context(), m.Reconciler.Controller); err != nil || st.Trial != nil {
		t.Errorf("when its time is over: %+v, %v", st, err)
	}
	m.reads("later", dir, file, "2147483648")
}
