package control

import (
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/state"
)

// overrides are those that are kept, whether their end has come or not.
func (m *machine) overrides() (all []string) {
	m.t.Helper()
	d, err := state.Load(m.Store, state.DocOverrides)
	m.must(err)
	for _, o := range d.Overrides {
		all = append(all, o.Text)
	}
	return all
}

// What has ended stays so when the clock is set back.
func TestEndedStaysEnded(t *testing.T) {
	m := newMachine(t, "252.39")
	other := m.start("/usr/bin/report all")
	home, now := m.where(other), time.Now()
	m.Clock = func() time.Time { return now }
	m.apply(fifty)
	for _, text := range []string{"jobs:tasks=70", "jobs:cpu.limit=1"} {
		_, err := m.do(api.Request{Verb: "set", Assign: []string{text}, For: time.Hour})
		m.must(err)
	}
	_, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:cpu.weight=200"}})
	m.must(err)
	_, err = m.do(api.Request{Verb: "move", Group: "jobs", PIDs: []int{other.PID}, For: time.Hour})
	m.must(err)
	now = now.Add(61 * time.Minute)
	_, err = m.full()
	m.must(err)
	now = now.Add(-31 * time.Minute)
	for range 2 {
		_, err = m.full()
		m.must(err)
		m.tasks("with the clock set back", "50")
		m.reads("with the clock set back", jobsDir, "cpu.max", "max 100000")
	}
	if at := m.where(other); at != home {
		t.Errorf("the process is in %s, want %s", at, home)
	}
	if all := m.overrides(); len(all) != 1 || all[0] != "jobs:cpu.weight=200" {
		t.Errorf("kept: %q", all)
	}
}

// The end of one that changes nothing is forgotten without an entry in the history.
func TestEndThatChangesNothing(t *testing.T) {
	m := newMachine(t, "252.39")
	m.atTime("23 10:00")
	m.apply(fifty)
	_, err := m.do(api.Request{Verb: "set", Assign: []string{"jobs:tasks=50"}, For: time.Hour})
	m.must(err)
	before := m.last().N
	m.atTime("23 11:01")
	_, err = m.full()
	m.must(err)
	if all := m.overrides(); len(all) > 0 || m.last().N != before {
		t.Errorf("kept: %q, and the history says %+v", all, m.last())
	}
}
