package journal

import (
	"bulkhead/internal/journal/statedir"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A transaction without an end is under way while somebody holds the lock, and cut off when nobody does.
func TestQuiet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	open := func() *Store {
		t.Helper()
		s, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	reader, writer := open(), open()
	looks := 0
	look := func() error { looks++; return nil }
	if by, err := reader.Quiet(look); by != nil || err != nil || looks != 1 {
		t.Fatalf("nothing was ever changed: %+v, %v, %d looks", by, err, looks)
	}
	lock, err := writer.Lock("apply", "ann")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Begin(Txn{Boot: "b", Verb: "apply",
		Changes: []Change{write(cpu("/a"), "cpu.max", "1", "2")}}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{reader, writer} {
		if by, err := s.Quiet(look); err != nil || by == nil || by.Verb != "apply" || by.Who != "ann" || looks != 1 {
			t.Errorf("under way: %+v, %v, %d looks", by, err, looks)
		}
	}
	lock.Release() // as the kernel does for one that was killed
	seen := false
	by, err := reader.Quiet(func() error {
		_, seen = reader.Pending()
		if _, err := writer.Lock("set", "bob"); !errors.As(err, new(*statedir.LockedError)) {
			t.Errorf("somebody may change something meanwhile: %v", err)
		}
		return nil
	})
	if by != nil || err != nil || !seen {
		t.Errorf("cut off: %+v, %v, pending %t", by, err, seen)
	}
	wrong := errors.New("wrong")
	if _, err := reader.Quiet(func() error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("the error of the look: %v", err)
	}
	if _, err := reader.Lock("rollback", "ann"); err != nil {
		t.Errorf("the lock was not given back: %v", err)
	}
}

// What was read stays read until somebody takes the lock, and no longer.
func TestSharedLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	reader, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	writer, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	shared := NewSharedLock(reader)
	t.Cleanup(func() { shared.Close(); _, _ = reader.Close(), writer.Close() })
	look := func(want bool) {
		t.Helper()
		by, err := shared.Quiet(func(same bool) error {
			if same != want {
				t.Errorf("the same: %t", same)
			}
			if _, err := writer.Lock("set", "bob"); !errors.As(err, new(*statedir.LockedError)) && shared.fd >= 0 {
				t.Errorf("somebody may change something meanwhile: %v", err)
			}
			return nil
		})
		if by != nil || err != nil {
			t.Errorf("%+v, %v", by, err)
		}
	}
	old := func() { // the clock of the file system may stand still between two writes
		t.Helper()
		before := time.Now().Add(-time.Second)
		if err := os.Chtimes(filepath.Join(dir, lockName), before, before); err != nil {
			t.Fatal(err)
		}
	}
	take := func() *Lock {
		t.Helper()
		lock, err := writer.Lock("apply", "ann")
		if err != nil {
			t.Fatal(err)
		}
		return lock
	}
	take().Release()
	look(false) // the first
	look(false) // the lock was given back only now: another change might bear the same time
	old()
	look(false)
	look(true)
	look(true)
	lock := take()
	if _, err := writer.Begin(Txn{Boot: "b", Verb: "apply"}); err != nil {
		t.Fatal(err)
	}
	by, err := shared.Quiet(func(bool) error { return errors.New("looked") })
	if err != nil || by == nil || by.Verb != "apply" {
		t.Errorf("under way: %+v, %v", by, err)
	}
	lock.Release()
	old()
	look(false)
	if _, pending := reader.Pending(); !pending {
		t.Error("what was written meanwhile was not read")
	}
	look(true)
	if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
		t.Fatal(err)
	}
	take().Release() // in another file
	old()
	look(false)
	look(false)
	look(true)
}
