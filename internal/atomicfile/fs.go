// Package atomicfile replaces files whole or not at all, and reads them without trust in what lies under their names.
//
//	renamed, err := atomicfile.Write(atomicfile.OS{}, "/var/lib/bulkhead/applied.json", data, 0o600)
//	data, err := atomicfile.OS{}.ReadFile("/var/lib/bulkhead/applied.json")
//
// Two writers of one name must exclude each other: both use the same temporary file.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// MaxSize is the size of the largest file that is read, in bytes.
const MaxSize = 64 << 20

// ErrUnusable says that what lies under a name is not read: it is no regular file, belongs to somebody else, or is
// larger than MaxSize.
var ErrUnusable = errors.New("not a file to read")

// FS is a file system. Errors match fs.ErrNotExist and the errnos of package syscall, as those of package os do.
type FS interface {
	// Open opens a file, or a directory (O_RDONLY) so that it can be synced. It never waits.
	Open(name string, flag int, perm fs.FileMode) (File, error)
	// ReadFile may refuse with ErrUnusable.
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

// OS is the real file system. Files in it belong to the caller or to root.
type OS struct{}

// Open follows no link to a file that it may make, and waits for no reader of a FIFO.
func (OS) Open(name string, flag int, perm fs.FileMode) (File, error) {
	if flag&os.O_CREATE != 0 {
		flag |= syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	}
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// ReadFile reads a regular file of the caller's or root's and at most MaxSize. It follows no link, never waits, and
// opens nothing else.
func (OS) ReadFile(name string) ([]byte, error) {
	if err := Check(name); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("%w: it was replaced", ErrUnusable)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // it may be another one by now
	if err == nil {
		err = usable(info)
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err == nil && len(data) > MaxSize {
		err = fmt.Errorf("%w: it grows beyond %d bytes", ErrUnusable, MaxSize)
	}
	return data, err
}

// Check says whether ReadFile would read what lies under a name, without opening it.
func Check(name string) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	return usable(info)
}

// usable says why a file is not read, with ErrUnusable; nil when it is.
func usable(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: it is %s", ErrUnusable, kind(info.Mode()))
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: it belongs to user %d", ErrUnusable, st.Uid)
	}
	if info.Size() > MaxSize {
		return fmt.Errorf("%w: it has %d bytes, more than %d", ErrUnusable, info.Size(), MaxSize)
	}
	return nil
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "no regular file"
}

// Rename is rename(2).
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove removes a file or an empty directory.
func (OS) Remove(name string) error { return os.Remove(name) }

type osFile struct{ *os.File }

// Sync is fdatasync(2): the size is synced when it changed, the times are not.
func (f osFile) Sync() error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR {
			return err
		}
	}
}

// Write puts data under a name, whole or not at all: into NAME.tmp, synced, renamed, and the directory synced. Renamed
// with an error says that the data is there, but not known to be on disk.
func Write(fsys FS, name string, data []byte, perm fs.FileMode) (renamed bool, err error) {
	tmp := name + ".tmp"
	err = writeSynced(fsys, tmp, data, perm)
	if err == nil {
		err = fsys.Rename(tmp, name)
	}
	if err != nil {
		// Also gives back the space on a full disk; the error that counts is the first one.
		_ = fsys.Remove(tmp)
		return false, err
	}
	return true, SyncDir(fsys, filepath.Dir(name))
}

func writeSynced(fsys FS, name string, data []byte, perm fs.FileMode) error {
	const how = os.O_WRONLY | os.O_CREATE | os.O_TRUNC | os.O_APPEND
	f, err := fsys.Open(name, how, perm)
	if errors.Is(err, syscall.ENXIO) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EISDIR) {
		// It is no file of ours.
		_ = fsys.Remove(name)
		f, err = fsys.Open(name, how, perm)
	}
	if err != nil {
		return err
	}
	n, err := f.Write(data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// SyncDir puts a directory's entries on disk.
func SyncDir(fsys FS, dir string) error {
	d, err := fsys.Open(dir, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Room says whether a directory takes some files, each beside the one that it replaces, and two records: an error of a
// full disk or quota when it does not. Of anything else the writes themselves tell. The path is of a file that is there
// only meanwhile. Without files it does not look.
func Room[T ~[]byte](files FS, dir string, texts ...T) (path string, err error) {
	const block = 4096 // of most file systems; a file takes a whole number of them
	need := 4 * block
	for _, text := range texts {
		need += (len(text)/block + 2) * block
	}
	path = filepath.Join(dir, "room")
	if len(texts) == 0 {
		return path, nil
	}
	f, err := files.Open(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.Write(make([]byte, need))
		err = errors.Join(err, f.Close(), files.Remove(path))
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return path, err
	}
	return path, nil
}
