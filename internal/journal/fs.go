package journal

import (
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// FS is what a Store needs of a file system. Errors match fs.ErrNotExist and the errnos of package
// syscall, as those of package os do.
type FS interface {
	// Open opens a file, or a directory (O_RDONLY) so that it can be synced.
	Open(name string, flag int, perm fs.FileMode) (File, error)
	ReadFile(name string) ([]byte, error)
	Rename(from, to string) error
	Remove(name string) error
}

// File is an open file. Files that are written to are opened with O_APPEND.
type File interface {
	io.WriteCloser
	Truncate(size int64) error
	// Sync returns when the content, and what is needed to find it again, is on disk (fdatasync(2)).
	Sync() error
}

// osFS is the real file system.
type osFS struct{}

func (osFS) Open(name string, flag int, perm fs.FileMode) (File, error) {
	if flag&os.O_CREATE != 0 {
		flag |= unix.O_NOFOLLOW
	}
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }
func (osFS) Rename(from, to string) error         { return os.Rename(from, to) }
func (osFS) Remove(name string) error             { return os.Remove(name) }

type osFile struct{ *os.File }

// Sync is fdatasync(2): the size is synced when it changed, the times are not.
func (f osFile) Sync() error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
