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
func Replace(at, text string) (err error) {
	info, err := os.Lstat(at)
	if err != nil {
		return err
	}
	is, known := info.Sys().(*syscall.Stat_t)
	if !info.Mode().IsRegular() || !known {
		return errors.New("it is no regular file; write it yourself where it leads to")
	}
	next := Beside(at)
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
	if int(is.Uid) != os.Geteuid() || int(is.Gid) != os.Getegid() {
		err = errors.Join(err, f.Chown(int(is.Uid), int(is.Gid)))
	}
	if err = errors.Join(err, f.Chmod(info.Mode()), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(next, at); err != nil {
		return err
	}
	return atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(at))
}
