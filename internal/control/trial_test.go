package control

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/confirm"
	"bulkhead/internal/inspect"
	"bulkhead/internal/transaction"
)

const (
	fifty  = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n"
	twenty = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 20}\n"
)

// tended looks at the change on trial as its watchdog does, and as the agent does after it.
func (m *machine) tended() {
	m.t.Helper()
	m.refresh()
	m.must(m.MindTrial(context.Background()))
}

// watched is tended once more, when the one who tends has watched for longer than a window.
func (m *machine) watched() {
	m.t.Helper()
	m.ahead += time.Minute
	m.tended()
}

func (m *machine) onTrial(r api.Request, within time.Duration) *api.Reply {
	m.t.Helper()
	r.ConfirmWithin = within
	reply, err := m.do(r)
	m.must(err)
	if want := m.Now().Add(within); !reply.Confirm.Equal(want) {
		m.t.Errorf("to be confirmed until %s, want %s", reply.Confirm, want)
	}
	return reply
}

// Nobody confirms: what was before is in force again, to the bit, whatever it was.
func TestUnconfirmedChangeIsUndone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(m *machine)
		change func(m *machine) api.Request
	}{
		"the first policy of all": {func(*machine) {},
			func(m *machine) api.Request { return api.Request{Verb: "apply", Sources: m.policy(twenty)} }},
		"another policy": {
			func(m *machine) { m.apply(fifty) },
			func(m *machine) api.Request { return api.Request{Verb: "apply", Sources: m.policy(twenty)} },
		},
		"after a release of everything": {
			func(m *machine) { m.apply(fifty); m.release() },
			func(m *machine) api.Request { return api.Request{Verb: "apply", Sources: m.policy(twenty)} },
		},
		"after a release of the group": {
			func(m *machine) { m.apply(fifty); m.release("jobs") },
			func(m *machine) api.Request { return api.Request{Verb: "apply", Sources: m.policy(twenty)} },
		},
		"a set over an override": {
			func(m *machine) {
				m.apply(fifty)
				_, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=40"}})
				m.must(err)
			},
			func(*machine) api.Request {
				return api.Request{Verb: "set", Assign: []string{"jobs:tasks=10"}}
			},
		},
		"an unset": {
			func(m *machine) {
				m.apply(fifty)
				_, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=40"}})
				m.must(err)
			},
			func(*machine) api.Request { return api.Request{Verb: "unset", Assign: []string{"jobs:tasks"}} },
		},
		"a rollback": {
			func(m *machine) { m.apply(fifty); m.apply(twenty) },
			func(*machine) api.Request { return api.Request{Verb: "rollback", To: 1} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "252.39")
			m.start("/usr/bin/backup all")
			m.atTime("23 12:00")
			c.before(m)
			before, standing := m.state(), transaction.Standing(m.Reconciler.Controller)
			m.onTrial(c.change(m), 5*time.Minute)
			if m.state() == before {
				t.Fatal("the change changed nothing")
			}
			m.atTime("23 12:04")
			m.tended()
			if m.state() == before {
				t.Error("it was undone before its time")
			}
			m.atTime("23 12:05")
			m.tended()
			if after := m.state(); after != before {
				t.Errorf("undone, and:\n%s", differs(after, before))
			}
			if now := transaction.Standing(m.Reconciler.Controller); now != standing {
				t.Errorf("in force: %s, before: %s", now, standing)
			}
			if done, err := m.full(); err != nil || done.Repaired > 0 || len(done.Moved) > 0 {
				t.Errorf("a look after it: %+v, %v", done, err)
			}
			entries, err := m.Store.History()
			m.must(err)
			last := entries[len(entries)-1]
			if last.Verb == "look" { // it took away what a release leaves
				last = entries[len(entries)-2]
			}
			if last.Verb != "revert" || last.By != "bulkhead" ||
				!strings.Contains(last.Reason, "nobody confirmed it by") {
				t.Errorf("the history says %+v", last)
			}
			if _, err := m.do(api.Request{Verb: "confirm"}); api.CodeOf(err) != api.CodeUsage {
				t.Errorf("confirmed too late: %v", err)
			}
			if reply, err := m.do(api.Request{Verb: "rollback"}); name != "after a release of everything" &&
				(err != nil || !strings.Contains(reply.Text, "already undone")) {
				t.Errorf("a rollback after it: %+v, %v", reply, err)
			}
		})
	}
}

func TestConfirmedChangeStays(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(fifty)
	m.onTrial(api.Request{Verb: "apply", Sources: m.policy(twenty)}, time.Minute)
	for _, r := range []api.Request{
		{Verb: "apply", Sources: m.policy(fifty)},
		{Verb: "set", Assign: []string{"jobs:tasks=5"}},
		{Verb: "rollback", To: 1},
	} {
		_, err := m.do(r)
		if api.CodeOf(err) != api.CodeLocked || !strings.Contains(err.Error(),
			"the apply of revision 2 by test waits to be confirmed") {
			t.Errorf("%s meanwhile: %v", r.Verb, err)
		}
	}
	st, err := inspect.Status(t.Context(), m.Reconciler.Controller)
	m.must(err)
	if st.Trial == nil || st.Trial.Revision != 2 {
		t.Errorf("status says %+v", st.Trial)
	}
	reply, err := m.do(api.Request{Verb: "confirm", Reason: "all is well"})
	m.must(err)
	if reply.Text != "kept the apply of revision 2 by test" {
		t.Errorf("confirm says %q", reply.Text)
	}
	for _, at := range []string{"23 12:02", "2027-11-23 12:00", "2025-11-23 12:00"} {
		m.atTime(at)
		m.tended()
		m.tasks(at, "20")
	}
	_, err = m.do(api.Request{Verb: "confirm"})
	if api.CodeOf(err) != api.CodeUsage || !strings.Contains(err.Error(), "nothing waits to be confirmed") {
		t.Errorf("confirmed twice: %v", err)
	}
	m.apply(fifty)
	m.tasks("applied without", "50")
}

// A verb that comes when the time is over finds the change undone, although no watchdog and no agent lived.
func TestOverdueChangeIsUndoneByTheNextVerb(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(fifty)
	m.onTrial(api.Request{Verb: "apply", Sources: m.policy(twenty)}, time.Minute)
	m.atTime("23 12:10")
	_, err := m.do(api.Request{Verb: "confirm"})
	if api.CodeOf(err) != api.CodeFailed || !strings.Contains(err.Error(), "undid the apply of revision 2") {
		t.Errorf("confirmed too late: %v", err)
	}
	m.tasks("undone", "50")
	m.onTrial(api.Request{Verb: "set", Assign: []string{"jobs:tasks=7"}}, time.Minute)
	m.atTime("23 12:20")
	reply, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:cpu.limit=1"}})
	m.must(err)
	if !strings.Contains(reply.Recovered, "undid the set by test") {
		t.Errorf("set says %q", reply.Recovered)
	}
	m.tasks("undone", "50")
	m.reads("set", "/bulkhead.jobs.slice", "cpu.max", "100000 100000")
}

// Whoever jumps with the clock cannot make a change stay.
func TestClockThatJumpsUndoesAChangeOnTrial(t *testing.T) {
	for _, to := range []string{"2027-11-23 12:00", "2025-11-23 12:00"} {
		m := newMachine(t, "252.39")
		m.start("/usr/bin/backup all")
		m.atTime("23 12:00")
		m.apply(fifty)
		m.onTrial(api.Request{Verb: "apply", Sources: m.policy(twenty)}, time.Minute)
		m.atTime(to)
		m.tended()
		m.tasks(to, "50")
	}
}

// The emergency exit is not taken back.
func TestReleaseWhileAChangeIsOnTrial(t *testing.T) {
	const two = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n  web: {role: helper, match: " +
		"[{exe: httpd}], tasks: 60}\n"
	m := newMachine(t, "252.39")
	job := m.start("/usr/bin/backup all")
	m.start("/usr/bin/httpd")
	before := m.state()
	m.atTime("23 12:00")
	m.apply(two)
	m.onTrial(api.Request{Verb: "set", Assign: []string{"web:tasks=7"}}, time.Minute)
	m.release("jobs")
	m.atTime("23 12:01")
	m.tended()
	m.reads("undone", "/bulkhead.web.slice", "pids.max", "60")
	if at := m.where(job); strings.Contains(at, "bulkhead") {
		t.Errorf("the released job is in %s", at)
	}
	m.apply(two)
	m.onTrial(api.Request{Verb: "set", Assign: []string{"web:tasks=7"}}, time.Minute)
	m.release()
	m.atTime("23 12:10")
	m.tended()
	if after := m.state(); after != before {
		t.Errorf("after release:\n%s", differs(after, before))
	}
}

func TestRollbackUndoesAChangeOnTrialNow(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(fifty)
	m.apply(twenty)
	m.onTrial(api.Request{Verb: "set", Assign: []string{"jobs:tasks=7"}}, time.Hour)
	reply, err := m.do(api.Request{Verb: "rollback", DryRun: true})
	m.must(err)
	if reply.Text != "would undo the set by test" {
		t.Errorf("rollback --dry-run says %q", reply.Text)
	}
	m.tasks("a dry run", "7")
	reply, err = m.do(api.Request{Verb: "rollback"})
	m.must(err)
	if reply.Text != "undid the set by test, which waited to be confirmed" {
		t.Errorf("rollback says %q", reply.Text)
	}
	m.tasks("undone", "20")
	m.atTime("23 15:00")
	m.tended()
	m.tasks("later", "20")
}

func TestTimesToConfirmIn(t *testing.T) {
	m := newMachine(t, "252.39")
	for _, r := range []api.Request{
		{Verb: "apply", Sources: m.policy(fifty), ConfirmWithin: -time.Second},
		{Verb: "apply", Sources: m.policy(fifty), ConfirmWithin: time.Millisecond},
		{Verb: "apply", Sources: m.policy(fifty), ConfirmWithin: 31 * 24 * time.Hour},
		{Verb: "thaw", Groups: []string{"jobs"}, ConfirmWithin: time.Minute},
	} {
		if _, err := m.do(r); api.CodeOf(err) != api.CodeUsage {
			t.Errorf("%s within %s: %v", r.Verb, r.ConfirmWithin, err)
		}
	}
}

// The agent knows what is on trial, and counts what was undone, whoever did it: not what was confirmed.
func TestTrialsAreKnown(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(fifty)
	m.tended()
	for i, c := range []struct {
		ends   func()
		undone int64
	}{
		{func() { _, err := m.do(api.Request{Verb: "confirm"}); m.must(err) }, 0},
		{func() { m.atTime("23 13:00") }, 1},
		{func() { _, err := m.do(api.Request{Verb: "confirm"}); m.must(err) }, 1},
	} {
		m.onTrial(api.Request{Verb: "set", Assign: []string{fmt.Sprintf("jobs:tasks=%d", 20+i)}}, time.Minute)
		m.tended()
		if got := m.trials.Known(); !got.Waits || got.Guarded {
			t.Errorf("trial %d: it knows %+v", i, got)
		}
		c.ends()
		m.tended()
		m.tended()
		if got := m.trials.Known(); got != (confirm.Trials{Undone: c.undone}) {
			t.Errorf("after trial %d it knows %+v, want %d undone", i, got, c.undone)
		}
	}
}
