package fsinfo

import (
	"os"

	"golang.org/x/sys/unix"
)

// Allocate gives a file so many bytes of room, which it has then or the error says why not: fallocate(2). It is begun
// again when a signal interrupts it: Go sends its own threads some, and a tmpfs of Linux 6.1 gives up at any.
func Allocate(f *os.File, bytes int64) error {
	for {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, bytes); err != unix.EINTR {
			return err
		}
	}
}
