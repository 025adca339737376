package journal

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHistoryIsRetained(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		keep Retention
		want []int // numbers of the entries that stay, of ten, one a day
	}{
		"all":     {Retention{}, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		"three":   {Retention{Entries: 3}, []int{8, 9, 10}},
		"enough":  {Retention{Entries: 20}, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		"by age":  {Retention{Age: 36 * time.Hour}, []int{9, 10}},
		"both":    {Retention{Entries: 5, Age: 60 * time.Hour}, []int{8, 9, 10}},
		"too old": {Retention{Age: time.Minute}, []int{10}}, // it numbers the next
	} {
		t.Run(name, func(t *testing.T) {
			at := now.Add(time.Hour)
			s := locked(t, t.TempDir(), Options{Now: func() time.Time { return at }})
			for i := range 10 {
				if _, err := s.Record(Entry{Verb: "set",
					Time: now.Add(time.Duration(i-9) * 24 * time.Hour)}); err != nil {
					t.Fatal(err)
				}
			}
			if dropped, err := s.Retain(c.keep); err != nil || dropped != 10-len(c.want) {
				t.Errorf("dropped %d, %v", dropped, err)
			}
			h, err := s.History()
			if err != nil || !slices.EqualFunc(h, c.want, func(e Entry, n int) bool { return e.N == n }) {
				t.Errorf("history %v, %v", h, err)
			}
			if n, err := s.Record(Entry{Verb: "set"}); n != 11 || err != nil {
				t.Errorf("the next entry is %d, %v", n, err)
			}
		})
	}
	s := open(t, t.TempDir(), Options{})
	if _, err := s.Retain(Retention{Entries: 1}); !errors.Is(err, ErrNotLocked) {
		t.Errorf("without the lock: %v", err)
	}
}

// Whatever is cut off the history: with the journal lost, it still tells the same of what is to be given back.
func TestRetainedHistoryTellsOriginals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "journal")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		fs := newMemFS()
		s, err := Open(dir, Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Lock("test", "root"); err != nil {
			t.Fatal(err)
		}
		values := map[string]string{}
		for range rapid.IntRange(1, 25).Draw(t, "changes") {
			var changes []Change
			for _, file := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"cpu.shares", "cpu.cfs_quota_us",
				"cpu.idle"}), 1, 2, rapid.ID[string]).Draw(t, "files") {
				value := rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "value")
				old := cmp.Or(values[file], "1")
				values[file] = value
				changes = append(changes, write(cpu("/a"), file, old, value))
			}
			id, err := s.Begin(Txn{Boot: boot, Verb: "set", Recorded: true, Changes: changes})
			if err == nil {
				err = s.End(id, Committed, "")
			}
			if err == nil {
				_, err = s.Record(EntryOf(&Txn{ID: id, Boot: boot, Verb: "set", Changes: changes}, Committed, ""))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		want := originalsOf(s)
		if _, err := s.Retain(Retention{Entries: rapid.IntRange(1, 5).Draw(t, "kept")}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := fs.Remove(dir + "/" + logName); err != nil {
			t.Fatal(err)
		}
		again, err := Open(dir, Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if got := originalsOf(again); !slices.Equal(got, want) {
			t.Fatalf("from the history: %v, want %v", got, want)
		}
	})
}

// originalsOf is what is to be given back, as text.
func originalsOf(s *Store) (all []string) {
	for _, c := range s.InBoot(boot).Originals() {
		all = append(all, c.Addr+" "+c.Old)
	}
	slices.Sort(all)
	return all
}
