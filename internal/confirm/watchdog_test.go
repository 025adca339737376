package confirm

import (
	"testing"

	"bulkhead/internal/apply"
	"bulkhead/internal/journal"
	"bulkhead/internal/transaction"
)

// A watchdog that finds its change undone leaves everything as it is, also while somebody else has the lock.
func TestBiteWhileSomebodyElseChanges(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	other, err := journal.Open(state, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c, err := transaction.Open(transaction.Options{State: state})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lock, err := other.Lock("apply", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	id, err := other.Begin(journal.Txn{Boot: "b", Verb: "apply"})
	if err != nil {
		t.Fatal(err)
	}
	if err := takeBackByJournal(t.Context(), c, apply.Guarded{Txn: id}); err == nil {
		t.Error("what is under way counts as undone")
	}
	if err := other.End(id, journal.Undone, ""); err != nil {
		t.Fatal(err)
	}
	if err := takeBackByJournal(t.Context(), c, apply.Guarded{Txn: id}); err != nil {
		t.Error(err)
	}
}
