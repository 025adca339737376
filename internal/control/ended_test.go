package control

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/reconcile"
)

// last is the newest entry of the history.
func (m *machine) last() journal.Entry {
	m.t.Helper()
	entries, err := m.Store.History()
	m.must(err)
	return entries[len(entries)-1]
}

// The end of an override is called by its name, with who set it and why, and is no value that somebody else changed.
func TestEndOfAnOverrideHasItsName(t *testing.T) {
	m := newMachine(t, "252.39")
	m.atTime("23 10:00")
	m.apply("groups: {jobs: {match: [{exe: backup}], tasks: 50}}\n")
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"tasks=70", "cpu.limit=1"} { // one that the policy has too, and one that it has not
		reply, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:" + key}, For: time.Hour,
			Reason: "month end"})
		if err != nil || !reply.Changed {
			t.Fatal(reply, err)
		}
	}
	m.atTime("23 11:01")
	if done := m.quick(); done.Repaired != 0 {
		t.Errorf("the end of overrides counts as %d values put right", done.Repaired)
	}
	m.tasks("after its time", "50")
	e := m.last()
	if e.Verb != "end" || e.What != "jobs:tasks=70 jobs:cpu.limit=1" || e.By != "agent" ||
		!strings.Contains(e.Reason, "override 1, set 2026-11-23 10:00:00 by test: month end; override 2, ") {
		t.Errorf("the history says %s %q by %s: %q", e.Verb, e.What, e.By, e.Reason)
	}
	m.must(m.kernel.Write(at("/bulkhead.jobs.slice").File("pids.max"), "7"))
	if done, err := m.full(); err != nil || done.Repaired != 1 || m.last().Verb != "look" {
		t.Errorf("what somebody changed: %+v, %v, in the history %s", done, err, m.last().Verb)
	}
}

// Without an agent it is the next change that ends an override, and the history says so, once.
func TestEndOfAnOverrideByAnotherVerb(t *testing.T) {
	m := newMachine(t, "252.39")
	m.atTime("23 10:00")
	m.apply("groups: {jobs: {match: [{exe: backup}], tasks: 50}, web: {match: [{exe: web}]}}\n")
	set := func(what string, span time.Duration) {
		t.Helper()
		_, err := m.do(api.Request{Verb: "set", Assign: []string{what}, For: span, Reason: "month end"})
		m.must(err)
	}
	ends := func() (found []journal.Entry) {
		entries, err := m.Store.History()
		m.must(err)
		for _, e := range entries {
			if e.Verb == "end" {
				found = append(found, e)
			}
		}
		return found
	}
	set("jobs:tasks=70", time.Hour)
	m.atTime("23 11:01")
	set("web:tasks=9", 0)
	m.tasks("after its time", "50")
	e := ends()
	if len(e) != 1 || e[0].What != "jobs:tasks=70" || e[0].Text != "taken back with the set" ||
		!strings.Contains(e[0].Reason, "override 1, set 2026-11-23 10:00:00 by test: month end") {
		t.Fatalf("the history says %+v", e)
	}
	set("jobs:tasks=60", 0)
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	if e := ends(); len(e) != 1 {
		t.Errorf("its end is told again: %+v", e)
	}
}

// A process that somebody took out of its group has an entry when it is brought back; one that has just come has none.
func TestBroughtBackIsInTheHistory(t *testing.T) {
	m := newMachine(t, "252.39")
	m.apply("groups: {jobs: {match: [{exe: backup}], tasks: 50}}\n")
	id := m.start("/usr/bin/backup all")
	count := func() int {
		entries, err := m.Store.History()
		m.must(err)
		return len(entries)
	}
	before := count()
	for range 2 {
		if _, err := m.full(); err != nil {
			t.Fatal(err)
		}
	}
	home := m.where(id)
	if count() != before || !strings.Contains(home, "jobs") {
		t.Fatalf("a new process has an entry, or is in %s", home)
	}
	look := func(full bool) {
		m.refresh()
		procs, err := m.Host.Proc.Processes(procfs.Options{})
		m.must(err)
		_, err = m.Look(t.Context(), reconcile.LookOptions{Processes: procs, Changed: true, Full: full})
		m.must(err)
	}
	for _, full := range []bool{true, false} {
		id = m.start("/usr/bin/backup all")
		look(true)
		before = count()
		for _, told := range []bool{true, false} { // again and again is told once
			m.must(m.kernel.Tree.Move(at("/"), id))
			look(full)
			if m.where(id) != home || (count() > before) != told ||
				!strings.Contains(m.last().Reason, "(backup) back into jobs") {
				t.Errorf("it is in %s, %d entries, and the history says %s %q", m.where(id), count()-before,
					m.last().Verb, m.last().Reason)
			}
			before = count()
		}
	}
	// Somebody who leaves a group that is no more is not brought back.
	m.apply("groups: {other: {match: [{exe: report}], tasks: 50}}\n")
	m.must(m.kernel.Tree.Move(at("/"), id))
	look(true)
	if e := m.last(); strings.Contains(e.Reason, "back into") {
		t.Errorf("the history says %s %q", e.Verb, e.Reason)
	}
}
