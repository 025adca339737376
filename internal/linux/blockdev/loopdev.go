package blockdev

import (
	"fmt"
	"os"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// loopFile asks a loop device for the number that files have where its own file lies (loop(4)): its path in /sys is as
// good as the mount namespace of whoever set it up. It is not known of a captured host, and to root alone.
func (h FS) loopFile(d *Device) (dev string, known bool) {
	if h.root == nil || !h.root.Live() {
		return "", false
	}
	dev, err := sysroot.WithTimeout(h.root, d.Name,
		func() (string, error) { // the kernel asks the file system of the file
			f, err := os.OpenFile("/dev/"+d.Name, os.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				return "", err
			}
			defer f.Close()
			info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%d:%d", unix.Major(info.Device), unix.Minor(info.Device)), nil
		})
	return dev, err == nil
}
