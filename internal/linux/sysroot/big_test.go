package sysroot

import (
	"os"
	"path/filepath"
	"testing"
)

// After a file of several MiB, as a policy of SELinux is, files of /proc/sys can be read: the kernel has no memory for
// as large a buffer (KMALLOC_MAX_SIZE).
func TestAfterALargeFile(t *testing.T) {
	large := filepath.Join(t.TempDir(), "policy")
	if err := os.WriteFile(large, make([]byte, 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	root := New("/")
	for range 20 {
		if data, err := root.ReadFile(large); err != nil || len(data) != 5<<20 {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
		if _, err := root.ReadText("/proc/sys/kernel/osrelease"); err != nil {
			t.Fatal(err)
		}
	}
}
