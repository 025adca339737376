package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/tunable"
)

// What outlives a boot keeps its original, through later boots, compaction, and the loss of the journal, until it is
// given back.
func TestOriginalsThatOutliveABoot(t *testing.T) {
	set := func(name, from, to string) Change { return Change{Change: change.Of(tunable.Sysctl(name), from, to)} }
	dir := t.TempDir()
	s := locked(t, dir, Options{CompactAt: 1000})
	recordedTxn(t, s, "tune apply", set("vm.swappiness", "60", "10"), set("vm.max_map_count", "65530", "1000000"))
	recordedTxn(t, s, "tune apply", set("vm.swappiness", "10", "1"))
	recordedTxn(t, s, "tune rollback", set("vm.max_map_count", "1000000", "65530"))
	check := func(when string, s *Store) {
		t.Helper()
		if all := s.InBoot("another").Lasting(); len(all) != 1 || all[0].Addr != "vm.swappiness" ||
			all[0].Old != "60" || all[0].New != "1" {
			t.Errorf("%s: %+v", when, all)
		}
		if all := s.InBoot(boot).Originals(); len(all) > 0 {
			t.Errorf("%s: originals of the boot %+v", when, all)
		}
	}
	check("written", s)
	for i := range 40 {
		commit(t, s, mkdir(cpu(fmt.Sprint("/d", i))))
		commit(t, s, rmdir(cpu(fmt.Sprint("/d", i))))
	}
	check("compacted", s)
	s.Close()
	check("read again", open(t, dir, Options{}))
	if err := os.Remove(filepath.Join(dir, logName)); err != nil {
		t.Fatal(err)
	}
	s = locked(t, dir, Options{})
	check("by the history", s)
	for range 8 {
		recordedTxn(t, s, "apply", mkdir(cpu("/e")))
		recordedTxn(t, s, "apply", rmdir(cpu("/e")))
	}
	if _, err := s.Retain(Retention{Entries: 2}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := os.Remove(filepath.Join(dir, logName)); err != nil {
		t.Fatal(err)
	}
	s = locked(t, dir, Options{})
	check("by a history that was shortened", s)
	recordedTxn(t, s, "tune rollback", set("vm.swappiness", "1", "60"))
	if all := s.InBoot(boot).Lasting(); len(all) > 0 {
		t.Errorf("given back: %+v", all)
	}
	s.Close()
}
