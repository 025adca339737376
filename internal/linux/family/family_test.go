package family

import (
	"slices"
	"testing"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// What stat and children of a process tell.
func TestFamily(t *testing.T) {
	h := procfs.New(sysroot.New(linuxtest.Unpack(t, `
-- proc/7/task/7/children --
8 9 
-- proc/7/stat --
7 (post) gres) S 1 7 7 0 -1 4194560 100 2000 3 40 5 6 7 8
-- proc/5/stat --
5 (x) S 1
`)))
	minor, major, err := Faults(h, 7)
	if err != nil || minor != 2100 || major != 43 {
		t.Errorf("%d minor, %d major, %v", minor, major, err)
	}
	if pids, err := Children(h, 7); err != nil || !slices.Equal(pids, []int{8, 9}) {
		t.Errorf("children %v, %v", pids, err)
	}
	for _, pid := range []int{5, 6} {
		if _, _, err := Faults(h, pid); err == nil {
			t.Errorf("faults of process %d are told", pid)
		}
		if _, err := Children(h, pid); err == nil {
			t.Errorf("children of process %d are told", pid)
		}
	}
}
