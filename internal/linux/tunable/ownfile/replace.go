package ownfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"bulkhead/internal/atomicfile"
)

// Beside is the name under which a file is written before it takes the place of the old one.
func Beside(at string) string {
	return filepath.Join(filepath.Dir(at), "."+filepath.Base(at)+".bulkhead")
}

// Replace gives a file another text whole, with the mode and the owner that it has. What somebody who was killed
// left beside it is taken away.
func Replace(at, text string) error {
	info, err := os.Lstat(at)
	if err != nil {
		return err
	}
	is, known := info.Sys().(*syscall.Stat_t)
	if !info.Mode().IsRegular() || !known {
		return errors.New("it is no regular file; write it yourself where it leads to")
	}
	return put(at, Beside(at), text, info.Mode(), is)
}

// put gives a file a text whole, with a mode that no umask narrows and the owner of another file. Next is its name
// until it is whole.
func put(at, next, text string, mode fs.FileMode, owner *syscall.Stat_t) (err error) {
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(next)
		}
	}()
	_, err = f.WriteString(text)
	if int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid() {
		err = errors.Join(err, f.Chown(int(owner.Uid), int(owner.Gid)))
	}
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(next, at); err != nil {
		return err
	}
	return atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(at))
}

// OwnerOf is the owner of what lies under a name.
func OwnerOf(name string) (*syscall.Stat_t, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	is, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return nil, errors.ErrUnsupported
	}
	return is, nil
}
