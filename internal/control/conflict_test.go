package control

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
)

const jobsSlice = "/bulkhead.jobs.slice"

// governed is a machine with an agent that has looked once, a clock that stands, and a group of 50 tasks and 1 GiB.
func governed(t *testing.T, mode string) (m *machine, at *time.Time) {
	t.Helper()
	m = newMachine(t, "252.39")
	now := time.Now()
	at = &now
	m.Clock = func() time.Time { return *at }
	m.start("/usr/bin/backup all")
	m.apply("agent: {on_conflict: " + mode + "}\n" +
		"groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50, memory: {max: 1GiB}}\n  web: {match: " +
		"[{exe: nginx}], tasks: 70}\n")
	for range 2 {
		if _, err := m.full(); err != nil {
			t.Fatal(err)
		}
	}
	return m, at
}

// meddle writes a file as an administrator's script does.
func (m *machine) meddle(dir, file, value string) {
	m.t.Helper()
	m.must(m.kernel.Write(at(dir).File(file), value))
}

func (m *machine) conflicts() []state.Conflict {
	m.t.Helper()
	st, err := inspect.Status(m.t.Context(), m.Reconciler.Controller)
	m.must(err)
	return st.Conflicts
}

// A value that somebody else changes is put right and told of; one that is changed again and again is left longer and
// longer.
func TestForeignWriterIsPutRight(t *testing.T) {
	m, now := governed(t, "enforce")
	if c := m.conflicts(); len(c) > 0 {
		t.Fatalf("at first: %v", c)
	}
	for i := 1; i <= 2; i++ {
		m.meddle(jobsSlice, "pids.max", "500")
		if done, err := m.full(); err != nil || done.Repaired != 1 {
			t.Fatalf("look %d: %+v, %v", i, done, err)
		}
		m.reads("put right", jobsSlice, "pids.max", "50")
		c := m.conflicts()
		if len(c) != 1 || c[0].Count != i || c[0].Found != "500" || c[0].Wanted != "50" || c[0].Key != "tasks" ||
			c[0].Group != "jobs" || c[0].Left || !c[0].Until.IsZero() {
			t.Fatalf("told of %+v", c)
		}
		if !strings.Contains(c[0].By, "past systemd") {
			t.Errorf("by %q", c[0].By)
		}
	}
	rest := time.Duration(0)
	for i := range 3 {
		m.meddle(jobsSlice, "pids.max", "501")
		if done, err := m.full(); err != nil || done.Repaired != 0 {
			t.Fatalf("the value that comes again and again: %+v, %v", done, err)
		}
		m.reads("left for a while", jobsSlice, "pids.max", "501")
		c := m.conflicts()
		if len(c) != 1 || c[0].Until.Sub(*now) != time.Minute<<i || c[0].Until.Sub(*now) <= rest {
			t.Fatalf("told of %+v", c)
		}
		rest = c[0].Until.Sub(*now)
		*now = now.Add(rest - time.Second)
		if done, err := m.full(); err != nil || done.Repaired != 0 {
			t.Fatalf("before its time: %+v, %v", done, err)
		}
		*now = now.Add(2 * time.Second)
		if done, err := m.full(); err != nil || done.Repaired != 1 {
			t.Fatalf("after its time: %+v, %v", done, err)
		}
		m.reads("put right after its time", jobsSlice, "pids.max", "50")
	}
	*now = now.Add(3*time.Hour + 24*time.Hour)
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	if c := m.conflicts(); len(c) > 0 {
		t.Errorf("long after: %v", c)
	}
}

// yield and alert leave the value, also when other limits are set, until the next apply; alert calls it an error.
func TestForeignWriterIsLeft(t *testing.T) {
	for _, mode := range []string{"yield", "alert"} {
		t.Run(mode, func(t *testing.T) {
			m, _ := governed(t, mode)
			m.meddle(jobsSlice, "pids.max", "500")
			for range 3 {
				done, err := m.full()
				if (err != nil) != (mode == "alert") || done.Repaired != 0 {
					t.Fatalf("a look: %+v, %v", done, err)
				}
			}
			st, err := inspect.Status(t.Context(), m.Reconciler.Controller)
			if err != nil || len(st.Conflicts) != 1 || !st.Conflicts[0].Left || st.Conflicts[0].Count != 1 ||
				st.Differs != 0 {
				t.Fatalf("status: %+v, differs %d, %v", st.Conflicts, st.Differs, err)
			}
			all, err := inspect.Verify(t.Context(), m.Reconciler.Controller, []string{"jobs"})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range all {
				if v.Key == "tasks" && (v.OK || !strings.Contains(v.Reason, "left as it is until the next apply")) {
					t.Errorf("verify: %+v", v)
				}
			}
			if _, err := m.do(api.Request{Verb: "set", Assign: []string{"web:tasks=71"}}); err != nil {
				t.Fatal(err)
			}
			m.reads("after another limit was set", jobsSlice, "pids.max", "500")
			m.meddle(jobsSlice, "pids.max", "600")
			if _, err := m.full(); (err != nil) != (mode == "alert") {
				t.Fatal(err)
			}
			if c := m.conflicts(); len(c) != 1 || c[0].Found != "600" || c[0].Count != 2 {
				t.Errorf("changed again: %+v", c)
			}
			if _, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=55"}}); err != nil {
				t.Fatal(err)
			}
			m.reads("set by a person", jobsSlice, "pids.max", "55")
			if _, err := m.full(); err != nil {
				t.Fatal(err)
			}
			if c := m.conflicts(); len(c) > 0 {
				t.Errorf("the wish is another one: %v", c)
			}
			m.meddle(jobsSlice, "pids.max", "500")
			_, _ = m.full()
			if _, err := m.do(api.Request{Verb: "unset", Assign: []string{"jobs:tasks"}}); err != nil {
				t.Fatal(err)
			}
			m.meddle(jobsSlice, "memory.max", "2147483648")
			_, _ = m.full()
			m.reads("left", jobsSlice, "memory.max", "2147483648")
			m.apply("agent: {on_conflict: " + mode + "}\n" +
				"groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50, memory: {max: 1GiB}}\n  web: " +
				"{match: [{exe: nginx}], tasks: 70}\n")
			m.reads("applied", jobsSlice, "memory.max", "1073741824")
			if _, err := m.full(); err != nil {
				t.Errorf("after the apply: %v", err)
			}
			if c := m.conflicts(); len(c) > 0 {
				t.Errorf("after the apply: %v", c)
			}
		})
	}
}

// A limit that nobody asked for is somebody else's as well; and what bulkhead changes itself is not.
func TestForeignWriterOfAnotherLimit(t *testing.T) {
	m, _ := governed(t, "yield")
	m.meddle(jobsSlice, "memory.high", "536870912")
	if done, err := m.full(); err != nil || done.Repaired != 0 {
		t.Fatalf("a look: %+v, %v", done, err)
	}
	m.reads("left", jobsSlice, "memory.high", "536870912")
	if c := m.conflicts(); len(c) != 1 || c[0].File != "memory.high" || c[0].Wanted != "max" {
		t.Errorf("told of %+v", c)
	}
	m, _ = governed(t, "yield")
	for _, q := range []api.Request{{Verb: "set", Assign: []string{"jobs:tasks=60"}},
		{Verb: "unset", Assign: []string{"jobs:tasks"}}, {Verb: "release", Groups: []string{"jobs"}}} {
		if _, err := m.do(q); err != nil {
			t.Fatal(err)
		}
		if _, err := m.full(); err != nil {
			t.Fatal(err)
		}
		if c := m.conflicts(); len(c) > 0 {
			t.Errorf("after %s: %v", q.Verb, c)
		}
	}
}

// Who set a property of the unit is systemd's client.
func TestForeignWriterBySystemd(t *testing.T) {
	m, _ := governed(t, "yield")
	set, err := systemd.Encode([]systemd.Assignment{{Name: "TasksMax", Text: "123"}})
	m.must(err)
	m.must(m.bySystemd().SetProperties(t.Context(), "bulkhead.jobs.slice", systemd.Runtime, set...))
	m.reads("set", jobsSlice, "pids.max", "123")
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	if c := m.conflicts(); len(c) != 1 || !strings.Contains(c[0].By,
		"systemd, which holds TasksMax=123 for bulkhead.jobs.slice") {
		t.Errorf("told of %+v", c)
	}
}

// TuneD is named when it runs.
func TestForeignWriterIsNamed(t *testing.T) {
	m, _ := governed(t, "enforce")
	m.start("/usr/sbin/tuned -l -P")
	m.meddle(jobsSlice, "memory.high", "536870912")
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	c := m.conflicts()
	if len(c) != 1 || !strings.Contains(c[0].By, "TuneD") && !strings.Contains(c[0].By, "past systemd") {
		t.Errorf("told of %+v", c)
	}
}
