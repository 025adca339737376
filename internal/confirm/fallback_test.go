package confirm

import (
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/journal"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// unreadable is a file system on which the history cannot be read for a while.
type unreadable struct {
	atomicfile.OS
	now *bool
}

func (u unreadable) ReadFile(name string) ([]byte, error) {
	if *u.now && filepath.Base(name) == "history.log" {
		return nil, syscall.EIO
	}
	return u.OS.ReadFile(name)
}

// Changes that were undone are counted since a trial was seen first. Where the history could not be read then, those
// before it are not counted as this one's; the next trial counts again.
func TestUndoneIsCountedSince(t *testing.T) {
	broken := false
	store, err := journal.Open(filepath.Join(t.TempDir(), "state"), journal.Options{FS: unreadable{now: &broken}})
	if err != nil {
		t.Fatal(err)
	}
	revert := func() {
		t.Helper()
		lock, err := store.Lock("test", "")
		if err == nil {
			defer lock.Release()
			_, err = store.Record(journal.Entry{Verb: "revert"})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	revert()
	revert()
	f := NewFallback(&transaction.Controller{Store: store}, nil)
	for i, c := range []struct {
		broken bool
		undone int64
	}{{true, 0}, {false, 1}, {false, 2}} {
		broken = c.broken
		f.see(&state.Trial{ID: strconv.Itoa(i + 1)})
		broken = false
		revert()
		f.see(nil)
		if got := f.Known().Undone; got != c.undone {
			t.Errorf("trial %d: %d are undone, want %d", i, got, c.undone)
		}
	}
}
