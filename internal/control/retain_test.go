package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/reconcile"
)

// numbered is a policy of which a number is all that differs, and that keeps ten entries.
func numbered(n int) string {
	return fmt.Sprintf("host: {history: {entries: 10}}\ngroups:\n  jobs: {role: helper, match: [{exe: backup}], "+
		"tasks: %d}\n", 50+n)
}

// Revisions go with the history, but for those that somebody may still need; a rollback to one that went says so, and
// no number comes twice.
func TestRevisionsGoWithTheHistory(t *testing.T) {
	m := newMachine(t, "252.39")
	m.start("/usr/bin/backup all")
	for n := 1; n <= 14; n++ {
		if r := m.apply(numbered(n)); r.Revision != n || len(r.Notes) > 0 {
			t.Fatalf("apply %d: revision %d, %v", n, r.Revision, r.Notes)
		}
	}
	versions := func() []int {
		all, err := m.Store.Versions()
		m.must(err)
		return all
	}
	if got := versions(); slices.Contains(got, 2) || !slices.Contains(got, 14) || !slices.Contains(got, 13) {
		t.Errorf("sources are kept of %v", got)
	}
	if _, err := m.do(api.Request{Verb: "rollback", To: 2}); api.CodeOf(err) != api.CodeUsage ||
		!strings.Contains(err.Error(), "it is gone") {
		t.Errorf("back to a revision that is gone: %v", err)
	}
	if _, err := m.do(api.Request{Verb: "rollback", To: 99}); err == nil ||
		!strings.Contains(err.Error(), "never in force") {
		t.Errorf("back to one that never was: %v", err)
	}
	if r, err := m.do(api.Request{Verb: "rollback"}); err != nil || r.Like != 13 {
		t.Errorf("one back: %+v, %v", r, err)
	}
	m.reads("one back", jobsSlice, "pids.max", "63")

	// A change on trial goes back to what was in force before it, whatever is cut meanwhile.
	now := time.Now()
	m.Clock = func() time.Time { return now }
	if _, err := m.do(api.Request{Verb: "apply", Sources: m.policy(numbered(40)),
		ConfirmWithin: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for i := range 25 {
		m.must(m.lockedRecord(did("freeze", 0, "committed", fmt.Sprint(i))))
	}
	m.Reconciler = reconcile.New(m.Controller)
	if _, err := m.full(); err != nil {
		t.Fatal(err)
	}
	if h := historyOf(m.Reconciler.Controller, t); len(h) > 13 {
		t.Errorf("%d entries are left", len(h))
	}
	if _, err := m.do(api.Request{Verb: "rollback"}); err != nil {
		t.Fatal(err)
	}
	m.reads("undone", jobsSlice, "pids.max", "63")
	if _, err := m.do(api.Request{Verb: "rollback"}); err != nil {
		t.Errorf("one back once more: %v", err)
	}
	if r := m.apply(numbered(41)); r.Revision < 17 {
		t.Errorf("a number comes twice: %d", r.Revision)
	}
}

// lockedRecord adds an entry to the history.
func (m *machine) lockedRecord(e journal.Entry) error {
	lock, err := m.Lock(m.t.Context(), "test", "test")
	if err != nil {
		return err
	}
	defer lock.Release()
	_, err = m.Store.Record(e)
	return err
}
