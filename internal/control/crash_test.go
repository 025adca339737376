package control

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
)

// killedAt does something, is killed before a write to the state directory, given by its number, and leaves the next
// process to the caller. It says how many writes there were, and whether the kill came.
func (m *machine) killedAt(c diskCase, write int, job, idle procfs.ID) (calls int, died bool) {
	m.t.Helper()
	disk := &faultyFS{}
	m.onDisk(disk)
	disk.before = func() {
		m.refresh() // what was moved is in /proc
		if disk.calls-1 == write {
			panic(killed{})
		}
	}
	m.surviving(func() {
		died = true
		_ = c.do(m, job, idle) // what is refused changes nothing
		died = false
	})
	return disk.calls, died
}

// agree says that status, verify and the kernel tell the same of a host where nothing is left to do.
func (m *machine) agree(when string) {
	m.t.Helper()
	m.refresh()
	st, err := inspect.Status(m.t.Context(), m.Reconciler.Controller)
	if err != nil {
		if strings.Contains(err.Error(), "no policy is applied") && !strings.Contains(m.kernel.Dump(), "bulkhead") {
			return
		}
		m.t.Errorf("%s: status: %v", when, err)
		return
	}
	if st.Pending != "" {
		m.t.Errorf("%s: status says INTERRUPTED: %s", when, st.Pending)
	}
	released := slices.Contains(st.Released, "everything")
	if st.Differs > 0 && !released {
		m.t.Errorf("%s: %d steps to what status says is in force", when, st.Differs)
	}
	if released && strings.Contains(m.kernel.Dump(), "bulkhead-jobs") {
		m.t.Errorf("%s: status says released, the kernel holds limits:\n%s", when, m.kernel.Dump())
	}
	all, err := inspect.Verify(m.t.Context(), m.Reconciler.Controller, nil)
	if err != nil {
		m.t.Errorf("%s: verify: %v", when, err)
	}
	for _, v := range all {
		if !v.OK && !v.Default {
			m.t.Errorf("%s: verify: %+v", when, v)
		}
	}
}

// Killed before any write to the state directory, a change is whole or not there at all for whoever comes next: for
// status at once, for the agent with its first look, and for rollback, which undoes the change that status calls
// interrupted, and no other.
func TestKilledBetweenAnyTwoWrites(t *testing.T) {
	t.Parallel()
	again := diskCase{"apply after a release", func(m *machine, _, _ procfs.ID) {
		m.apply(fifty)
		m.release()
	}, func(m *machine, _, _ procfs.ID) error {
		_, err := m.do(api.Request{Verb: "apply", Sources: m.policy(twenty)})
		return err
	}, false, true, false}
	for i, c := range slices.Concat([]diskCase{again}, diskCases) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			all := []string{"agent", "rollback", "verb"}
			step := 5 // every write, and whoever may come next, with FAULTS=all
			if os.Getenv("FAULTS") == "all" {
				step = 1
			}
			for write, died := i%step, true; died; write += step {
				for j, next := range all {
					if step > 1 && write%len(all) != j {
						continue
					}
					t.Run(fmt.Sprintf("write %d, then %s", write, next), func(t *testing.T) {
						m := newMachine(t, "252.39")
						m.start("/usr/bin/httpd")
						job, idle := m.start("/usr/bin/backup all"), m.start("/usr/bin/idle")
						first := m.state()
						if c.before != nil {
							c.before(m, job, idle)
						}
						before, entries := m.holds(job, idle), len(historyOf(m.Reconciler.Controller, t))
						_, died = m.killedAt(c, write, job, idle)
						m.takenOver(c, next, before, entries, job, idle)
						if c.agent { // what it was about is due again
							_, err := m.full()
							m.must(err)
						}
						m.agree("after " + next)
						m.release()
						if after := m.state(); after != first {
							t.Errorf("after a release:\n%s", differs(after, first))
						}
					})
				}
			}
		})
	}
}

// takenOver has somebody take over from a process that was killed.
func (m *machine) takenOver(c diskCase, next, before string, entries int, job, idle procfs.ID) {
	m.t.Helper()
	m.refresh()
	pending := ""
	if st, err := inspect.Status(m.t.Context(), m.Reconciler.Controller); err == nil {
		pending = st.Pending
	} else if strings.Contains(err.Error(), "a change was interrupted") {
		pending = "the first"
	}
	if pending == "" && !c.agent {
		m.agree("killed")
	}
	switch next {
	case "agent":
		if _, err := m.full(); err != nil {
			m.t.Errorf("a look: %v", err)
		}
	case "verb":
		_, _ = m.do(api.Request{Verb: "unset",
			Assign: []string{"web:cpu.limit"}}) // it is refused: nothing is set for it
	case "rollback":
		if pending == "" {
			return
		}
		reply, err := m.do(api.Request{Verb: "rollback"})
		if err != nil || reply.Recovered == "" {
			m.t.Errorf("rollback of %q: %+v, %v", pending, reply, err)
		}
		if now := m.holds(job, idle); now != before && !c.agent {
			m.t.Errorf("rollback of %q left:\n%s", pending, differs(now, before))
		}
		all := historyOf(m.Reconciler.Controller, m.t)
		if got := all[min(entries, len(all)-1)]; len(all) <= entries || got.Outcome == journal.Committed {
			m.t.Errorf("the history does not say that it was undone: %+v", all)
		}
	}
}
