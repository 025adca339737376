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
