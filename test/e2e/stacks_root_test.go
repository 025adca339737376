//go:build root

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stack is a filesystem on some layers, with what the plan is to say of the layer that is limited.
type stack struct {
	name  string
	says  string
	short bool // also in a short run
	make  func(t *testing.T) (dir string)
}

// there is a stack that the lab's machines have from the start.
func there(dir string) func(*testing.T) string { return func(*testing.T) string { return dir } }

// do runs a command of the machine's.
func do(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// later runs a command at the end of the test. A device may still be open for a moment, by udev.
func later(t *testing.T, name string, args ...string) {
	t.Cleanup(func() {
		var out []byte
		var err error
		for range 20 {
			if out, err = exec.Command(name, args...).CombinedOutput(); err == nil {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
		t.Errorf("%s %q: %v\n%s", name, args, err, out)
	})
}

// mounted mounts a device on a directory of the test's own.
func mounted(t *testing.T, dev, kind, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(dev, dir, kind, 0, options); err != nil {
		t.Fatalf("mount %s: %v", dev, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// stripedXFS makes an XFS on a volume in stripes over two disks.
func stripedXFS(t *testing.T) string {
	const group = "bulkheadtest"
	do(t, "pvcreate", "-q", "-ff", "-y", spareOne, spareTwo)
	later(t, "wipefs", "-q", "-a", spareOne, spareTwo)
	do(t, "vgcreate", "-q", group, spareOne, spareTwo)
	later(t, "vgremove", "-q", "-f", group)
	do(t, "lvcreate", "-q", "-y", "-i", "2", "-l", "100%FREE", "-n", "striped", group)
	do(t, "mkfs.xfs", "-q", "-f", "/dev/"+group+"/striped")
	return mounted(t, "/dev/"+group+"/striped", "xfs", "")
}

// raidXFS makes an XFS on an array of two disks.
func raidXFS(t *testing.T, level string) string {
	const array = "/dev/md7"
	do(t, "mdadm", "--create", array, "--quiet", "--run", "--level="+level, "--metadata=1.2", "--raid-devices=2",
		spareOne, spareTwo)
	later(t, "wipefs", "-q", "-a", spareOne, spareTwo)
	later(t, "mdadm", "--quiet", "--stop", array)
	do(t, "mkfs.xfs", "-q", "-f", array)
	return mounted(t, array, "xfs", "")
}

// cryptExt4 makes an ext4 on a dm-crypt device on a partition.
func cryptExt4(t *testing.T) string {
	const name = "bulkheadtest-crypt"
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("of the test"), 0o600); err != nil {
		t.Fatal(err)
	}
	do(t, "cryptsetup", "luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", sparePart, key)
	later(t, "wipefs", "-q", "-a", sparePart)
	do(t, "cryptsetup", "open", "--key-file", key, sparePart, name)
	later(t, "cryptsetup", "close", name)
	do(t, "mkfs.ext4", "-q", "/dev/mapper/"+name)
	return mounted(t, "/dev/mapper/"+name, "ext4", "")
}

// loopExt4 makes an ext4 in a file on the ext4 on LVM.
func loopExt4(t *testing.T) string {
	file := "/mnt/data/bulkhead-test-loop"
	t.Cleanup(func() { _ = os.Remove(file) })
	do(t, "dd", "if=/dev/zero", "of="+file, "bs=1M", "count=140", "conv=fsync")
	dev := do(t, "losetup", "--find", "--show", "--direct-io=on", file)
	later(t, "losetup", "--detach", dev)
	do(t, "mkfs.ext4", "-q", dev)
	return mounted(t, dev, "ext4", "")
}

// btrfsTwo makes a btrfs with its data in stripes over two disks.
func btrfsTwo(t *testing.T) string {
	do(t, "mkfs.btrfs", "-q", "-f", "-d", "raid0", "-m", "raid0", spareOne, spareTwo)
	later(t, "wipefs", "-q", "-a", spareOne, spareTwo)
	later(t, "btrfs", "device", "scan", "--forget", spareOne, spareTwo)
	return mounted(t, spareOne, "btrfs", "nodatacow,device="+spareOne+",device="+spareTwo)
}
