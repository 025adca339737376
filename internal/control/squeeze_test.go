package control

import (
	"errors"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// What is lowered for a database is in force until it is given back, by name or by the end of its time; what a person
// has set stays, and the history has the lines that it is told and no others.
func TestSqueeze(t *testing.T) {
	m := newMachine(t, "252.39")
	m.atTime("23 10:00")
	m.start("/usr/bin/backup all")
	m.apply("groups: {jobs: {role: helper, match: [{exe: backup}], cpu: {limit: 2}}}\n")
	const slice = "/bulkhead.jobs.slice"
	entries := func() int {
		all, err := m.Store.History()
		m.must(err)
		return len(all)
	}
	want := func(text string) []state.Override {
		return []state.Override{{Group: "jobs", Key: policy.KeyCPULimit, Text: "jobs:cpu.limit=" + text,
			By: state.BySLO, At: m.Now(), Ends: m.Now().Add(time.Minute)}}
	}
	squeeze := func(want []state.Override, tell ...journal.Entry) {
		t.Helper()
		m.refresh()
		m.must(Squeeze(t.Context(), m.Controller, time.Second, want, tell...))
	}
	overrides := func() []state.Override {
		docs, err := state.Load(m.Store, state.DocOverrides)
		m.must(err)
		return docs.Overrides
	}
	before := entries()
	busy, err := m.LockWithin(t.Context(), 0, "apply", "somebody")
	m.must(err)
	if err := Squeeze(t.Context(), m.Controller, 0, nil); err != nil {
		t.Errorf("nothing is there and nothing is wanted, and it wants the lock: %v", err)
	}
	busy.Release()
	squeeze(want("1.4"))
	busy, err = m.LockWithin(t.Context(), 0, "apply", "somebody")
	m.must(err)
	if err := Squeeze(t.Context(), m.Controller, 0, nil); err == nil {
		t.Error("what is lowered is given back without the lock")
	}
	busy.Release()
	m.reads("lowered", slice, "cpu.max", "140000 100000")
	first := overrides()[0]
	later := m.Now().Add(30 * time.Second)
	m.Clock = func() time.Time { return later }
	squeeze(want("1.4"))
	if now := overrides()[0]; now.ID != first.ID || !now.Ends.After(first.Ends) || !now.At.Equal(first.At) {
		t.Errorf("renewed: %+v, before %+v", now, first)
	}
	squeeze(want("0.98"))
	m.reads("lowered again", slice, "cpu.max", "98000 100000")
	if n := entries(); n != before {
		t.Errorf("%d lines of history, %d before", n, before)
	}
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	m.reads("after a look", slice, "cpu.max", "98000 100000")
	squeeze(nil, journal.Entry{Time: m.Now(), Verb: "slo", Text: "over", Outcome: journal.Committed})
	m.reads("given back", slice, "cpu.max", "200000 100000")
	if e := m.last(); entries() != before+1 || e.Verb != "slo" || len(overrides()) != 0 {
		t.Errorf("the history ends with %+v, overrides %+v", e, overrides())
	}

	// The time of what nobody renews is over: whoever comes next gives it back.
	squeeze(want("1"))
	m.atTime("23 10:05")
	squeeze(nil)
	m.reads("its time is over", slice, "cpu.max", "200000 100000")

	// While a change is on trial nothing is lowered, and what is lowered may be given back.
	squeeze(want("1"))
	if _, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=100"},
		ConfirmWithin: time.Minute}); err != nil {
		t.Fatal(err)
	}
	var onTrial *OnTrialError
	if err := Squeeze(t.Context(), m.Controller, 0, want("0.5")); !errors.As(err, &onTrial) {
		t.Errorf("it is lowered more while a change is on trial: %v", err)
	}
	m.reads("on trial", slice, "cpu.max", "100000 100000")
	squeeze(nil)
	m.reads("given back on trial", slice, "cpu.max", "200000 100000")
	if _, err := m.do(api.Request{Verb: "confirm"}); err != nil {
		t.Fatal(err)
	}

	if _, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:cpu.limit=1.5"}}); err != nil {
		t.Fatal(err)
	}
	squeeze(want("0.5"))
	m.reads("a person has set it", slice, "cpu.max", "150000 100000")
	squeeze(nil)
	m.reads("a person has set it", slice, "cpu.max", "150000 100000")
	m.release()
	squeeze(want("0.5"))
	if _, err := m.kernel.Read(at(slice).File("cpu.max")); err == nil {
		t.Error("a group that is released is lowered")
	}
}
