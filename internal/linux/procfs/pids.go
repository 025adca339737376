package procfs

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"unsafe"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// listPIDs appends the pids in /proc to dst[:0], ascending.
func listPIDs(root *sysroot.FS, dst []int) ([]int, error) {
	names, err := root.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	dst = dst[:0]
	for _, name := range names {
		if pid, is := asPID([]byte(name)); is {
			dst = append(dst, pid)
		}
	}
	slices.Sort(dst)
	return dst, nil
}

// pidLister lists /proc again and again through one descriptor, without a string for every name.
type pidLister struct {
	fd  int
	buf []byte
}

func openPIDLister() (*pidLister, error) {
	fd, err := Retry(func() (int, error) {
		return unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	return &pidLister{fd: fd, buf: make([]byte, 64<<10)}, nil
}

func (l *pidLister) close() { unix.Close(l.fd) }

// list appends the pids to dst[:0], ascending, as the kernel gives them.
func (l *pidLister) list(dst []int) ([]int, error) {
	dst = dst[:0]
	if _, err := unix.Seek(l.fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	for {
		n, err := Retry(func() (int, error) { return unix.Getdents(l.fd, l.buf) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			if !slices.IsSorted(dst) {
				slices.Sort(dst)
			}
			return dst, nil
		}
		dst = appendPIDs(dst, l.buf[:n])
	}
}

// appendPIDs takes the numeric names out of what getdents64(2) returned: records of inode, offset,
// length (16 bits), type (8 bits) and a name that ends with a NUL.
func appendPIDs(dst []int, records []byte) []int {
	const lengthAt = int(unsafe.Offsetof(unix.Dirent{}.Reclen))
	const nameAt = int(unsafe.Offsetof(unix.Dirent{}.Name))
	for len(records) >= nameAt {
		length := int(binary.NativeEndian.Uint16(records[lengthAt:]))
		if length < nameAt || length > len(records) {
			return dst
		}
		name, _, _ := bytes.Cut(records[nameAt:length], []byte{0})
		if pid, is := asPID(name); is {
			dst = append(dst, pid)
		}
		records = records[length:]
	}
	return dst
}

// asPID reads a name in /proc; most of those that are no pid begin with a letter.
func asPID(name []byte) (int, bool) {
	if len(name) == 0 || name[0] < '1' || name[0] > '9' {
		return 0, false
	}
	pid, err := strconv.Atoi(string(name))
	return pid, err == nil
}
