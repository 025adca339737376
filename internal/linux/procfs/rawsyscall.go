package procfs

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls here do not tell Go's scheduler that they are made, so that none wakes its monitor: that costs more than
// the call. They are for /proc, where opening and closing a file waits for no other process, and for reading stat,
// which takes no lock that is held for long; reading other files may wait, for the memory map of a process or for
// moves between groups.

// openat is openat(2) of a path without a NUL, close-on-exec.
func openat(dir int, name string, flags int) (int, error) {
	if strings.IndexByte(name, 0) >= 0 {
		return -1, unix.EINVAL
	}
	var room [128]byte
	path := append(append(room[:0], name...), 0)
	for {
		fd, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&path[0])),
			uintptr(flags|unix.O_CLOEXEC|unix.O_LARGEFILE), 0, 0, 0)
		switch errno {
		case 0:
			return int(fd), nil
		case unix.EINTR:
		default:
			return -1, errno
		}
	}
}

// closeFD closes a descriptor that nothing was written through.
func closeFD(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// readOnce reads once.
func readOnce(fd int, buf []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))),
			uintptr(len(buf)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// fstat is fstat(2).
func fstat(fd int, st *unix.Stat_t) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_FSTAT, uintptr(fd), uintptr(unsafe.Pointer(st)), 0); errno != 0 {
		return errno
	}
	return nil
}

// exists asks by faccessat(2) whether there is something below an open directory; false also when that cannot be told.
func exists(dir int, name string) bool {
	var room [64]byte
	path := append(append(room[:0], name...), 0)
	_, _, errno := unix.RawSyscall(unix.SYS_FACCESSAT, uintptr(dir), uintptr(unsafe.Pointer(&path[0])), unix.F_OK)
	return errno == 0
}

// readlinkat is readlinkat(2) of a short path without a NUL.
func readlinkat(dir int, name string, buf []byte) (int, error) {
	var room [64]byte
	path := append(append(room[:0], name...), 0)
	n, _, errno := unix.RawSyscall6(unix.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(&path[0])),
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
