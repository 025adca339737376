package control

import (
	"context"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/reconcile"
)

const windowed = `groups:
  jobs: {role: helper, match: [{exe: backup}], tasks: 50}
schedules:
  - {name: night, when: "0 22 * * *", zone: UTC, for: 6h, set: {jobs: {tasks: 500}}}
  - {name: late, when: "0 23 * * *", zone: UTC, for: 1h, except: [2026-11-24], set: {jobs: {tasks: 600}}}
`

// atTime sets the clock of a machine, "23 21:59" of November 2026.
func (m *machine) atTime(text string) {
	m.t.Helper()
	at, err := time.Parse("2006-01-02 15:04", "2026-11-"+text)
	if strings.Count(text, "-") == 2 {
		at, err = time.Parse("2006-01-02 15:04", text)
	}
	m.must(err)
	m.Clock = func() time.Time { return at }
}

// quick is the agent's look each second, when no process has come or gone.
func (m *machine) quick() reconcile.LookResult {
	m.t.Helper()
	procs, err := m.Host.Proc.Processes(procfs.Options{})
	m.must(err)
	done, err := m.Look(context.Background(), reconcile.LookOptions{Processes: procs})
	m.must(err)
	return done
}

func (m *machine) tasks(when, want string) {
	m.t.Helper()
	m.reads(when, "/bulkhead.jobs.slice", "pids.max", want)
}

// switchesTold are the history's entries of schedules.
func (m *machine) switchesTold() (told []string) {
	m.t.Helper()
	entries, err := m.Store.History()
	m.must(err)
	for _, e := range entries {
		if e.Verb == "schedule" {
			told = append(told, e.Reason+" by "+e.By+", "+e.Outcome)
		}
	}
	return told
}

func TestWindowsOpenAndClose(t *testing.T) {
	m := newMachine(t, "252.39")
	before := m.state()
	m.start("/usr/bin/backup all")
	m.atTime("23 21:59")
	m.apply(windowed)
	m.tasks("applied", "50")
	_, err := m.full()
	m.must(err)
	for _, step := range []struct{ at, want string }{
		{"23 21:59", "50"},
		{"23 22:00", "500"},
		{"23 22:01", "500"},
		{"23 23:00", "600"}, // the later one in the file decides
		{"24 00:00", "500"},
		{"24 03:59", "500"},
		{"24 04:00", "50"},
		{"24 23:30", "500"}, // late is left out, and nobody looked when night began
		{"24 21:00", "50"},  // the clock goes back
		{"2027-12-01 23:30", "600"},
		{"2025-12-01 12:00", "50"},
	} {
		m.atTime(step.at)
		m.quick()
		m.tasks(step.at, step.want)
		if done := m.quick(); done.Repaired > 0 {
			t.Errorf("%s: a second look writes %d values", step.at, done.Repaired)
		}
	}
	want := []string{
		"schedule night begins", "schedule late begins", "schedule late ends", "schedule night ends",
		"schedule night begins", "schedule night ends",
		"schedule night begins; schedule late begins", "schedule night ends; schedule late ends",
	}
	if got := strings.Join(m.switchesTold(), "\n"); got != strings.Join(want, " by agent, committed\n")+
		" by agent, committed" {
		t.Errorf("the history says:\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	m.release()
	for pid := range m.alive {
		if pid != m.Self.PID {
			(*machineKernel)(m).End(pid)
		}
	}
	if after := m.state(); after != before {
		t.Errorf("after release:\n%s", differs(after, before))
	}
}

// What a person sets goes before a window; and a window that opened or closed while no agent ran is made good by the
// first look.
func TestWindowsBesideOverridesAndWithoutAnAgent(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 23:30")
	m.apply(windowed)
	m.tasks("applied in the window", "600")
	if told := m.switchesTold(); len(told) > 0 {
		t.Errorf("apply told of %q", told)
	}
	_, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=70"}, For: 2 * time.Hour})
	m.must(err)
	m.tasks("set", "70")
	m.atTime("24 00:30")
	_, err = m.full()
	m.must(err)
	m.tasks("late has closed", "70")
	m.atTime("24 01:29")
	m.quick()
	m.tasks("before the override ends", "70")
	m.atTime("24 01:30")
	m.quick()
	m.tasks("the override has ended", "500")
	m.Reconciler = reconcile.New(m.Controller) // another agent, later
	m.atTime("24 12:00")
	_, err = m.full()
	m.must(err)
	m.tasks("the next agent", "50")
	want := []string{"schedule late ends by agent, committed", "schedule night ends by agent, committed"}
	if got := m.switchesTold(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the history says %q", got)
	}
}

func TestPlanAtATime(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(windowed)
	_, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:cpu.limit=1"}, For: 24 * time.Hour})
	m.must(err)
	for _, test := range []struct {
		at       string
		sources  []policy.Source
		tasks    string
		override bool
	}{
		{"2026-11-23T12:00:00Z", nil, "50", true},
		{"2026-11-23T22:30:00Z", nil, "500", true},
		{"2026-11-23T23:30:00Z", m.policy(windowed), "600", true},
		{"2026-11-24T23:30:00Z", m.policy(windowed), "500", false},
	} {
		at, err := time.Parse(time.RFC3339, test.at)
		m.must(err)
		m.refresh()
		v, err := inspect.PlanFor(t.Context(), m.Reconciler.Controller, test.sources, at)
		m.must(err)
		g := v.Classified.Groups[0]
		tasks, _ := g.Settings.Get(policy.KeyTasks, "")
		_, limited := g.Settings.Get(policy.KeyCPULimit, "")
		if tasks.Value.String() != test.tasks || limited != test.override {
			t.Errorf("at %s: tasks %s, cpu limited %t", test.at, tasks.Value, limited)
		}
	}
	m.tasks("after planning", "50")
}

func TestStatusTellsSchedules(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 22:30")
	m.apply(windowed)
	st, err := inspect.Status(t.Context(), m.Reconciler.Controller)
	m.must(err)
	at := func(text string) time.Time {
		at, err := time.Parse(time.RFC3339, text)
		m.must(err)
		return at
	}
	want := []api.ScheduleStatus{
		{Name: "night", Open: true, Since: at("2026-11-23T22:00:00Z"), Next: at("2026-11-24T04:00:00Z")},
		{Name: "late", Next: at("2026-11-23T23:00:00Z")},
	}
	if len(st.Schedules) != len(want) {
		t.Fatalf("schedules %+v", st.Schedules)
	}
	for i, s := range st.Schedules {
		if s.Name != want[i].Name || s.Open != want[i].Open || !s.Since.Equal(want[i].Since) ||
			!s.Next.Equal(want[i].Next) {
			t.Errorf("%+v, want %+v", s, want[i])
		}
	}
	if st.Differs > 0 {
		t.Errorf("%d steps away from the policy", st.Differs)
	}
}
