package journal

import (
	"reflect"
	"testing"

	"bulkhead/internal/linux/procfs"
)

func TestTwoStoresSeeEachOther(t *testing.T) {
	dir := t.TempDir()
	a, b := locked(t, dir, Options{}), open(t, dir, Options{})
	commit(t, a, mkdir(cpu("/bulkhead")))
	a.Close()
	if len(b.InBoot(boot).Made()) != 0 {
		t.Error("b was not expected to have looked again")
	}
	lock, err := b.Lock("set", "root")
	if err != nil {
		t.Fatal(err)
	}
	if !b.InBoot(boot).Made()[cpu("/bulkhead")] {
		t.Error("b does not see what a committed")
	}
	commit(t, b, mkdir(cpu("/bulkhead/a")))
	lock.Release()
	lock.Release() // does nothing
	c := locked(t, dir, Options{CompactAt: 1})
	commit(t, c, mkdir(cpu("/bulkhead/b"))) // compacts: b's open file is no longer the log
	c.Close()
	if _, err := b.Lock("set", "root"); err != nil {
		t.Fatal(err)
	}
	commit(t, b, mkdir(cpu("/bulkhead/c")))
	if got := len(open(t, dir, Options{}).InBoot(boot).Made()); got != 4 {
		t.Errorf("%d directories, want 4", got)
	}
}

func TestCompaction(t *testing.T) {
	dir := t.TempDir()
	alive := map[int]bool{1: true}
	o := Options{CompactAt: 2000, Now: clock(), Alive: func(id procfs.ID) bool { return alive[id.PID] }}
	s := locked(t, dir, o)
	id, err := s.Begin(Txn{Boot: "past", Changes: []Change{mkdir(cpu("/old"))}})
	if err == nil {
		err = s.End(id, Committed, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, mkdir(cpu("/bulkhead")), score(1, "0", "500"), score(2, "0", "500"), move(1, cpu("/bulkhead"), "/u1"),
		move(2, cpu("/bulkhead"), "/u2"))
	if err := s.Home(boot, "a", map[string]string{"cpu": "/u1"}); err != nil {
		t.Fatal(err)
	}
	largest := int64(0)
	for range 50 {
		commit(t, s, write(cpu("/x"), "cpu.shares", "1024", "5"))
		commit(t, s, write(cpu("/x"), "cpu.shares", "5", "1024"))
		largest = max(largest, s.log.Size)
	}
	if largest > 6000 {
		t.Errorf("the log grew to %d bytes", largest)
	}
	if len(s.Warnings()) > 0 {
		t.Errorf("warnings %q", s.Warnings())
	}
	for _, s := range []*Store{s, open(t, dir, o)} {
		if len(s.InBoot("past").Made()) != 0 {
			t.Error("a past boot survived compaction")
		}
		process, group := s.InBoot(boot).Homes()
		if len(process) != 1 || group["a"]["cpu"] != "/u1" || !s.InBoot(boot).Made()[cpu("/bulkhead")] ||
			len(s.InBoot(boot).Scores()) != 1 {
			t.Errorf("after compaction: %s", summary(s, boot))
		}
	}
	next, err := s.Begin(Txn{Boot: boot})
	if err != nil || next != 103 {
		t.Errorf("next transaction is %d (%v), want 103", next, err)
	}
}

// Placing a process must not wait for the disk: only what would matter after a power cut is synced.
func TestMovesAloneAreNotSynced(t *testing.T) {
	fs := newMemFS()
	dir := t.TempDir()
	s := open(t, dir, Options{FS: fs})
	if _, err := s.Lock("look", "agent"); err != nil {
		t.Fatal(err)
	}
	syncs := func() (n int) {
		for _, c := range fs.log {
			if c.op == "sync" {
				n++
			}
		}
		return n
	}
	place := func(pid int, from string, recorded bool) (cost int) {
		t.Helper()
		before := syncs()
		id, err := s.Begin(Txn{Boot: boot, Verb: "look", Recorded: recorded,
			Homes: []Home{{Group: "g", From: map[string]string{"cpu": from}}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Moves(id, []Change{move(pid, cpu("/b"), from)}); err != nil {
			t.Fatal(err)
		}
		if p, open := open(t, dir, Options{FS: fs.killed()}).Pending(); !open || p.ID != id || len(p.Changes) != 1 {
			t.Errorf("after kill -9 the move of process %d is not known: %+v", pid, p)
		}
		if err := s.End(id, Committed, ""); err != nil {
			t.Fatal(err)
		}
		if _, open := open(t, dir, Options{FS: fs.killed()}).Pending(); open {
			t.Errorf("after kill -9 the move of process %d is not ended", pid)
		}
		return syncs() - before
	}
	if got := place(1, "/u", false); got < 2 {
		t.Errorf("the first from a place cost %d syncs: its home must outlive a power cut", got)
	}
	if got := place(2, "/u", false); got != 0 {
		t.Errorf("the second from the same place cost %d syncs", got)
	}
	if got := place(3, "/v", false); got != 0 {
		t.Errorf("one from another place cost %d syncs: the group has its home", got)
	}
	if got := place(4, "/u", true); got < 2 {
		t.Errorf("one for the history cost %d syncs", got)
	}
	place(5, "/u", false)
	again := open(t, dir, Options{FS: fs.powerCut()})
	if _, group := again.InBoot(boot).Homes(); group["g"]["cpu"] != "/u" {
		t.Errorf("after a power cut the home of the group is %v", group["g"])
	}
	if w := again.Warnings(); len(w) != 0 {
		t.Errorf("after a power cut: %q", w)
	}
}

func sameChange(a, b Change) bool { return reflect.DeepEqual(a, b) }
