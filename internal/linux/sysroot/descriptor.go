package sysroot

import (
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// descriptor reads a file without os.File, which offers each file to the runtime's poller first.
type descriptor struct {
	fd   int
	name string
}

func openDescriptor(name string) (descriptor, error) {
	for {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		switch err {
		case nil:
			return descriptor{fd, name}, nil
		case unix.EINTR:
		default:
			return descriptor{}, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// Read implements io.Reader.
func (d descriptor) Read(to []byte) (int, error) {
	for {
		n, err := unix.Read(d.fd, to)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, &fs.PathError{Op: "read", Path: d.name, Err: err}
		case n == 0 && len(to) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Close implements io.Closer.
func (d descriptor) Close() error { return unix.Close(d.fd) }
