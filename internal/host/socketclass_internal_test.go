package host

import (
	"path"
	"testing"

	"bulkhead/internal/linux/sockets"

	"golang.org/x/sys/unix"
)

// The kernel tells the cgroup2 directory of a socket of ours, from 5.8 on.
func TestOwnSocketGroup(t *testing.T) {
	f, err := New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	unified, ok := f.Unified()
	if !ok || !f.Kernel.AtLeast(5, 15) {
		t.Skip("this needs a cgroup2 hierarchy, and a kernel that nothing blinds")
	}
	own := ownGroup()
	if own == "" {
		t.Fatal("nothing tells our own directory")
	}
	var st unix.Stat_t
	if err := unix.Stat(path.Join(unified.Mount, own), &st); err != nil {
		t.Skip("the own directory is not below the mount: " + err.Error())
	}
	got, err := sockets.OwnGroup()
	if err != nil || got != st.Ino {
		t.Errorf("a socket lies in %d (%v), we in %s, %d", got, err, own, st.Ino)
	}
	if sees, known := seesOwnSocket(unified.Mount); known != (own != "/") || sees != known {
		t.Errorf("seen: %v, known: %v, from %s", sees, known, own)
	}
}
