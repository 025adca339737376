package journal

import (
	"bulkhead/internal/journal/statedir"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestHistory(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	s := locked(t, dir, Options{Now: func() time.Time { return now }})
	e := Entry{Verb: "set", By: "alice", Reason: "month end", Boot: boot, Outcome: Committed, Revision: 3, Txn: 7,
		Changes: []Change{write(cpu("/b"), "cpu.shares", "1", "2")}, Text: "a:cpu.limit=2"}
	if n, err := s.Record(e); n != 1 || err != nil {
		t.Fatalf("first entry %d, %v", n, err)
	}
	s.Close()
	s = locked(t, dir, Options{})
	if n, err := s.Record(Entry{Verb: "release", Time: now.Add(time.Hour)}); n != 2 || err != nil {
		t.Fatalf("second entry %d, %v", n, err)
	}
	got, err := s.History()
	if err != nil || len(got) != 2 {
		t.Fatalf("history %v, %v", got, err)
	}
	e.N, e.Time = 1, now
	if fmt.Sprint(got[0]) != fmt.Sprint(e) {
		t.Errorf("got  %+v\nwant %+v", got[0], e)
	}
	if got[1].N != 2 || !got[1].Time.Equal(now.Add(time.Hour)) {
		t.Errorf("second %+v", got[1])
	}
	heads, err := s.Heads()
	if err != nil || len(heads) != 2 {
		t.Fatalf("heads %v, %v", heads, err)
	}
	e.Changes, e.Text = nil, ""
	if fmt.Sprint(heads[0]) != fmt.Sprint(e) || heads[1].N != 2 || heads[1].Verb != "release" {
		t.Errorf("heads %+v\nwant  %+v", heads, e)
	}
}

// BenchmarkOpen opens a state directory with no history and with one as long as it gets, as every verb does first.
func BenchmarkOpen(b *testing.B) {
	for name, mib := range map[string]int{"fresh": 0, "7MiB": 7} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			s := locked(b, dir, Options{})
			for i := 0; s.history.Size < int64(mib)<<20; i++ {
				e := Entry{Verb: "apply", By: "root", Boot: boot, Outcome: Committed, Revision: i + 1}
				for j := range 40 {
					e.Changes = append(e.Changes, write(cpu(fmt.Sprint("/b", j)), "cpu.shares", "1", "2"))
				}
				if _, err := s.Record(e); err != nil {
					b.Fatal(err)
				}
			}
			s.Close()
			for b.Loop() {
				s, err := Open(dir, Options{})
				if err != nil {
					b.Fatal(err)
				}
				s.Close()
			}
		})
	}
}

func TestDamagedHistory(t *testing.T) {
	dir := t.TempDir()
	s := locked(t, dir, Options{})
	for i := range 5 {
		if _, err := s.Record(Entry{Verb: "set", Text: fmt.Sprint("entry ", i+1)}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	path := filepath.Join(dir, historyName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[strings.Index(string(data), "entry 3")] ^= 1
	if err := os.WriteFile(path, data[:len(data)-4], 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{})
	h, err := s.History()
	if err != nil || len(h) != 3 || len(s.Warnings()) != 1 {
		t.Errorf("history %v, %v, warnings %q", h, err, s.Warnings())
	}
	if _, err := s.Lock("set", "root"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Record(Entry{Verb: "set"}); n != 5 || err != nil {
		t.Errorf("next entry %d, %v", n, err)
	}
	if h, err = s.History(); err != nil ||
		!slices.EqualFunc(h, []int{1, 2, 4, 5}, func(e Entry, n int) bool { return e.N == n }) {
		t.Errorf("history %v, %v", h, err)
	}
}

// A crash between the end of a transaction and its history entry loses no entry.
func TestLateEntry(t *testing.T) {
	dir := t.TempDir()
	s := locked(t, dir, Options{})
	for i, outcome := range []string{Committed, Undone} {
		id, err := s.Begin(Txn{Boot: boot, Verb: "apply", By: "root", Reason: "why", Recorded: true,
			Changes: []Change{mkdir(cpu("/b"))}})
		if err == nil {
			err = s.End(id, outcome, "note")
		}
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		for range 2 { // and only once
			s = locked(t, dir, Options{})
			h, err := s.History()
			if err != nil || len(h) != i+1 {
				t.Fatalf("history %+v, %v", h, err)
			}
			if e := h[i]; e.Txn != id || e.Outcome != outcome || e.Verb != "apply" || e.Text != "note" ||
				len(e.Changes) != 1 {
				t.Errorf("entry %+v", e)
			}
			s.Close()
		}
		s = locked(t, dir, Options{})
	}
	commit(t, s, mkdir(cpu("/c"))) // does not ask to be recorded
	s.Close()
	s = locked(t, dir, Options{})
	if h, _ := s.History(); len(h) != 2 {
		t.Errorf("history %+v", h)
	}
	if last := s.state.last; last == nil || last.Txn.Changes != nil {
		t.Errorf("the changes of a transaction that needs no entry are kept: %+v", last)
	}
}

func TestHistoryIsShortened(t *testing.T) {
	dir := t.TempDir()
	s := locked(t, dir, Options{HistoryFull: 2000})
	for i := range 100 {
		if n, err := s.Record(Entry{Verb: "set", Text: "some text"}); n != i+1 || err != nil {
			t.Fatalf("entry %d: %d, %v", i+1, n, err)
		}
		if s.history.Size > 2200 {
			t.Fatalf("the history has %d bytes", s.history.Size)
		}
	}
	h, err := open(t, dir, Options{}).History()
	if err != nil || len(h) < 8 || h[len(h)-1].N != 100 || h[0].N != 101-len(h) {
		t.Errorf("history %v, %v", h, err)
	}
}

func TestDocuments(t *testing.T) {
	dir := t.TempDir()
	s := locked(t, dir, Options{})
	type doc struct {
		Text string
		N    []int
	}
	var got doc
	if found, err := s.Load("applied", &got); found || err != nil {
		t.Errorf("a document that was never saved: %v, %v", found, err)
	}
	want := doc{"<a & b>\u2028\x00", []int{1, 2}}
	if err := s.Save("applied", want); err != nil {
		t.Fatal(err)
	}
	if found, err := open(t, dir, Options{}).Load("applied", &got); !found || err != nil ||
		fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("loaded %+v, %v, %v", got, found, err)
	}
	if err := s.Save(VersionName(3), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	var sources []string
	if found, err := s.Load(VersionName(3), &sources); !found || err != nil || len(sources) != 1 {
		t.Errorf("version 3: %v, %v", sources, err)
	}
	if found, err := s.Load(VersionName(4), &sources); found || err != nil {
		t.Errorf("version 4: %t, %v", found, err)
	}
	for _, name := range []string{"", "../x", "a/b", "A", ".x", "lock file"} {
		if err := s.Save(name, 1); err == nil {
			t.Errorf("saved a document called %q", name)
		}
		if _, err := s.Load(name, &got); err == nil {
			t.Errorf("loaded a document called %q", name)
		}
	}
	if err := s.Save("applied", func() {}); err == nil {
		t.Error("saved what cannot be encoded")
	}
}

// No change of a byte of a document goes unnoticed.
func TestDamagedDocument(t *testing.T) {
	dir := t.TempDir()
	fs := newMemFS()
	s := locked(t, dir, Options{FS: fs})
	if err := s.Save("pins", map[string]int{"a": 1}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "pins.json")
	whole, _ := fs.ReadFile(path)
	load := func(data []byte) (map[string]int, error) {
		fs.put(path, data)
		var got map[string]int
		_, err := s.Load("pins", &got)
		return got, err
	}
	for at := range whole {
		damaged := slices.Clone(whole)
		damaged[at] ^= 0x10
		if got, err := load(damaged); err == nil && got["a"] != 1 {
			t.Errorf("byte %d (%q for %q): read %v", at, damaged[at], whole[at], got)
		} else if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d: %v", at, err)
		}
		if got, err := load(whole[:at]); !errors.Is(err, ErrDamaged) && (at < len(whole)-1 || got["a"] != 1) {
			t.Errorf("cut at byte %d: %v, %v", at, got, err)
		}
	}
	fs.fail = func(int, fsCall) any { return syscall.EIO }
	var got map[string]int
	if _, err := s.Load("pins", &got); !errors.Is(err, syscall.EIO) || !strings.Contains(statedir.Hint(err), "dmesg") {
		t.Errorf("EIO: %v", err)
	}
}
