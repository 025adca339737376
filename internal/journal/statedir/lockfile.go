package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/atomicfile"
)

// Holder is who has the lock.
type Holder struct {
	PID   int       `json:"pid"`
	Verb  string    `json:"verb"`
	Who   string    `json:"who,omitempty"`
	Since time.Time `json:"since"`
	// Socket is where an agent listens.
	Socket string `json:"socket,omitempty"`
}

// LockedError says that somebody else has the lock.
type LockedError struct {
	Path string
	// Holder is empty when the other one has the lock but has not written its name yet.
	Holder Holder
}

// Error names the holder, as far as it is known.
func (e *LockedError) Error() string {
	h := e.Holder
	if h.PID == 0 {
		return fmt.Sprintf("lock %q: somebody else holds it", e.Path)
	}
	who := ""
	if h.Who != "" {
		who = " by " + h.Who
	}
	return fmt.Sprintf("lock %q: held by `bulkhead %s`%s, process %d, since %s", e.Path, h.Verb, who, h.PID,
		h.Since.Local().Format(time.DateTime))
}

// TakeLock opens a lock file and locks it, or returns a *LockedError at once.
func TakeLock(path string, h Holder) (*os.File, error) {
	f, err := openLock(path)
	if err != nil {
		return nil, FileError("open lock", path, err)
	}
	if err := Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &LockedError{Path: path, Holder: ReadHolder(path)}
		}
		return nil, FileError("lock", path, err)
	}
	// Who holds it is for people only: a full disk must not stand in the way of a release.
	_ = writeHolder(f, h)
	return f, nil
}

// openLock opens a lock file, making it if need be. flock(2) asks for no right to write, so one on a file
// system that has become read-only is opened for reading; where none was made yet, or what lies there is no
// file and cannot be renamed, the directory stands in for it.
func openLock(path string) (*os.File, error) {
	if err := atomicfile.Check(path); errors.Is(err, atomicfile.ErrUnusable) {
		if setLockAside(path) != nil { // a mount point, for instance
			return os.Open(filepath.Dir(path))
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if !errors.Is(err, unix.EROFS) {
		return f, err
	}
	f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.Open(filepath.Dir(path))
	}
	return f, err
}

// setLockAside makes way for a lock file where something else lies. Those who find that at the same time take turns by
// locking the directory, so that none of them puts the new file aside.
func setLockAside(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() // it unlocks
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	if err := atomicfile.Check(path); !errors.Is(err, atomicfile.ErrUnusable) {
		return err
	}
	return os.Rename(path, AsideOf(path, time.Now()))
}

// Flock locks an open file, shared or alone (flock(2), LOCK_SH, LOCK_EX), or fails at once.
func Flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how|unix.LOCK_NB); err != unix.EINTR {
			return err
		}
	}
}

// OpenShared opens a lock file that is to be shared, and makes none. It gives the descriptor.
func OpenShared(path string) (int, error) {
	for { // some file systems can be interrupted
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func writeHolder(f *os.File, h Holder) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(append(data, '\n'), 0)
	return err
}

// ReadHolder gives the holder's name; it may be about to write it, so a few looks are needed.
func ReadHolder(path string) Holder {
	for range 5 {
		var h Holder
		if data, err := (atomicfile.OS{}).ReadFile(path); err == nil && json.Unmarshal(data, &h) == nil {
			return h
		}
		time.Sleep(2 * time.Millisecond)
	}
	return Holder{}
}
