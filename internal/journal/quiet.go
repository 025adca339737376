package journal

import (
	"bulkhead/internal/journal/statedir"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Quiet runs look while nobody changes anything, after reading again what others wrote: what is pending
// then was cut off. When somebody holds the lock, what is pending is under way: look is not run, and Quiet
// says who it is. It takes the lock together with other readers (flock(2), LOCK_SH), so whoever wants to
// change something waits for look; neither the lock's file nor the state directory is made.
func (s *Store) Quiet(look func() error) (by *statedir.Holder, err error) {
	path := filepath.Join(s.dir, lockName)
	fd, err := statedir.OpenShared(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, look() // nobody ever changed anything here, or what lies there is no lock
	}
	if err != nil {
		return nil, statedir.FileError("open lock", path, err)
	}
	defer unix.Close(fd) // it gives the lock back
	if err := statedir.Flock(fd, unix.LOCK_SH); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			h := statedir.ReadHolder(path)
			return &h, nil
		}
		return nil, statedir.FileError("lock", path, err)
	}
	if err := refresh(s); err != nil {
		return nil, err
	}
	return nil, look()
}

// refresh reads the logs again if another process wrote them since.
func refresh(s *Store) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil || !s.log.Changed() && !s.history.Changed() {
		return nil
	}
	return s.load(false)
}

// SharedLock is Quiet for who looks many times a second: the lock's file stays open, and what was read stays read until
// somebody takes the lock. It is not safe for concurrent use.
type SharedLock struct {
	store *Store
	fd    int         // of the lock's file; -1: not open
	own   unix.Stat_t // the file that fd is of, when it was opened
	seen  unix.Stat_t // the file when it was shared last; zero: not known
}

// NewSharedLock makes one. Nothing is opened yet.
func NewSharedLock(s *Store) *SharedLock { return &SharedLock{store: s, fd: -1} }

// racyTime is how old a change of the lock's file has to be before another one is sure to give it another time: the
// clock of a file system may stand still for 10 ms.
const racyTime = 50 * time.Millisecond

// Quiet is that of the store. Same says that nobody has taken the lock since the look before, so that what lies in the
// state directory is the same: whoever takes the lock writes to its file.
func (k *SharedLock) Quiet(look func(same bool) error) (by *statedir.Holder, err error) {
	var now unix.Stat_t
	if !k.take(filepath.Join(k.store.dir, lockName), &now) {
		k.Close()
		return k.store.Quiet(func() error { return look(false) })
	}
	defer unix.Flock(k.fd, unix.LOCK_UN) //nolint:errcheck // it was taken
	now.Atim = unix.Timespec{}           // who reads who holds it changes that
	same := k.seen == now
	if k.seen = (unix.Stat_t{}); !same {
		if err := refresh(k.store); err != nil {
			return nil, err
		}
	}
	if time.Since(time.Unix(now.Mtim.Unix())) > racyTime {
		k.seen = now
	}
	return nil, look(same)
}

// take shares the lock by the file that is kept open, which is to be the one at path, and gives its state. False: that
// cannot be done, or somebody holds the lock.
func (k *SharedLock) take(path string, now *unix.Stat_t) bool {
	if k.fd < 0 {
		k.fd, _ = statedir.OpenShared(path)
		k.seen = unix.Stat_t{}
		if k.fd < 0 || unix.Fstat(k.fd, &k.own) != nil {
			return false
		}
	}
	return statedir.Flock(k.fd, unix.LOCK_SH) == nil && unix.Lstat(path, now) == nil &&
		k.own.Dev == now.Dev && k.own.Ino == now.Ino
}

// Close lets go of the file, and of the lock with it. A later Quiet opens it again.
func (k *SharedLock) Close() {
	if k.fd >= 0 {
		_ = unix.Close(k.fd)
		k.fd = -1
	}
}
