package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/systemdfake"
	"bulkhead/internal/systemd/unitname"
)

// A verb that waits for the lock of the state directory ends with its context.
func TestWaitForLockEndsWithContext(t *testing.T) {
	c := newBook(t)
	c.LockWait = time.Minute
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	begun := time.Now()
	_, err := Do(ctx, c, api.Request{Verb: "release", All: true})
	var locked *statedir.LockedError
	took := time.Since(begun)
	if !errors.Is(err, context.Canceled) || !errors.As(err, &locked) || took > 5*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
}

// quickLook is the agent's look between two full ones, when no process has come or gone.
func (m *machine) quickLook() error {
	m.t.Helper()
	procs, err := m.Host.Proc.Processes(procfs.Options{})
	m.must(err)
	_, err = m.Look(m.t.Context(), reconcile.LookOptions{Processes: procs})
	return err
}

// An override that ends, and a window that opens, while another verb holds the lock are dealt with once it lets go.
// Until then the agent's looks do not wait for the lock.
func TestDueWaitsForTheLock(t *testing.T) {
	const text = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n" +
		"schedules: [{name: night, when: \"0 22 * * *\", zone: UTC, for: 6h, set: {jobs: {tasks: 20}}}]\n"
	begin := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		at           time.Time
		before, then string
	}{
		"an override ends": {begin.Add(2 * time.Hour), "30", "50"},
		"a window opens":   {begin.Add(11 * time.Hour), "50", "20"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "252.39")
			m.start("/usr/bin/backup all")
			m.Clock = func() time.Time { return begin }
			m.apply(text)
			if name == "an override ends" {
				_, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=30"}})
				m.must(err)
				d, err := state.Load(m.Store, state.DocOverrides)
				m.must(err)
				d.Overrides[0].Ends = begin.Add(time.Hour)
				lock, err := m.Lock(t.Context(), "test", "test")
				m.must(err)
				m.must(state.Save(m.Store, state.DocOverrides, d.Overrides))
				lock.Release()
			}
			_, err := m.full()
			m.must(err)
			m.tasks("before", c.before)
			m.LockWait = time.Minute
			other, err := journal.Open(m.Store.Dir(), journal.Options{})
			m.must(err)
			defer other.Close()
			lock, err := other.Lock("apply", "somebody else")
			m.must(err)
			m.Clock = func() time.Time { return c.at }
			begun := time.Now()
			for range 3 {
				var locked *statedir.LockedError
				if err := m.quickLook(); !errors.As(err, &locked) {
					t.Fatalf("a look while somebody else holds the lock: %v", err)
				}
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("the looks waited %s for the lock", took)
			}
			m.tasks("while it is held", c.before)
			lock.Release()
			m.must(m.quickLook())
			m.tasks("when it is free", c.then)
			m.kernel.Intercept(func(o cgroupfake.Operation) error {
				if o.Op == "write" {
					t.Errorf("one more look writes %v", o.File)
				}
				return nil
			})
			m.must(m.quickLook())
		})
	}
}

// A look that fails at what is due is repeated, at growing intervals, until it succeeds.
func TestDueIsTriedAgain(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	m.Clock = func() time.Time { return now }
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n" +
		"schedules: [{name: night, when: \"0 22 * * *\", zone: UTC, for: 6h, set: {jobs: {tasks: 20}}}]\n")
	_, err := m.full()
	m.must(err)
	now = now.Add(11 * time.Hour)
	tries, broken := 0, errors.New("broken for a test")
	m.kernel.Intercept(func(o cgroupfake.Operation) error {
		if o.Op == "read" && o.File.Name == "pids.max" {
			tries++
			return broken
		}
		return m.notice(o)
	})
	for range 60 {
		_ = m.quickLook()
		now = now.Add(time.Second)
	}
	if tries < 3 || tries > 12 {
		t.Errorf("%d tries in a minute", tries)
	}
	m.kernel.Intercept(m.notice)
	for range 31 {
		m.must(m.quickLook())
		now = now.Add(time.Second)
	}
	m.tasks("once it works", "20")
}

// A look at limits that fails leaves the agent with what it knew of members: it looks again, also for disks that came,
// which it does twice a second.
func TestLookAfterAFailedOne(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n")
	m.kernel.Intercept(func(o cgroupfake.Operation) error {
		if o.Op == "read" && o.File.Name == "pids.max" {
			return errors.New("broken for a test")
		}
		return m.notice(o)
	})
	if _, err := m.full(); err == nil {
		t.Fatal("a limit that cannot be read is no trouble")
	}
	time.Sleep(600 * time.Millisecond)
	_ = m.quickLook()
	m.kernel.Intercept(m.notice)
	_, err := m.full()
	m.must(err)
	m.must(m.quickLook())
}

// A command whose unit systemd does not start holds up no other verb, and ends with its context: it is where it was,
// and nothing is recorded of it.
func TestRunDoesNotHoldTheLock(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.apply(jobs)
	agent := m.Self
	m.Self = m.start("/usr/bin/bulkhead run jobs -- /usr/bin/report")
	self := m.Self
	home := m.where(self)
	name, err := unitname.RunName("", "jobs", self.PID, self.Start)
	m.must(err)
	m.pid1.Stall(name, true)
	m.Bus.Timeout, m.Bus.JobTimeout = time.Minute, time.Minute
	m.Disconnect() // the next connection waits so long
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Enter(ctx, m.Reconciler.Controller, Entry{Group: "jobs", By: "test", Command: "report"})
	}()
	asked := func(c systemdfake.Call) bool {
		return c.Method == "StartTransientUnit" && fmt.Sprint(c.Args[0]) == name
	}
	for begun := time.Now(); !slices.ContainsFunc(m.pid1.Calls(), asked); time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("systemd is not asked to start the command")
		}
	}
	lock, err := m.LockWithin(t.Context(), 100*time.Millisecond, "apply", "somebody else")
	if err != nil {
		t.Fatalf("another verb while systemd starts the command: %v", err)
	}
	lock.Release()
	stop()
	select {
	case err = <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end with its context")
	}
	if err == nil {
		t.Error("no error")
	}
	m.Self = agent
	d, err := state.Load(m.Store, state.DocPins)
	m.must(err)
	if at := m.where(self); at != home || len(d.Pins) > 0 {
		t.Errorf("it is in %s, not %s, with the pins %+v", at, home, d.Pins)
	}
}

// That systemd cannot be asked whose a directory is does not make it somebody else's.
func TestNobodyKnowsWhoseTheSliceIs(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.must(m.bySystemd().StartTransient(t.Context(), systemd.Transient{Name: "bulkhead.jobs.slice"}))
	broken := errors.New("broken for a test")
	m.pid1.Intercept(func(c systemdfake.Call) error {
		if c.Method == "GetAll" && strings.HasSuffix(c.Path, "/bulkhead_2ejobs_2eslice") {
			return broken
		}
		return nil
	})
	m.refresh()
	_, err := inspect.Check(t.Context(), m.Reconciler.Controller, m.policy(jobs))
	if err == nil || !strings.Contains(err.Error(), "ask systemd") {
		t.Errorf("check: %v", err)
	}
	_, err = m.do(api.Request{Verb: "apply", Sources: m.policy(jobs)})
	if err == nil || !strings.Contains(err.Error(), "ask systemd") || api.CodeOf(err) == api.CodeRefused {
		t.Errorf("apply: %v", err)
	}
	m.pid1.Intercept(nil)
	m.apply(jobs)
	m.release()
}

// A systemd that hangs holds up a look for as long as all its questions may wait together, the next one hardly, and
// none of them once it answers.
func TestLookAtASystemdThatHangs(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "252.39")
	m.service("db.service", "/usr/sbin/mysqld")
	m.start("/usr/bin/backup all")
	m.apply(appAndJobs)
	m.Bus.Timeout = time.Minute
	m.Disconnect()
	m.pid1.Hang(true)
	for _, most := range []time.Duration{20 * time.Second, 2 * time.Second} {
		begun := time.Now()
		if _, err := m.full(); err == nil || !strings.Contains(err.Error(), "could not be asked") {
			t.Errorf("a look while systemd hangs: %v", err)
		}
		if took := time.Since(begun); took > most {
			t.Errorf("a look took %s, want at most %s", took, most)
		}
	}
	m.pid1.Hang(false)
	if _, err := m.full(); err != nil { // it was told apart from the time before
		t.Errorf("a look after that: %v", err)
	}
	m.pid1.Intercept(func(systemdfake.Call) error { time.Sleep(20 * time.Millisecond); return nil })
	if _, err := m.full(); err != nil {
		t.Errorf("a look when systemd takes its time: %v", err)
	}
}

// A systemd that does not answer holds up who asks it until that one's context ends, and nobody else.
func TestBusThatHangs(t *testing.T) {
	m := newMachine(t, "252.39")
	m.Bus.Timeout, m.Bus.JobTimeout = time.Minute, time.Minute
	m.pid1.Hang(true)
	m.pid1.Drop()
	facts := &host.Facts{Systemd: true}
	first, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := m.Manager(first, facts); ended <- err }()
	time.Sleep(100 * time.Millisecond) // it is on its way
	second, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := m.Manager(second, facts); err == nil || time.Since(begun) > 10*time.Second {
		t.Errorf("the second one: after %s: %v", time.Since(begun), err)
	}
	stop()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the first one: no error")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the first one does not end with its context")
	}
}
