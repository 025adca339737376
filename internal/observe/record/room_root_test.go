//go:build root

package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// On a small file system that somebody else fills to the last byte the record takes no room from others, loses nothing
// that it had but its oldest ticks, and goes on when there is room again.
func TestOnAFullFileSystem(t *testing.T) {
	point := t.TempDir()
	if err := unix.Mount("none", point, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, 0); err != nil {
			t.Error(err)
		}
	})
	space := func(dir string) (size, free uint64, err error) {
		var s unix.Statfs_t
		err = unix.Statfs(dir, &s)
		return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize), err
	}
	r := New(Options{Dir: filepath.Join(point, "record"), Space: space})
	defer r.Close()
	r.Bound(Bound{})
	now := start
	take := func(n int) {
		for range n {
			now = now.Add(5 * time.Second)
			r.Take(plain(now, 100))
		}
	}
	take(20_000) // more than has room, by ten times
	at := reach(t, r)
	size, free, err := space(point)
	if err != nil || free < size/25 { // a segment is compressed beside the one that it replaces
		t.Errorf("it has left %d bytes of %d: %v", free, size, err)
	}
	if !at.To.Equal(now) || at.Bytes < 1<<20 || at.Error != "" || at.Lost > 0 {
		t.Errorf("it has %+v", at)
	}
	name := filepath.Join(point, "others")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block, others := bytes.Repeat([]byte{1}, 4096), 0
	for err == nil {
		var n int
		n, err = f.Write(block)
		others += n
	}
	if !errors.Is(err, unix.ENOSPC) || others < int(size/25) {
		t.Errorf("others had room for %d bytes: %v", others, err)
	}
	full := reach(t, r)
	take(2000)
	after := reach(t, r)
	if after.Bytes > full.Bytes || after.Damaged > 0 || len(all(t, r.o.Dir)) != after.Ticks {
		t.Errorf("on a full file system it had %+v, and now %+v", full, after)
	}
	if text, err := os.ReadFile(name); err != nil || len(text) != others {
		t.Errorf("the file of others has %d bytes of %d: %v", len(text), others, err)
	}
	if err := errors.Join(f.Close(), os.Remove(name)); err != nil {
		t.Fatal(err)
	}
	take(100)
	if at := reach(t, r); at.Error != "" || !at.To.Equal(now) || len(all(t, r.o.Dir)) != at.Ticks {
		t.Errorf("with room again it has %+v", at)
	}
}
