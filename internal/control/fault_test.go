package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/atomicfile"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
)

// faultyFS is the real file system, which fails where a test says: at a call by its number, or from there on.
type faultyFS struct {
	calls int
	fail  func(call int) error
	// before is called before each call.
	before func()
}

func (f *faultyFS) call() error {
	f.calls++
	if f.before != nil {
		f.before()
	}
	if f.fail == nil {
		return nil
	}
	return f.fail(f.calls - 1)
}

func (f *faultyFS) Open(name string, flag int, perm fs.FileMode) (atomicfile.File, error) {
	if flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE) != 0 {
		if err := f.call(); err != nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
	file, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return faultyFile{file, f}, nil
}

func (f *faultyFS) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

func (f *faultyFS) Rename(from, to string) error {
	if err := f.call(); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return os.Rename(from, to)
}

func (f *faultyFS) Remove(name string) error {
	if err := f.call(); err != nil {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	return os.Remove(name)
}

type faultyFile struct {
	*os.File

	fs *faultyFS
}

// Write takes a part of what it is given when it fails, as a full disk does.
func (f faultyFile) Write(b []byte) (int, error) {
	if err := f.fs.call(); err != nil {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, &fs.PathError{Op: "write", Path: f.Name(), Err: err}
	}
	return f.File.Write(b)
}

func (f faultyFile) Sync() error {
	if err := f.fs.call(); err != nil {
		return &fs.PathError{Op: "sync", Path: f.Name(), Err: err}
	}
	return f.File.Sync()
}

func (f faultyFile) Truncate(size int64) error {
	if err := f.fs.call(); err != nil {
		return &fs.PathError{Op: "truncate", Path: f.Name(), Err: err}
	}
	return f.File.Truncate(size)
}

// onDisk has the machine's state directory on a file system, from now on.
func (m *machine) onDisk(files atomicfile.FS) {
	m.t.Helper()
	dir := m.Store.Dir()
	m.must(m.Store.Close())
	store, err := journal.Open(dir, journal.Options{Alive: m.Host.Proc.Alive, FS: files})
	m.must(err)
	m.Store = store
}

// diskCase is something that is done, and what was done before it.
type diskCase struct {
	name   string
	before func(m *machine, job, idle procfs.ID)
	do     func(m *machine, job, idle procfs.ID) error
	agent  bool // nobody asked for it: it is tried again, and tells nobody but the log
	// changes says that it changes limits when it is done, and lifts that it takes those of jobs away whatever the disk
	// does.
	changes, lifts bool
}

// diskCases are changes that write to the state directory.
var diskCases = func() []diskCase {
	const two = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50, cpu: {limit: 1}}\n  web: {match: " +
		"[{exe: httpd}], tasks: 60}\n"
	const other = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 70}\n"
	const night = two + "schedules: [{name: night, when: \"0 22 * * *\", zone: UTC, for: 6h, set: {jobs: {tasks: " +
		"500}}}]\n"
	const others = "host: {others: {weight: 10}}\n" + two
	verb := func(q api.Request) func(*machine, procfs.ID, procfs.ID) error {
		return func(m *machine, job, _ procfs.ID) error {
			switch q.Verb {
			case "apply":
				q.Sources = m.policy(q.Reason)
			case "move":
				q.PIDs = []int{job.PID}
			}
			_, err := m.do(q)
			return err
		}
	}
	first := func(m *machine, _, _ procfs.ID) { m.apply(two) }
	after := func(q api.Request) func(*machine, procfs.ID, procfs.ID) {
		return func(m *machine, job, idle procfs.ID) {
			m.apply(two)
			m.must(verb(q)(m, job, idle))
		}
	}
	at := func(hour int) func() time.Time {
		return func() time.Time { return time.Date(2026, 11, 23, hour, 0, 0, 0, time.UTC) }
	}
	look := func(m *machine, _, _ procfs.ID) error { _, err := m.full(); return err }
	trial := api.Request{Verb: "apply", Reason: other, ConfirmWithin: time.Hour}
	set, freeze := api.Request{Verb: "set", Assign: []string{"jobs:tasks=90", "web:tasks=30"}, For: time.Hour},
		api.Request{Verb: "freeze", Groups: []string{"jobs"}, For: time.Hour}
	return []diskCase{
		{"apply", nil, verb(api.Request{Verb: "apply", Reason: two}), false, true, false},
		{"apply another", first, verb(api.Request{Verb: "apply", Reason: other}), false, true, false},
		{"apply with others", nil, verb(api.Request{Verb: "apply", Reason: others}), false, true, false},
		{"apply on trial", first, verb(trial), false, true, false},
		{"confirm", after(trial), verb(api.Request{Verb: "confirm"}), false, false, false},
		{"set for a time", first, verb(set), false, true, false},
		{"unset", after(set), verb(api.Request{Verb: "unset", Assign: []string{"jobs:tasks"}}), false, true, false},
		{"move", first, verb(api.Request{Verb: "move", Group: "web", Force: true, Reason: "by hand"}), false, true,
			false},
		{"freeze", first, verb(freeze), false, false, false},
		{"thaw", after(freeze), verb(api.Request{Verb: "thaw", Groups: []string{"jobs"}}), false, false, false},
		{"release a group", first, verb(api.Request{Verb: "release", Groups: []string{"jobs"}}), false, true, true},
		{"release everything", first, verb(api.Request{Verb: "release", All: true}), false, true, true},
		{"rollback", after(api.Request{Verb: "apply", Reason: other}), verb(api.Request{Verb: "rollback", To: 1}),
			false, true,
			false},
		{"a window opens", func(m *machine, _, _ procfs.ID) { m.Clock = at(12); m.apply(night); m.Clock = at(23) },
			look, true, true, false},
		{"an override ends", func(m *machine, job, idle procfs.ID) {
			m.Clock = at(12)
			after(set)(m, job, idle)
			m.Clock = at(14)
		}, look, true, true, false},
		{"a process becomes another", first, func(m *machine, job, idle procfs.ID) error {
			m.run(idle.PID, 1, "/usr/bin/backup more")
			return look(m, job, idle)
		}, true, true, false},
	}
}()

// A disk that is full, broken or read-only while a verb runs, at any call of it: the verb is done, or says what to do,
// and in both cases nothing was changed that cannot be undone. When the disk is well again, a release by the next
// process gives the host back.
func TestVerbsOnAFailingDisk(t *testing.T) {
	t.Parallel()
	for i, c := range diskCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			calls := failOnDisk(t, c, func(int) error { return nil })
			if calls == 0 {
				t.Fatal("it writes nothing down")
			}
			step := 10 // every call with FAULTS=all
			if os.Getenv("FAULTS") == "all" {
				step = 1
			}
			for call := i % step; call < calls; call += step {
				for _, f := range []struct {
					name string
					fail func(n int) error
				}{
					{"EIO once", func(n int) error { return errIf(n == call, syscall.EIO) }},
					{"full from then on", func(n int) error { return errIf(n >= call, syscall.ENOSPC) }},
					{"read-only from then on", func(n int) error { return errIf(n >= call, syscall.EROFS) }},
				} {
					t.Run(fmt.Sprintf("call %d of %d, %s", call, calls, f.name), func(t *testing.T) {
						failOnDisk(t, c, f.fail)
					})
				}
			}
		})
	}
}

// holds is every limit there is, and where processes are.
func (m *machine) holds(all ...procfs.ID) string {
	var b strings.Builder
	for line := range strings.Lines(m.kernel.Dump()) {
		if !strings.Contains(line, "processes = ") { // keepers come and go
			b.WriteString(line)
		}
	}
	for _, p := range all {
		fmt.Fprintf(&b, "process %d in %s\n", p.PID, m.where(p))
	}
	return b.String()
}

func errIf(fails bool, err error) error {
	if fails {
		return err
	}
	return nil
}

// failOnDisk does something on a disk that fails, and then gives the host back on one that is well. It gives the number
// of calls.
func failOnDisk(t *testing.T, c diskCase, fail func(call int) error) int {
	t.Helper()
	m := newMachine(t, "252.39")
	m.start("/usr/bin/httpd")
	job, idle := m.start("/usr/bin/backup all"), m.start("/usr/bin/idle")
	first := m.state()
	if c.before != nil {
		c.before(m, job, idle)
	}
	disk := &faultyFS{before: m.refresh} // what was moved is in /proc
	m.onDisk(disk)
	before := m.holds(job, idle)
	disk.fail, disk.calls = fail, 0
	err := c.do(m, job, idle)
	calls := disk.calls
	disk.fail = nil
	inForce := false
	if err != nil && !c.agent {
		if !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EROFS) {
			t.Errorf("the error does not say what is wrong with the disk: %v", err)
		}
		if api.HintOf(err) == "" || !strings.Contains(err.Error()+api.HintOf(err), m.Store.Dir()) {
			t.Errorf("it does not say what to do: %v (hint %q)", err, api.HintOf(err))
		}
		// After the commit what was asked for is in force, and the next process writes it down.
		inForce = strings.Contains(err.Error(), "the change is in force, but is not recorded yet")
		unknown := strings.Contains(err.Error(), "the change is in force, but is not known to be recorded")
		exit := strings.Contains(err.Error(), "released, but that could not be recorded") ||
			strings.Contains(err.Error(), "record the thaw") // the ways out come first
		if (unknown || inForce) && m.holds(job, idle) == before && c.changes {
			t.Errorf("it says that it is in force, and nothing has changed: %v", err)
		}
		if c.lifts && strings.Contains(m.holds(job, idle), "pids.max = 50") {
			t.Errorf("it is not released (%v):\n%s", err, m.holds(job, idle))
		}
		if _, pending := m.Store.Pending(); !pending && !inForce && !unknown && !exit && m.holds(job, idle) != before {
			t.Errorf("it failed (%v) with nothing left to undo, and changed:\n%s", err,
				differs(m.holds(job, idle), before))
		}
	}
	left := m.state()
	m.reopened(-1) // another process, with the disk well again
	if _, err := m.full(); err != nil {
		t.Errorf("a look when the disk is well: %v", err)
	}
	if now := m.state(); inForce && now != left {
		t.Errorf("it was in force (%v), and is no more:\n%s", err, differs(now, left))
	}
	m.release()
	if after := m.state(); after != first {
		t.Errorf("after a release (%v):\n%s", err, differs(after, first))
	}
	return calls
}
