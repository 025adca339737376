package journal

import (
	"errors"
	"path/filepath"
	"testing"
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
	if _, err := writer.Begin(Txn{Boot: "b", Verb: "apply", Changes: []Change{{Op: OpWrite, File: "cpu.max"}}}); err != nil {
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
		if _, err := writer.Lock("set", "bob"); !errors.As(err, new(*LockedError)) {
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
