// Package statedir has the files of a state directory: logs whose records have checksums, a lock file that names its
// holder, and errors with a hint what to do.
//
// A Log is for one goroutine at a time. What is wrong in it is found when it is read, and mended by who holds the lock.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// Error is what goes wrong with a file of the state directory.
type Error struct {
	Op   string // "append to journal", "save document", …
	Path string
	Err  error
	Hint string // what to do; may be empty
}

// Error gives `append to journal "/var/lib/bulkhead/journal.log": no space left on device`.
func (e *Error) Error() string { return fmt.Sprintf("%s %q: %v", e.Op, e.Path, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Hint gives the hint of the first *Error in err's chain, "" when there is none.
func Hint(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// FileError wraps a failed file operation; the path is said once.
func FileError(op, path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return &Error{Op: op, Path: path, Err: err, Hint: fileHint(path, err)}
}

func fileHint(path string, err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Sprintf("free space below %q, or give another state directory with --state, and try again",
			filepath.Dir(path))
	case errors.Is(err, syscall.EROFS):
		return "the file system is read-only: remount it, or give another state directory with --state"
	case errors.Is(err, fs.ErrPermission):
		return "run as root, or give another state directory with --state"
	case errors.Is(err, syscall.EIO):
		return "the disk below the state directory reports errors (see dmesg); give another one with --state"
	}
	return ""
}

// ErrUncertain says that a record could not be put on disk for certain, and not be taken back either: who opens the
// journal next may find it or not.
var ErrUncertain = errors.New("the record may be in the journal all the same")

// uncertain is the error of such a record.
type uncertain struct{ error }

func (e *uncertain) Unwrap() error        { return e.error }
func (e *uncertain) Is(target error) bool { return target == ErrUncertain }
