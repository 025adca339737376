package journal

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Quiet runs look while nobody changes anything, after reading again what others wrote: what is pending
// then was cut off. When somebody holds the lock, what is pending is under way: look is not run, and Quiet
// says who it is. It takes the lock together with other readers (flock(2), LOCK_SH), so whoever wants to
// change something waits for look; neither the lock's file nor the state directory is made.
func (s *Store) Quiet(look func() error) (by *Holder, err error) {
	path := filepath.Join(s.dir, lockName)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	for err == unix.EINTR { // some file systems can be interrupted
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, look() // nobody ever changed anything here, or what lies there is no lock
	}
	if err != nil {
		return nil, fileError("open lock", path, err)
	}
	defer unix.Close(fd) // it gives the lock back
	if err := share(fd); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			h := readHolder(path)
			return &h, nil
		}
		return nil, fileError("lock", path, err)
	}
	if err := s.refresh(); err != nil {
		return nil, err
	}
	return nil, look()
}

func share(fd int) error {
	for {
		if err := unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB); err != unix.EINTR {
			return err
		}
	}
}

// refresh reads the logs again if another process wrote them since.
func (s *Store) refresh() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil || !s.log.changed() && !s.history.changed() {
		return nil
	}
	return s.load(false)
}
