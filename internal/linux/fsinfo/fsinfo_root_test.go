//go:build root

package fsinfo

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/testhost"
)

// A directory of a real btrfs is asked before and after chattr(1) switched copy on write off.
func TestNoCOW(t *testing.T) {
	device, _ := testhost.LoopDevice(t, 256<<20)
	point := t.TempDir()
	if out, err := exec.Command("mkfs.btrfs", "-q", "-f", device).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.btrfs (make deps installs it): %v\n%s", err, out)
	}
	if err := unix.Mount(device, point, "btrfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, 0); err != nil {
			t.Error(err)
		}
		_ = exec.Command("btrfs", "device", "scan", "--forget", device).Run()
	})
	dir := filepath.Join(point, "data")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if yes, err := NoCOW(dir); yes || err != nil {
		t.Errorf("a new directory: %v, %v", yes, err)
	}
	if out, err := exec.Command("chattr", "+C", dir).CombinedOutput(); err != nil {
		t.Fatalf("chattr: %v\n%s", err, out)
	}
	if yes, err := NoCOW(dir); !yes || err != nil {
		t.Errorf("after chattr +C: %v, %v", yes, err)
	}
	if _, err := XFSVersion4(dir); err == nil {
		t.Error("a btrfs has the geometry of an XFS")
	}
}
