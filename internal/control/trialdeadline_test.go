package control

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/confirm"
	"bulkhead/internal/state"
)

// Where the watchdog of a change is dead and no other can be started, the agent undoes the change itself, and says why.
func TestAgentUndoesWithoutAWatchdog(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply(fifty)
	m.onTrial(api.Request{Verb: "set", Assign: []string{"jobs:tasks=7"}}, time.Minute)
	m.Controller.Watchdog = []string{"-no-such-flag"} // no test that runs takes it: it ends at once
	says := func(when string) {
		t.Helper()
		m.refresh()
		if err := m.MindTrial(t.Context()); err == nil || !strings.Contains(err.Error(), "start watchdog") {
			t.Errorf("%s it says %v", when, err)
		}
	}
	says("before the time")
	m.tasks("before the time", "7")
	disk := &faultyFS{fail: func(int) error { return syscall.ENOSPC }}
	m.onDisk(disk)
	if err := m.MindTrial(t.Context()); !errors.Is(err, syscall.ENOSPC) ||
		strings.Contains(err.Error(), "start watchdog") {
		t.Errorf("with a full disk it says %v", err)
	}
	disk.fail = nil
	m.atTime("23 12:01")
	says("at the time")
	m.tasks("at the time", "50")
	m.tended()
}

// However often the guard could not look, and however long it is therefore left alone, a change that nobody confirms is
// undone in time.
func TestRestOfTheGuardHoldsUpNoUndoing(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	m.atTime("23 12:00")
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], cpu: {limit: 1}, tasks: 50}\nguard: {groups: " +
		"{jobs: {throttled: 100%}}}\n")
	m.onTrial(api.Request{Verb: "set", Assign: []string{"jobs:tasks=7"}}, time.Hour)
	trial, err := state.OnTrial(m.Store)
	m.must(err)
	dog := confirm.NewSupervisor(m.Reconciler.Controller, trial.ID, ApplyRest(m.Reconciler.Controller))
	now := time.Now()
	dog.Clock = func() time.Time { return now }
	applied := filepath.Join(m.Store.Dir(), state.DocApplied+".json")
	m.must(os.Rename(applied, applied+".away")) // it knows of no policy
	failed := 0
	for range 300 {
		if over, err := dog.Once(t.Context()); over {
			t.Fatalf("it looks: %v", err)
		} else if err != nil {
			failed++
		}
		now = now.Add(time.Second)
	}
	if failed < 7 || failed > 12 {
		t.Errorf("it looked %d times in 300 s", failed)
	}
	for range 60 { // until a moment after a look
		if _, err := dog.Once(t.Context()); err != nil {
			break
		}
		now = now.Add(time.Second)
	}
	m.must(os.Rename(applied+".away", applied))
	m.atTime("23 13:00")
	m.refresh()
	now = now.Add(time.Second)
	if over, err := dog.Once(t.Context()); !over || err != nil {
		t.Errorf("late: %v, %v", over, err)
	}
	m.tasks("late", "50")
}
