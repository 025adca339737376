package control

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/freeze"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/state"
)

// freezeSite is a machine with a group that holds a process, and another one.
func freezeSite(t *testing.T) (m *machine, member, other procfs.ID) {
	t.Helper()
	m = newMachine(t, "252.39")
	member, other = m.start("/usr/bin/backup all"), m.start("/usr/bin/report")
	m.apply("groups:\n  jobs:\n    role: helper\n    match: [{exe: backup}]\n    tasks: 50\n" +
		"    groups: {night: {match: [{exe: nothing}], tasks: 20}}\n")
	return m, member, other
}

func (m *machine) freeze(span time.Duration) []state.Freeze {
	m.t.Helper()
	reply, err := m.do(api.Request{Verb: "freeze", Groups: []string{"jobs"}, For: span})
	m.must(err)
	return reply.Frozen
}

// stopped says whether the kernel holds the group.
func (m *machine) stopped() bool {
	m.t.Helper()
	is, err := m.kernel.Frozen(at("/bulkhead.jobs.slice"))
	m.must(err)
	return is
}

// Nobody is moved into a group that is stopped, or below one.
func TestNobodyIsMovedIntoAFrozenGroup(t *testing.T) {
	m, _, other := freezeSite(t)
	m.freeze(time.Hour)
	for _, group := range []string{"jobs", "jobs/night"} {
		_, err := m.do(api.Request{Verb: "move", Group: group, PIDs: []int{other.PID}, Force: true, Reason: "test"})
		if api.CodeOf(err) != api.CodeRefused || !strings.Contains(err.Error(), `group "jobs" is frozen until `) ||
			api.HintOf(err) != "`bulkhead thaw jobs` lets it run" {
			t.Errorf("move into %s: code %d, %v, hint %q", group, api.CodeOf(err), err, api.HintOf(err))
		}
	}
	if at := m.where(other); at != "/" {
		t.Errorf("it is in %s", at)
	}
	_, err := m.do(api.Request{Verb: "thaw", Groups: []string{"jobs"}})
	m.must(err)
	_, err = m.do(api.Request{Verb: "move", Group: "jobs", PIDs: []int{other.PID}})
	m.must(err)
}

// A clock that is set back makes no freeze longer.
func TestFreezeEndsAlsoByAClockThatWasSetBack(t *testing.T) {
	m, _, _ := freezeSite(t)
	ends := m.freeze(time.Second)[0].Ends
	was := time.Now().Add(-time.Hour)
	m.must(freeze.ThawDue(t.Context(), m.Reconciler.Controller, was))
	if !m.stopped() && time.Now().Before(ends) {
		t.Error("ended before its time")
	}
	time.Sleep(time.Until(ends) + 50*time.Millisecond)
	m.must(freeze.ThawDue(t.Context(), m.Reconciler.Controller, was))
	if m.stopped() {
		t.Error("still stopped")
	}
}

// outlast is what the watchdog of freezes does once their maker is gone.
func (m *machine) outlast(own []state.Freeze) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- freeze.Outlast(context.Background(), m.Reconciler.Controller,
			strconv.FormatInt(own[0].Ends.UnixNano(), 36))
	}()
	return done
}

// A freeze that nobody ends is ended by its watchdog, which goes when there is nothing left to do.
func TestWatchdogEndsAFreeze(t *testing.T) {
	t.Parallel()
	jobs := []string{"jobs"}
	for name, c := range map[string]struct {
		span time.Duration
		then *api.Request
		left bool
	}{
		"nobody else does":        {500 * time.Millisecond, nil, false},
		"thawed":                  {time.Hour, &api.Request{Verb: "thaw", Groups: jobs}, false},
		"frozen anew":             {time.Hour, &api.Request{Verb: "freeze", Groups: jobs, For: time.Hour}, true},
		"everything was released": {time.Hour, &api.Request{Verb: "release", All: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, _, _ := freezeSite(t)
			own := m.freeze(c.span)
			if !m.stopped() {
				t.Fatal("not stopped")
			}
			if c.then != nil {
				_, err := m.do(*c.then)
				m.must(err)
			}
			select {
			case err := <-m.outlast(own):
				m.must(err)
			case <-time.After(time.Minute):
				t.Fatal("it does not end")
			}
			if c.then != nil && c.then.Verb == "release" {
				return // with its directories
			}
			if m.stopped() != c.left {
				t.Errorf("stopped: %t", !c.left)
			}
		})
	}
}

// Where no watchdog can be there to end a freeze, nothing is stopped.
func TestFreezeNeedsItsWatchdog(t *testing.T) {
	m, _, _ := freezeSite(t)
	m.Watchdog = []string{"-test.no-such-flag"} // of this test's program
	_, err := m.do(api.Request{Verb: "freeze", Groups: []string{"jobs"}, For: time.Hour})
	if err == nil || !strings.Contains(err.Error(), "start watchdog") || api.HintOf(err) != "nothing was stopped" {
		t.Errorf("%v, hint %q", err, api.HintOf(err))
	}
	var kept []state.Freeze
	_, failed := m.Store.Load(state.DocFreezes, &kept)
	if m.must(failed); m.stopped() || len(kept) > 0 {
		t.Errorf("stopped %t, recorded %+v", m.stopped(), kept)
	}
}

// On cgroup v1, who comes to a frozen group is stopped too, in the freezer of the nearest that is frozen, and goes back
// with the thaw.
func TestWhoComesToAFrozenGroupIsStopped(t *testing.T) {
	m := newTrees(t)
	m.start("/usr/bin/backup all")
	m.apply("groups:\n  jobs:\n    role: helper\n    match: [{exe: backup}]\n    cpu: {weight: 50}\n" +
		"    groups: {night: {match: [{exe: report}], cpu: {weight: 20}}}\n")
	for _, group := range []string{"jobs/night", "jobs"} {
		m.must(api.Request{Verb: "freeze", Groups: []string{group}, For: time.Hour})
	}
	late := map[procfs.ID]string{m.start("/usr/bin/backup more"): "/bulkhead.jobs",
		m.start("/usr/bin/report"): "/bulkhead.jobs/night"}
	stranger := m.start("/usr/bin/other")
	past, err := m.Host.Proc.Processes(procfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	moves := 0
	m.refuse = func(o cgroupfake.Operation) error {
		if o.Op == "write" && o.File.Name == "cgroup.procs" {
			moves++
		}
		return nil
	}
	for range 2 { // the second time the table is of the past
		if err := freeze.Tend(t.Context(), m.Controller, past, time.Now()); err != nil {
			t.Fatal(err)
		}
		for id, dir := range late {
			at := m.where(id)["freezer"]
			is, err := m.kernel.Frozen(cgroup.Dir{Hierarchy: "freezer", Path: at})
			if at != dir || err != nil || !is {
				t.Errorf("process %d is in %s, stopped %t, %v; want it in %s", id.PID, at, is, err, dir)
			}
		}
	}
	if at := m.where(stranger)["freezer"]; at != "/" || moves != len(late) {
		t.Errorf("one of no group is in %s; %d moves", at, moves)
	}
	m.must(api.Request{Verb: "thaw", Groups: []string{"jobs", "jobs/night"}})
	for id := range late {
		if at := m.where(id)["freezer"]; at != "/" {
			t.Errorf("thawed, process %d is in %s", id.PID, at)
		}
	}
}
