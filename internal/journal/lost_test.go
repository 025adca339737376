package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal/statedir"
)

// recordedTxn does a transaction as apply does one: with an entry in the history.
func recordedTxn(t *testing.T, s *Store, verb string, changes ...Change) {
	t.Helper()
	txn := Txn{Boot: boot, Verb: verb, Recorded: true, Changes: slices.DeleteFunc(slices.Clone(changes), isMove)}
	for _, c := range changes {
		if isMove(c) {
			txn.Homes = append(txn.Homes, Home{c.Group, map[string]string{"cpu": c.Old}})
		}
	}
	id, err := s.Begin(txn)
	if moves := slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return !isMove(c) }); err == nil &&
		len(moves) > 0 {
		err = s.Moves(id, moves)
	}
	if err == nil {
		err = s.End(id, Committed, "")
	}
	if err == nil {
		txn.ID, txn.Changes = id, changes
		_, err = s.Record(EntryOf(&txn, Committed, ""))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func isMove(c Change) bool { return c.Kind == cgroup.KindMembership }

// several fills a state directory with the transactions of three applies.
func several(t *testing.T, dir string) {
	t.Helper()
	s := locked(t, dir, Options{})
	inside := func(pid int, d, from string) Change {
		c := move(pid, cpu(d), from)
		c.Group = filepath.Base(d)
		return c
	}
	subtree := func(from, to string) Change { return write(cpu("/"), cgroup.SubtreeControl, from, to) }
	recordedTxn(t, s, "apply", subtree("", "cpu"), mkdir(cpu("/b")), mkdir(cpu("/b/one")), inside(1, "/b/one", "/u"))
	recordedTxn(t, s, "apply", subtree("cpu", "cpu memory"), mkdir(cpu("/b/two")), inside(2, "/b/two", "/v"),
		score(2, "0", "500"))
	recordedTxn(t, s, "apply", mkdir(cpu("/b/three")), inside(2, "/b/three", "/b/two"), rmdir(cpu("/b/two")))
	s.Close()
}

// Whichever record of several transactions is damaged, the history tells what it held: nothing that was
// made, no original and no home is lost, nothing counts as interrupted, and the warning stays.
func TestHistoryStandsInForDamagedRecords(t *testing.T) {
	sound := t.TempDir()
	several(t, sound)
	want := summary(open(t, sound, Options{}), boot)
	data, err := os.ReadFile(filepath.Join(sound, logName))
	if err != nil {
		t.Fatal(err)
	}
	n := bytes.Count(data, []byte("\n"))
	if n != 10 {
		t.Fatalf("the sample has %d records:\n%s", n, data)
	}
	start := 0
	for i := range n {
		dir := t.TempDir()
		several(t, dir)
		damaged := slices.Clone(data)
		damaged[start+20] ^= 1
		start += bytes.IndexByte(data[start:], '\n') + 1
		if err := os.WriteFile(filepath.Join(dir, logName), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		torn := i == n-1 // the last one may as well be the end of an interrupted append
		check := func(when string, s *Store, warn bool) {
			t.Helper()
			if got := summary(s, boot); got != want {
				t.Errorf("record %d damaged, %s: got\n%s\nwant\n%s", i, when, got, want)
			}
			if (len(s.Warnings()) > 0) != warn {
				t.Errorf("record %d damaged, %s: warnings %q", i, when, s.Warnings())
			}
		}
		check("before the lock", open(t, dir, Options{}), true)
		s := locked(t, dir, Options{})
		check("locked", s, true)
		s.Close()
		check("mended", open(t, dir, Options{}), !torn)
		s = locked(t, dir, Options{CompactAt: 1})
		check("locked again", s, !torn)
		recordedTxn(t, s, "set", write(cpu("/b/one"), "cpu.shares", "1", "2"))
		s.Close()
		check("compacted", open(t, dir, Options{}), !torn)
		s = locked(t, dir, Options{})
		recordedTxn(t, s, "release", score(2, "500", "0"), move(1, cpu("/u"), "/b/one"), move(2, cpu("/v"), "/b/three"),
			rmdir(cpu("/b/one")), rmdir(cpu("/b/three")), rmdir(cpu("/b")),
			write(cpu("/"), cgroup.SubtreeControl, "cpu memory", ""))
		s.Close()
		if s := open(t, dir, Options{}); len(s.InBoot(boot).Made()) > 0 || len(s.InBoot(boot).Originals()) > 0 ||
			len(s.Warnings()) > 0 {
			t.Errorf("record %d damaged, released: %s %q", i, summary(s, boot), s.Warnings())
		}
	}
}

// With the whole journal gone the history tells; later transactions are numbered on, so that it goes on telling.
func TestHistoryStandsInForALostJournal(t *testing.T) {
	dir := t.TempDir()
	several(t, dir)
	want := summary(open(t, dir, Options{}), boot)
	if err := os.Remove(filepath.Join(dir, logName)); err != nil {
		t.Fatal(err)
	}
	s := locked(t, dir, Options{})
	if got := summary(s, boot); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	recordedTxn(t, s, "apply", mkdir(cpu("/b/four")))
	s.Close()
	s = open(t, dir, Options{})
	if made := s.InBoot(boot).Made(); len(made) != 4 || !made[cpu("/b/four")] || !made[cpu("/b/one")] {
		t.Errorf("made %v", made)
	}
	if w := s.Warnings(); len(w) != 1 || !strings.Contains(w[0], "lacks records") {
		t.Errorf("warnings %q", w)
	}
}

// What was lost in an earlier boot is over with it.
func TestLossesEndWithTheBoot(t *testing.T) {
	dir := t.TempDir()
	several(t, dir)
	if err := os.Remove(filepath.Join(dir, logName)); err != nil {
		t.Fatal(err)
	}
	s := locked(t, dir, Options{})
	const later = "22222222-2222-4222-8222-222222222222"
	id, err := s.Begin(Txn{Boot: later, Changes: []Change{mkdir(cpu("/b"))}})
	if err == nil {
		err = s.End(id, Committed, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s := open(t, dir, Options{}); len(s.InBoot(later).Made()) != 1 || len(s.Warnings()) > 0 {
		t.Errorf("made %v, warnings %q", s.InBoot(later).Made(), s.Warnings())
	}
}

// A log of an older format says from its first new record on that an older version cannot read it.
func TestOlderLogSaysItsFormat(t *testing.T) {
	dir := t.TempDir()
	head, _ := statedir.Line(record{Kind: kindFormat, Version: formatVersion - 1})
	if err := os.WriteFile(filepath.Join(dir, logName), head, 0o600); err != nil {
		t.Fatal(err)
	}
	s := locked(t, dir, Options{})
	commit(t, s, write(cpu("/b"), "cpu.shares", "1", "2"))
	commit(t, s, write(cpu("/b"), "cpu.shares", "2", "3"))
	text, err := os.ReadFile(filepath.Join(dir, logName))
	if got := strings.Count(string(text), fmt.Sprintf(`"version":%d`, formatVersion)); err != nil || got != 1 {
		t.Errorf("%d records of the format, %v:\n%s", got, err, text)
	}
}
