package journal

import (
	"bulkhead/internal/journal/statedir"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// deed is one call of a scenario, with what must hold from then on once it returned without an
// error: after later deeds too, and when the power goes.
type deed struct {
	name string
	do   func(s *Store) error
	held func(s *Store) bool
}

// scenario goes through everything that writes.
func scenario() []deed {
	var id uint64
	begun := func(n uint64) func(*Store) bool {
		return func(s *Store) bool { return s.state.next > n }
	}
	ended := func(n uint64, d string) func(*Store) bool {
		return func(s *Store) bool {
			p, open := s.Pending()
			return s.state.next > n && (!open || p.ID != n) && s.InBoot(boot).Made()[cpu(d)]
		}
	}
	begin := func(d string) func(s *Store) error {
		return func(s *Store) (err error) {
			id, err = s.Begin(Txn{Boot: boot, Verb: "apply", Recorded: true, Changes: []Change{mkdir(cpu(d))}})
			return err
		}
	}
	end := func(s *Store) error { return s.End(id, Committed, "") }
	entries := func(n int) func(*Store) bool {
		return func(s *Store) bool { h, err := s.History(); return err == nil && len(h) >= n }
	}
	document := func(texts ...string) func(*Store) bool {
		return func(s *Store) bool {
			var got string
			_, err := s.Load("applied", &got)
			return err == nil && slices.Contains(texts, got)
		}
	}
	return []deed{
		{"lock", func(s *Store) error { _, err := s.Lock("apply", "root"); return err },
			func(*Store) bool { return true }},
		{"begin", begin("/b"), begun(1)},
		{"moves", func(s *Store) error { return s.Moves(id, []Change{move(1, cpu("/b"), "/u")}) }, begun(1)},
		{"end", end, ended(1, "/b")},
		{"record", func(s *Store) error { _, err := s.Record(Entry{Verb: "apply", Txn: id}); return err }, entries(1)},
		{"home", func(s *Store) error { return s.Home(boot, "g", map[string]string{"cpu": "/u"}) },
			func(s *Store) bool {
				_, group := s.InBoot(boot).Homes()
				return group["g"]["cpu"] == "/u"
			}},
		{"save", func(s *Store) error { return s.Save("applied", "one") }, document("one", "two")},
		{"save again", func(s *Store) error { return s.Save("applied", "two") }, document("two")},
		{"begin, compacting first", begin("/b/1"), begun(2)},
		{"second end", end, ended(2, "/b/1")},
		{"second record", func(s *Store) error { _, err := s.Record(Entry{Verb: "set", Txn: id}); return err },
			entries(2)},
	}
}

// calls is how many operations of the file system the scenario makes.
func calls(t *testing.T) int {
	t.Helper()
	fs := newMemFS()
	s := open(t, t.TempDir(), Options{FS: fs, CompactAt: 1})
	for _, d := range scenario() {
		if err := d.do(s); err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		if !d.held(s) {
			t.Fatalf("%s had no effect", d.name)
		}
	}
	renamed := slices.ContainsFunc(fs.log,
		func(c fsCall) bool { return c.op == "rename" && strings.Contains(c.name, logName) })
	if !renamed {
		t.Fatal("the scenario does not compact")
	}
	return fs.calls
}

// One call fails, everything goes on: a deed either returns an error and had no effect, or it had its
// effect, durably. The same deed done again succeeds.
func TestOneFailingCall(t *testing.T) {
	faults := map[string]any{"ENOSPC": syscall.ENOSPC, "EIO": syscall.EIO, "EROFS": syscall.EROFS,
		"short": shortWrite(5), "nothing": shortWrite(0)}
	n := calls(t)
	for name, fault := range faults {
		root := t.TempDir()
		for at := range n {
			fs := newMemFS()
			fs.fail = func(call int, _ fsCall) any {
				if call == at {
					return fault
				}
				return nil
			}
			o := Options{FS: fs, Now: clock(), CompactAt: 1}
			s, err := Open(root, o)
			if err != nil {
				s, err = Open(root, o)
			}
			if err != nil {
				t.Fatalf("%s at call %d: Open twice: %v", name, at, err)
			}
			for _, d := range scenario() {
				if err := withFault(s, d, fs, root); err != nil {
					t.Fatalf("%s at call %d (%v): %s: %v", name, at, fs.log[at], d.name, err)
				}
			}
			s.Close()
		}
	}
}

// withFault does a deed, twice if the first time fails, and checks what is said and what is on disk.
func withFault(s *Store, d deed, fs *memFS, root string) error {
	before := summary(s, boot)
	first := d.do(s)
	cut := fs.powerCut()
	if first != nil {
		if after := summary(s, boot); after != before {
			return fmt.Errorf("failed (%w) and yet changed\n%s\nto\n%s", first, before, after)
		}
		var fe *statedir.Error
		if !errors.As(first, &fe) || !strings.Contains(first.Error(), root) {
			return fmt.Errorf("the error does not name the file: %w", first)
		}
		if statedir.Hint(first) == "" && !errors.Is(first, io.ErrShortWrite) {
			return fmt.Errorf("the error has no hint: %w", first)
		}
		if err := says(fs.killed(), root, before); err != nil {
			return fmt.Errorf("failed (%w), then kill -9: %w", first, err)
		}
		if err := d.do(s); err != nil {
			return fmt.Errorf("again: %w", err)
		}
	}
	held := d.held(s)
	if !held {
		held = d.held(s) // the failing call may have been one of the check's own
	}
	if !held {
		return errors.New("no effect")
	}
	if d.name == "moves" {
		return nil // not synced, by contract
	}
	after := summary(s, boot)
	if err := says(fs.powerCut(), root, after); err != nil {
		return fmt.Errorf("then a power cut: %w", err)
	}
	if first == nil || strings.Contains(before, `"kind": "membership"`) {
		return nil
	}
	// With the power gone right after the failure, the record may have made it to the disk or not.
	if err := says(cut, root, before); err != nil && says(cut, root, after) != nil {
		return fmt.Errorf("failed (%w), then a power cut: %w", first, err)
	}
	return nil
}

// says opens a store over fs and compares what it says.
func says(fs *memFS, root, want string) error {
	s, err := Open(root, Options{FS: fs})
	if err != nil {
		return err
	}
	defer s.Close()
	if got := summary(s, boot); got != want || len(s.Warnings()) > 0 {
		return fmt.Errorf("got\n%s\nwant\n%s\nwarnings %q", got, want, s.Warnings())
	}
	return nil
}

// From one call on nothing works any more, as after kill -9 or with the power gone. What came before
// holds; what was under way holds or does not; nothing is damaged.
func TestCrashAtEveryCall(t *testing.T) {
	n := calls(t)
	root := t.TempDir()
	for at := range n {
		fs := newMemFS()
		fs.fail = func(call int, _ fsCall) any {
			if call >= at {
				return errPowerOff
			}
			return nil
		}
		var done []deed
		s, err := Open(root, Options{FS: fs, CompactAt: 1})
		if err == nil {
			for _, d := range scenario() {
				if d.do(s) != nil {
					break
				}
				done = append(done, d)
			}
			s.Close()
		}
		for name, left := range map[string]*memFS{"kill": fs.killed(), "power cut": fs.powerCut()} {
			again, err := Open(root, Options{FS: left})
			if err != nil {
				t.Fatalf("%s at call %d: %v", name, at, err)
			}
			if _, err := again.Lock("rollback", "root"); err != nil {
				t.Fatalf("%s at call %d: %v", name, at, err)
			}
			for _, f := range left.list() {
				if strings.Contains(f, ".damaged-") {
					t.Fatalf("%s at call %d: %q: %v", name, at, f, again.Warnings())
				}
			}
			for _, d := range done {
				if !d.held(again) {
					t.Fatalf("%s at call %d: %s was lost: %s", name, at, d.name, summary(again, boot))
				}
			}
			again.Close()
		}
	}
}

func TestReadOnlyDirectory(t *testing.T) {
	fs := newMemFS()
	fs.fail = func(_ int, c fsCall) any {
		if c.op == "read" {
			return nil
		}
		return syscall.EROFS
	}
	s := open(t, t.TempDir(), Options{FS: fs})
	if _, err := s.Lock("apply", "root"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Begin(Txn{Boot: boot, Changes: []Change{mkdir(cpu("/b"))}})
	if !errors.Is(err, syscall.EROFS) || !strings.Contains(statedir.Hint(err), "--state") {
		t.Errorf("Begin: %v (hint %q)", err, statedir.Hint(err))
	}
	if _, ok := s.Pending(); ok {
		t.Error("a transaction is open that was never written")
	}
}

// A directory that cannot be made says so, with its name.
func TestDirectoryThatCannotBeMade(t *testing.T) {
	root := t.TempDir()
	file := root + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(file+"/state", Options{})
	if err == nil {
		_, err = s.Lock("apply", "root")
	}
	if !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), file+"/state") {
		t.Errorf("got %v", err)
	}
}
