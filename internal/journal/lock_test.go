package journal

import (
	"bufio"
	"bulkhead/internal/atomicfile"
	"bulkhead/internal/journal/statedir"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// holdLock makes the test binary hold the lock of the directory it names, until it is killed.
const holdLock = "BULKHEAD_TEST_HOLD_LOCK"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdLock); dir != "" {
		s, err := Open(dir, Options{})
		if err == nil {
			_, err = s.Lock("apply", "alice")
		}
		if err == nil {
			_, err = s.Begin(Txn{Boot: boot, Verb: "apply", Changes: []Change{mkdir(cpu("/b"))}})
		}
		if err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString("held\n")
		time.Sleep(time.Minute)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestLockNamesItsHolder(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir, Options{Now: time.Now})
	lock, err := first.Lock("set", "bob")
	if err != nil {
		t.Fatal(err)
	}
	_, err = open(t, dir, Options{}).Lock("apply", "alice")
	var held *statedir.LockedError
	if !errors.As(err, &held) {
		t.Fatalf("second lock: %v, want *LockedError", err)
	}
	h := held.Holder
	if h.PID != os.Getpid() || h.Verb != "set" || h.Who != "bob" || time.Since(h.Since) > time.Minute {
		t.Errorf("holder %+v", h)
	}
	for _, part := range []string{"`bulkhead set`", "bob", dir} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not mention %q", err, part)
		}
	}
	if _, err := first.Lock("set", "bob"); !errors.As(err, &held) {
		t.Errorf("the same store locked twice: %v", err)
	}
	lock.Release()
	again, err := open(t, dir, Options{}).Lock("apply", "alice")
	if err != nil {
		t.Fatal(err)
	}
	lock.Release() // the one of the first store; must not touch the new one
	if _, err := first.Lock("set", "bob"); !errors.As(err, &held) || held.Holder.Verb != "apply" {
		t.Errorf("after a stale release: %v", err)
	}
	again.Release()
}

func TestKilledHolderLeavesNoLock(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdLock+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if said, _ := bufio.NewReader(out).ReadString('\n'); said != "held\n" {
		t.Fatalf("the other process said %q", said)
	}
	s := open(t, dir, Options{})
	_, err = s.Lock("rollback", "root")
	var held *statedir.LockedError
	if !errors.As(err, &held) || held.Holder.PID != cmd.Process.Pid || held.Holder.Who != "alice" {
		t.Fatalf("lock while held: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if _, err := s.Lock("rollback", "root"); err != nil {
		t.Fatalf("lock after kill -9: %v", err)
	}
	if p, ok := s.Pending(); !ok || p.Verb != "apply" {
		t.Error("the transaction of the killed process is not seen")
	}
}

// countingFS counts how often files are read.
type countingFS struct {
	atomicfile.OS
	reads map[string]int
}

func (f countingFS) ReadFile(name string) ([]byte, error) {
	f.reads[filepath.Base(name)]++
	return f.OS.ReadFile(name)
}

// Logs that were sound when the directory was opened, and that nobody has written to since, are not read again with the
// first lock; those that somebody has written to are.
func TestFirstLockReadsNothingAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	other, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	commit := func() {
		t.Helper()
		lock, err := other.Lock("test", "somebody")
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Release()
		id, err := other.Begin(Txn{Boot: "b", Verb: "apply"})
		if err == nil {
			err = other.End(id, Committed, "")
		}
		if err == nil {
			_, err = other.Record(Entry{Verb: "apply"})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	commit()
	for _, changed := range []bool{false, true} {
		files := countingFS{reads: map[string]int{}}
		s, err := Open(dir, Options{FS: files})
		if err != nil {
			t.Fatal(err)
		}
		if changed {
			commit()
		}
		opened := files.reads[logName]
		lock, err := s.Lock("test", "somebody else")
		if err != nil {
			t.Fatal(err)
		}
		if again := files.reads[logName] > opened; again != changed || opened == 0 {
			t.Errorf("somebody wrote: %v; it was read %d times, then %d", changed, opened, files.reads[logName])
		}
		if s.state.next != other.state.next {
			t.Errorf("the next transaction is %d, want %d", s.state.next, other.state.next)
		}
		lock.Release()
	}
}

// replacingFS has a log replaced by another one of the same length, just after it was read.
type replacingFS struct {
	atomicfile.OS
	by *[]byte // nil: no more
}

func (f replacingFS) ReadFile(name string) ([]byte, error) {
	text, err := f.OS.ReadFile(name)
	if other := *f.by; err == nil && other != nil && filepath.Base(name) == logName {
		*f.by = nil
		if len(other) != len(text) {
			return nil, errors.New("the other log has another length")
		}
		_, err = atomicfile.Write(f.OS, name, other, 0o600)
	}
	return text, err
}

// A log that was replaced while it was read without the lock is read again with the first lock.
func TestReplacedWhileRead(t *testing.T) {
	var texts [2][]byte
	var dirs [2]string
	for i, comm := range []string{"first", "other"} { // logs that differ in one word of the same length
		dirs[i] = filepath.Join(t.TempDir(), "state")
		s, err := Open(dirs[i], Options{Now: func() time.Time { return time.Unix(1, 0) }})
		if err != nil {
			t.Fatal(err)
		}
		lock, err := s.Lock("test", "somebody")
		if err == nil {
			_, err = s.Record(Entry{Boot: "b", Verb: "apply"})
		}
		if err == nil {
			_, err = s.Begin(Txn{Boot: "b", Verb: comm})
		}
		if err != nil {
			t.Fatal(err)
		}
		lock.Release()
		if texts[i], err = os.ReadFile(filepath.Join(dirs[i], logName)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(dirs[0], Options{FS: replacingFS{by: &texts[1]}})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := s.Lock("test", "somebody else")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	if p, _ := s.Pending(); p == nil || p.Verb != "other" {
		t.Errorf("the open transaction is %+v, want the one that is there now", p)
	}
}

// failingFS fails to read the history so many reads from now on.
type failingFS struct {
	atomicfile.OS
	in *int
}

func (f failingFS) ReadFile(name string) ([]byte, error) {
	if filepath.Base(name) == historyName {
		if *f.in--; *f.in == 0 {
			return nil, errors.New("the disk has an error")
		}
	}
	return f.OS.ReadFile(name)
}

// What could not be taken in is read again with the next lock.
func TestFailedLoadIsDoneAgain(t *testing.T) {
	dir, in := filepath.Join(t.TempDir(), "state"), 0
	other, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := other.Lock("test", "somebody")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Begin(Txn{Boot: "b", Verb: "apply"}); err != nil {
		t.Fatal(err)
	}
	if err := other.End(1, Committed, ""); err != nil {
		t.Fatal(err)
	}
	lock.Release()
	s, err := Open(dir, Options{FS: failingFS{in: &in}})
	if err != nil {
		t.Fatal(err)
	}
	if lock, err = other.Lock("test", "somebody"); err != nil {
		t.Fatal(err)
	}
	id, err := other.Begin(Txn{Boot: "b", Verb: "apply", Recorded: true})
	if err == nil {
		_, err = other.Record(Entry{Boot: "b", Verb: "apply", Txn: id})
	}
	if err != nil {
		t.Fatal(err)
	}
	lock.Release()
	in = 2 // the second read of a load looks for the end of the transaction
	if _, err := s.Lock("test", "me"); err == nil {
		t.Fatal("an error of the disk was not told")
	}
	if lock, err = s.Lock("test", "me"); err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	if s.state.next != other.state.next {
		t.Errorf("the next transaction is %d, want %d", s.state.next, other.state.next)
	}
}
