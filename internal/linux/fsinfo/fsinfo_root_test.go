//go:build root

package fsinfo_test

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/fsinfo"
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
	if yes, err := fsinfo.NoCOW(dir); yes || err != nil {
		t.Errorf("a new directory: %v, %v", yes, err)
	}
	if out, err := exec.Command("chattr", "+C", dir).CombinedOutput(); err != nil {
		t.Fatalf("chattr: %v\n%s", err, out)
	}
	if yes, err := fsinfo.NoCOW(dir); !yes || err != nil {
		t.Errorf("after chattr +C: %v, %v", yes, err)
	}
	if _, err := fsinfo.XFSVersion4(dir); err == nil {
		t.Error("a btrfs has the geometry of an XFS")
	}
}

// Signals that arrive every millisecond, as the scheduler of Go sends them to a busy program, do not keep a file from
// its room. A tmpfs of Linux 6.1 gives up at any signal, one of 6.18 at those that end the process.
func TestAllocateGoesOnAfterASignal(t *testing.T) {
	f, err := os.CreateTemp("/dev/shm", "bulkhead-test-")
	if err != nil {
		t.Skipf("needs /dev/shm: %v", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	ended := make(chan struct{})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGURG)
	defer signal.Stop(signals)
	go func() {
		defer close(ended)
		for range 200 {
			_ = unix.Kill(unix.Getpid(), unix.SIGURG)
			time.Sleep(time.Millisecond)
		}
	}()
	const size = 256 << 20
	if err := fsinfo.Allocate(f, size); err != nil {
		t.Fatal(err)
	}
	<-ended
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if room := st.Blocks * 512; room < size {
		t.Errorf("the file has room for %d bytes, wanted %d", room, size)
	}
}
