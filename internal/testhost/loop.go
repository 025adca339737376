package testhost

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/fsinfo"
)

// LoopDevice makes a loop device of size bytes over a file of its own: "/dev/loop3" and "7:3". The file lies
// in memory where /dev/shm is there, so that the machine's own disk, which others use too, does not slow a
// measurement; direct IO to the file is used where its file system can. Both are gone at the end of the test.
func LoopDevice(t testing.TB, size int64) (dev, number string) {
	t.Helper()
	RequireRoot(t)
	dir := "/dev/shm"
	if _, err := os.Stat(dir); err != nil {
		dir = t.TempDir()
	}
	file, err := os.CreateTemp(dir, "bulkhead-test-disk-")
	if err != nil {
		t.Fatalf("make the file of a loop device: %v", err)
	}
	t.Cleanup(func() { file.Close(); os.Remove(file.Name()) })
	if err := fsinfo.Allocate(file, size); err != nil {
		t.Fatalf("allocate %d bytes in %q: %v", size, file.Name(), err)
	}
	loop, err := attach(int(file.Fd()))
	if err != nil {
		t.Fatalf("make a loop device: %v", err)
	}
	t.Cleanup(func() { detach(t, loop) })
	var stat unix.Stat_t
	if err := unix.Fstat(int(loop.Fd()), &stat); err != nil {
		t.Fatalf("stat %q: %v", loop.Name(), err)
	}
	return loop.Name(), fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
}

// attach puts a file behind a free loop device. Another process may take the device first: try again.
func attach(file int) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range 20 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		loop, err := openSoon(fmt.Sprintf("/dev/loop%d", n))
		if err != nil {
			return nil, err
		}
		err = configure(int(loop.Fd()), file)
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("configure %q: %w", loop.Name(), err)
		}
	}
	return nil, errors.New("every free loop device was taken by somebody else")
}

// openSoon opens a device whose node may not be there yet.
func openSoon(name string) (*os.File, error) {
	for try := 0; ; try++ {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err == nil || !errors.Is(err, os.ErrNotExist) || try == 50 {
			return f, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// configure uses LOOP_CONFIGURE (kernel 5.8), with direct IO if that is taken, and the older calls elsewhere.
func configure(loop, file int) error {
	config := unix.LoopConfig{Fd: uint32(file), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO}}
	err := unix.IoctlLoopConfigure(loop, &config)
	if err == nil || errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := unix.IoctlSetInt(loop, unix.LOOP_SET_FD, file); err != nil {
		return err
	}
	_ = unix.IoctlSetInt(loop, unix.LOOP_SET_DIRECT_IO, 1) // refused where the file system cannot
	return nil
}

// detach takes the file away. The device goes when its last user closes it.
func detach(t testing.TB, loop *os.File) {
	defer loop.Close()
	deadline := time.Now().Add(cleanupTime)
	for {
		_, err := unix.IoctlRetInt(int(loop.Fd()), unix.LOOP_CLR_FD)
		if err == nil || errors.Is(err, unix.ENXIO) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("clean up: detach %q: %v", loop.Name(), err)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
