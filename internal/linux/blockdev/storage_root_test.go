//go:build root

package blockdev_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/testhost"
)

const disk = 128 << 20 // btrfs takes no less than 109 MiB

// partition makes the second half of a loop device a partition of it, as partx(8) does: without a table on the device,
// so it needs none that this kernel can read.
func partition(t *testing.T, dev string) {
	t.Helper()
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	info.Flags |= unix.LO_FLAGS_PARTSCAN
	if err := unix.IoctlLoopSetStatus64(int(f.Fd()), info); err != nil {
		t.Fatalf("allow partitions on %s: %v", dev, err)
	}
	// struct blkpg_partition and blkpg_ioctl_arg of linux/blkpg.h
	part := struct {
		start, length int64
		number        int32
		names         [128]byte
		_             [4]byte
	}{disk / 2, disk / 2, 1, [128]byte{}, [4]byte{}}
	change := func(op int32) error {
		arg := struct {
			op, flags, length int32
			_                 int32
			data              unsafe.Pointer
		}{op, 0, int32(unsafe.Sizeof(part)), 0, unsafe.Pointer(&part)}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg)))
		if errno != 0 {
			return errno
		}
		return nil
	}
	if err := change(1); err != nil {
		t.Fatalf("make a partition of %s: %v", dev, err)
	}
	t.Cleanup(func() {
		if err := change(2); err != nil {
			t.Errorf("clean up: remove the partition of %s: %v", dev, err)
		}
	})
}

// within runs a shell script in a mount namespace of its own, up to a line "ready", and returns the process, which then
// sleeps. All that is mounted there goes with it.
func within(t *testing.T, script string) int {
	t.Helper()
	c := exec.Command("sh", "-euc", script+"\necho ready; exec sleep 600")
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	said := &strings.Builder{}
	c.Stderr = said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "ready" {
			return c.Process.Pid
		}
	}
	c.Wait()
	t.Fatalf("the script failed: %s", said)
	return 0
}

// What this kernel can make without modules: a partition, ext4 on it, a loop device on a file there, btrfs over two
// devices, an overlay and memory, all in a mount namespace that this process is not in.
func TestStorageOfRealStacks(t *testing.T) {
	testhost.RequireRoot(t)
	for _, tool := range []string{"mkfs.ext4", "mkfs.btrfs", "losetup"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%v (make deps installs it)", err)
		}
	}
	dir := t.TempDir()
	parted, partedNumber := testhost.LoopDevice(t, disk)
	first, firstNumber := testhost.LoopDevice(t, disk)
	second, secondNumber := testhost.LoopDevice(t, disk)
	partition(t, parted)
	t.Cleanup(func() { _ = exec.Command("btrfs", "device", "scan", "--forget", first, second).Run() })
	pid := within(t, fmt.Sprintf(`
exec 2>&1 3>&1 >/dev/null
cd %s; mkdir part inner btrfs upper over mem
mkfs.ext4 -q -F %[2]sp1; mount %[2]sp1 part
truncate -s 16M 'part/an image'; mkfs.ext4 -q -F 'part/an image'
loop=$(losetup --show -f 'part/an image'); mount $loop inner; losetup -d $loop
mkfs.btrfs -q -f -d raid1 -m raid1 %[3]s %[4]s; mount -t btrfs -o device=%[3]s,device=%[4]s %[3]s btrfs
mkdir btrfs/u btrfs/w; mount -t overlay -o lowerdir=inner,upperdir=btrfs/u,workdir=btrfs/w none over
mount -t tmpfs none mem
touch inner/file; ln -s %[1]s/inner/file over/link
exec >&3`, dir, parted, first, second))
	h := host.New("/")
	s, err := h.Block.Storage()
	if err != nil {
		t.Fatal(err)
	}
	place := func(name string) *blockdev.Layer {
		t.Helper()
		p, err := s.Place(pid, filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !p.Elsewhere {
			t.Errorf("%s: not in a mount namespace of its own", name)
		}
		return p.Layer
	}
	name := func(dev string) string { return strings.TrimPrefix(dev, "/dev/") }
	// way is the first way down from a layer, as IDs of devices and kinds of others.
	way := func(l *blockdev.Layer) (all []string) {
		for {
			switch {
			case l.Device != nil:
				all = append(all, l.ID)
			case l.Kind == blockdev.Filesystem:
				all = append(all, l.Type)
			default:
				all = append(all, string(l.Kind))
			}
			if l.Trouble != "" {
				t.Errorf("%s: %s", l.ID, l.Trouble)
			}
			if len(l.Below) == 0 {
				return all
			}
			l = l.Below[0].Layer
		}
	}
	part := place("part").Below[0].Layer
	if part.Kind != blockdev.Partition || part.Name != name(parted)+"p1" || part.Device.Size != disk/2 {
		t.Errorf("the partition is %+v", part)
	}
	// The files of these loop devices lie in memory: testhost puts them there where it can.
	below := []string{"file", place("mem").Type}
	if got := way(place("part")); !slices.Equal(got[:3], []string{"ext4", part.ID, partedNumber}) || len(got) != 5 ||
		!slices.Equal(got[3:], below) {
		t.Errorf("the partition's filesystem is on %v", got)
	}
	inner := way(place("over/link")) // a link out of the overlay, into the loop device
	if len(inner) != 7 || inner[0] != "ext4" || !strings.HasPrefix(inner[1], "7:") || inner[2] != "file" ||
		inner[3] != part.ID || inner[4] != partedNumber {
		t.Errorf("the inner loop device's filesystem is on %v", inner)
	}
	btrfs := place("btrfs")
	if len(btrfs.Below) != 2 || btrfs.Detail != "raid1" || btrfs.Trouble != "" {
		t.Fatalf("btrfs is %+v", btrfs)
	}
	if got := []string{btrfs.Below[0].ID, btrfs.Below[1].ID}; !slices.Equal(got, []string{firstNumber, secondNumber}) &&
		!slices.Equal(got, []string{secondNumber, firstNumber}) {
		t.Errorf("btrfs is on %v, want %s and %s", got, firstNumber, secondNumber)
	}
	var drives []string
	for _, d := range btrfs.Drives() { // their files lie in memory: the way to a disk ends with them
		drives = append(drives, d.ID)
	}
	slices.Sort(drives)
	if want := []string{firstNumber, secondNumber}; below[1] == "tmpfs" &&
		!slices.Equal(drives, slices.Sorted(slices.Values(want))) {
		t.Errorf("btrfs is on the disks %v, want %v", drives, want)
	}
	if mem := place("mem"); mem.Filesystem != blockdev.InMemory || len(mem.Drives()) != 0 {
		t.Errorf("tmpfs is %+v", mem)
	}
	if over := place("over"); over.Filesystem != blockdev.OnOthers {
		t.Errorf("the overlay is %+v", over)
	}
	// Nobody else sees any of that.
	if p, err := s.Place(0, filepath.Join(dir, "btrfs")); err != nil || p.Elsewhere || p.Layer == btrfs {
		t.Errorf("for this process: %+v, %v", p, err)
	}
	if _, err := s.Place(0, filepath.Join(dir, "inner/file")); err == nil {
		t.Error("this process sees what is mounted elsewhere")
	}
}

// Devices come and go while they are looked at: that is no error.
func TestStorageWhileDevicesComeAndGo(t *testing.T) {
	testhost.RequireRoot(t)
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		h := host.New("/")
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			s, err := h.Block.Storage()
			if err != nil {
				done <- err
				return
			}
			for _, l := range s.Unused() {
				l.Drives()
			}
		}
	}()
	for range 20 {
		t.Run("loop", func(t *testing.T) {
			dev, _ := testhost.LoopDevice(t, disk)
			partition(t, dev)
		})
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
