package control

import (
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
)

// What is lifted stays so until somebody asks for it again, and history and status say why.
func TestHighIsLifted(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	const text = "groups:\n  jobs: {role: helper, match: [{exe: backup}], memory: {high: 256MiB, max: 1GiB}}\n"
	m.apply(text)
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	m.reads("applied", jobsSlice, "memory.high", "268435456")
	m.must(m.LiftHigh(t.Context(), "jobs", "it got nowhere"))
	m.reads("lifted", jobsSlice, "memory.high", "max")
	m.reads("lifted", jobsSlice, "memory.max", "1073741824")
	for range 2 {
		if done, err := m.full(); err != nil || done.Repaired > 0 {
			t.Fatalf("a look: %+v, %v", done, err)
		}
	}
	m.reads("after two looks", jobsSlice, "memory.high", "max")
	m.must(m.LiftHigh(t.Context(), "jobs", "it got nowhere")) // there is nothing left to lift
	st, err := inspect.Status(t.Context(), m.Reconciler.Controller)
	if err != nil || len(st.Lifted) != 1 || st.Lifted[0].High != "256MiB" ||
		!strings.Contains(st.Lifted[0].String(), "it got nowhere") || st.Differs != 0 || len(st.Conflicts) > 0 {
		t.Errorf("status: %+v, differs %d, %v, %v", st.Lifted, st.Differs, st.Conflicts, err)
	}
	h, err := m.Store.History()
	if last := h[len(h)-1]; err != nil || last.Verb != "lift" || last.By != "agent" ||
		!strings.Contains(last.Reason, "256MiB") || len(last.Changes) == 0 {
		t.Errorf("history: %+v, %v", last, err)
	}
	if _, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:memory.high=300MiB"}}); err != nil {
		t.Fatal(err)
	}
	m.reads("set", jobsSlice, "memory.high", "314572800")
	if _, err := m.do(api.Request{Verb: "unset", Assign: []string{"jobs:memory.high"}}); err != nil {
		t.Fatal(err)
	}
	m.reads("unset", jobsSlice, "memory.high", "max")
	m.apply(text)
	m.reads("applied again", jobsSlice, "memory.high", "268435456")
	if st, err := inspect.Status(t.Context(), m.Reconciler.Controller); err != nil || len(st.Lifted) > 0 {
		t.Errorf("status after the apply: %+v, %v", st.Lifted, err)
	}
}
