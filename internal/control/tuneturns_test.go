package control

import (
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
)

// turn puts settings on trial for a minute, as `tune apply --bench` does for a measurement.
func (m *machine) turn(settings ...state.Tuned) *api.Reply {
	m.t.Helper()
	return m.onTrial(api.Request{Verb: "tune apply", Tune: settings}, time.Minute)
}

// A change is made and undone again and again; what the same rule had set before stays.
func TestTuneInTurns(t *testing.T) {
	m := tunedMachine(t)
	m.atTime("23 12:00")
	again := madvise
	again.Rule = lowSwap.Rule
	for _, first := range []func(){func() {}, func() { m.tune(lowSwap) }} {
		first()
		before := m.settings()
		for range 3 {
			reply := m.turn(again)
			if m.settings() == before {
				t.Fatal("the change changed nothing")
			}
			_, err := m.do(api.Request{Verb: "rollback", Waits: reply.Confirm})
			m.must(err)
			m.tunedAs("undone", before)
		}
	}
}

// A rollback of one change on trial undoes that one and no other, and no policy, when it is not on trial any more.
func TestRollbackOfOneTrial(t *testing.T) {
	m := tunedMachine(t)
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(fifty)
	m.apply(twenty)
	refused := func(when string, waits time.Time) {
		t.Helper()
		before, settings := m.state(), m.settings()
		_, err := m.do(api.Request{Verb: "rollback", Waits: waits})
		if api.CodeOf(err) != api.CodeFailed {
			t.Errorf("%s: %v", when, err)
		}
		if now := m.state(); now != before {
			t.Errorf("%s: it changed\n%s", when, differs(now, before))
		}
		m.tunedAs(when, settings)
	}
	refused("nothing is on trial", m.Now().Add(time.Minute))
	one := m.turn(lowSwap)
	refused("another is on trial", one.Confirm.Add(time.Second))
	_, err := m.do(api.Request{Verb: "confirm"})
	m.must(err)
	refused("it was confirmed", one.Confirm)
	two := m.turn(madvise)
	m.atTime("23 12:02")
	m.tended()
	refused("it was undone in time", two.Confirm)
}

// Killed after any step of a turn, the host is as before when the next one comes, or when the turn's time is over.
func TestTurnKilled(t *testing.T) {
	for at := 0; ; at++ {
		m := tunedMachine(t)
		m.atTime("23 12:00")
		died, steps := true, 0
		m.AfterStep = func(int, plan.Step) {
			if steps++; steps > at {
				panic(killed{})
			}
		}
		m.surviving(func() {
			reply, err := m.do(api.Request{Verb: "tune apply", Tune: []state.Tuned{lowSwap, madvise},
				ConfirmWithin: time.Minute})
			m.must(err)
			_, err = m.do(api.Request{Verb: "rollback", Waits: reply.Confirm})
			m.must(err)
			died = false
		})
		m.AfterStep = nil
		if !died {
			if at < 8 {
				t.Errorf("a turn ended after %d steps", at)
			}
			return
		}
		if _, err := m.full(); err != nil {
			t.Errorf("step %d: %v", at, err)
		}
		if held := m.settings(); held != untunedHost && held != tunedHost {
			t.Errorf("step %d: it is half, %q", at, held)
		}
		m.atTime("23 12:02")
		m.tended()
		m.tunedAs("when its time is over", untunedHost)
	}
}
