package control

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/confirm"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
)

// cutOff is a maker that died when its change was done and none of its documents was in place: the history had so many
// entries before it.
func (m *machine) cutOff(last int, names ...string) {
	m.t.Helper()
	lock, err := m.Lock(m.t.Context(), "test", "test")
	m.must(err)
	defer lock.Release()
	n := state.Next{Last: last, Docs: map[string]json.RawMessage{}, Entry: journal.Entry{Time: m.Now(), Verb: "set"}}
	for _, name := range names {
		var doc json.RawMessage
		_, err := m.Store.Load(name, &doc)
		m.must(err)
		n.Docs[name] = doc
		empty := any(struct{}{})
		if doc[0] == '[' {
			empty = []any{}
		}
		m.must(m.Store.Save(name, empty))
	}
	m.must(m.Store.Save(state.DocNext, n))
}

// A maker that is killed between the last step of its change and its documents leaves nobody but the watchdog, who
// knows of no trial then.
func TestChangeWithoutItsDocumentsIsUndone(t *testing.T) {
	for _, by := range []string{"watchdog", "rollback"} {
		m := newMachine(t, "252.39")
		m.start("/usr/bin/backup all")
		m.atTime("23 12:00")
		m.apply(fifty)
		m.apply(twenty)
		entries, err := m.Store.Heads()
		m.must(err)
		last := entries[len(entries)-1]
		m.onTrial(api.Request{Verb: "set", Assign: []string{"jobs:tasks=7"}}, time.Minute)
		trial, err := state.OnTrial(m.Store)
		m.must(err)
		dog := confirm.NewSupervisor(m.Reconciler.Controller, trial.ID, ApplyRest(m.Reconciler.Controller))
		m.cutOff(last.N, state.DocTrial, state.DocBefore, state.DocOverrides)
		if by == "rollback" {
			reply, err := m.do(api.Request{Verb: "rollback"})
			if err != nil || !strings.HasPrefix(reply.Text, "undid the set by test") {
				t.Errorf("rollback says %+v, %v", reply, err)
			}
			m.tasks(by, "20")
			continue
		}
		if over, err := dog.Once(t.Context()); over || err != nil {
			t.Errorf("the watchdog gives up: %v, %v", over, err)
		}
		m.tasks("before its time", "7")
		m.atTime("23 12:01")
		m.refresh()
		if over, err := dog.Once(t.Context()); !over || err != nil {
			t.Errorf("the watchdog goes on: %v, %v", over, err)
		}
		m.tasks(by, "20")
	}
}

// A group that cannot be given back holds up neither the others nor the end of the trial, which would be tried again
// and again, against the agent.
func TestOneBadUnitHoldsUpNoUndoing(t *testing.T) {
	m := newMachine(t, "")
	m.service("db.service", "/usr/sbin/mysqld")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(appAndJobs)
	m.onTrial(api.Request{Verb: "apply", Sources: m.policy(strings.NewReplacer("1GiB", "2GiB", "tasks: 50",
		"tasks: 20").Replace(appAndJobs))}, time.Minute)
	m.reads("on trial", jobsDir, "pids.max", "20")
	m.reads("on trial", dbDir, "memory.max", gib2)
	m.mask("db.service")
	m.atTime("23 12:01")
	m.tended()
	m.reads("undone", jobsDir, "pids.max", "50")
	if st, err := inspect.Status(t.Context(), m.Reconciler.Controller); err != nil || st.Trial != nil ||
		st.Revision != 1 {
		t.Errorf("then: %+v, %v", st, err)
	}
}

// A guard that cannot look does not keep a change in force that nobody confirms.
func TestBlindGuardHoldsUpNoUndoing(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], cpu: {limit: 1}, tasks: 50}\nguard: {groups: " +
		"{jobs: {throttled: 100%}}}\n")
	m.onTrial(api.Request{Verb: "set", Assign: []string{"jobs:tasks=7"}}, time.Minute)
	trial, err := state.OnTrial(m.Store)
	m.must(err)
	dog := confirm.NewSupervisor(m.Reconciler.Controller, trial.ID, ApplyRest(m.Reconciler.Controller))
	applied := filepath.Join(m.Store.Dir(), state.DocApplied+".json")
	m.must(os.Rename(applied, applied+".away")) // it knows of no policy
	if over, err := dog.Once(t.Context()); over || err == nil {
		t.Fatalf("it looks: %v, %v", over, err)
	}
	m.must(os.Rename(applied+".away", applied))
	m.tasks("before its time", "7")
	m.atTime("23 12:02")
	m.refresh()
	dog.Clock = func() time.Time { return time.Now().Add(time.Minute) } // it tries again in a second
	if over, err := dog.Once(t.Context()); !over || err != nil {
		t.Errorf("late: %v, %v", over, err)
	}
	m.tasks("late", "50")
}

// The time on trial begins when the change is done, however long it takes.
func TestTimeOnTrialBeginsWithTheChange(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(fifty)
	m.AfterStep = func(int, plan.Step) { m.atTime("23 12:03") }
	m.onTrial(api.Request{Verb: "set", Assign: []string{"jobs:tasks=7"}}, time.Minute) // until 12:04
	m.AfterStep = nil
	m.tended()
	m.tasks("done at 12:03", "7")
	m.atTime("23 12:04")
	m.tended()
	m.tasks("a minute later", "50")
}

// A memory.high that was lifted before the change is lifted after its undoing, too: its group would be stuck at it
// again. One that was lifted since is asked for again.
func TestUndoingKeepsWhatWasLifted(t *testing.T) {
	const text = "groups:\n  jobs: {role: helper, match: [{exe: backup}], memory: {high: 256MiB, max: 1GiB}, tasks: " +
		"50}\n"
	for _, when := range []string{"before a set", "before an apply", "since"} {
		m := newMachine(t, "252.39")
		m.start("/usr/bin/backup all")
		m.atTime("23 12:00")
		m.apply(text)
		want := "max"
		if when != "since" {
			m.must(m.LiftHigh(t.Context(), "jobs", "it got nowhere"))
		}
		if when == "before an apply" {
			m.onTrial(api.Request{Verb: "apply", Sources: m.policy(strings.Replace(text, "50", "20", 1))}, time.Minute)
			m.reads("applied", jobsDir, "memory.high", "268435456")
		} else {
			m.onTrial(api.Request{Verb: "set", Assign: []string{"jobs:tasks=20"}}, time.Minute)
		}
		if when == "since" {
			m.must(m.LiftHigh(t.Context(), "jobs", "it got nowhere"))
			want = "268435456"
		}
		m.atTime("23 12:01")
		m.tended()
		m.tasks(when, "50")
		m.reads("lifted "+when, jobsDir, "memory.high", want)
		if done, err := m.full(); err != nil || done.Repaired > 0 {
			t.Errorf("lifted %s: a look: %+v, %v", when, done, err)
		}
	}
}

// What cannot be undone without harm stays, and the history says so.
func TestUndoingThatWouldKillSaysSo(t *testing.T) {
	m := newMachine(t, "252.39")
	p := m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], memory: {max: 64MiB}}\n")
	m.onTrial(api.Request{Verb: "set", Assign: []string{"jobs:memory.max=1GiB"}}, time.Minute)
	m.must(m.kernel.Charge(p.PID, cgroupfake.Anonymous, 128<<20))
	m.atTime("23 12:01")
	m.tended()
	m.reads("not undone", jobsDir, "memory.max", gib)
	entries, err := m.Store.History()
	m.must(err)
	if last := entries[len(entries)-1]; last.Verb != "revert" ||
		!strings.Contains(last.Reason, `; group "jobs" stays as it is: `) {
		t.Errorf("the history says %+v", last)
	}
}

// No number of an override is given twice: not after unset, a restart, a rollback, its end, or a release.
func TestOverrideNumbersAreNeverGivenTwice(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(fifty)
	last := 0
	set := func(after string, r api.Request) {
		t.Helper()
		m.reopened(-1)
		r.Verb, r.Assign = "set", []string{"jobs:tasks=7", "jobs:cpu.limit=1"}
		if _, err := m.do(r); err != nil {
			t.Fatal(err)
		}
		d, err := state.Load(m.Store)
		m.must(err)
		for _, o := range d.Overrides {
			if o.ID <= last {
				t.Errorf("%s: %+v comes after %d", after, o, last)
			}
		}
		last = d.Overrides[len(d.Overrides)-1].ID
	}
	do := func(r api.Request) {
		t.Helper()
		_, err := m.do(r)
		m.must(err)
	}
	set("nothing", api.Request{})
	do(api.Request{Verb: "unset", Assign: []string{"jobs:tasks", "jobs:cpu.limit"}})
	set("unset", api.Request{For: time.Hour})
	m.atTime("23 14:00")
	set("its end", api.Request{ConfirmWithin: time.Minute})
	do(api.Request{Verb: "rollback"})
	set("a rollback", api.Request{ConfirmWithin: time.Minute})
	m.atTime("23 15:00")
	m.tended()
	set("an undoing", api.Request{})
	m.release()
	m.apply(fifty)
	set("a release", api.Request{})
}

// later is the time, ahead of the clock.
func (m *machine) later() time.Time { return time.Now().Add(m.ahead) }

// MindTrial is the agent's care for changes on trial.
func (m *machine) MindTrial(ctx context.Context) error {
	if m.trials == nil {
		m.trials = confirm.NewFallback(m.Reconciler.Controller, ApplyRest(m.Reconciler.Controller))
		m.trials.Clock = m.later
	}
	return m.trials.Once(ctx)
}
