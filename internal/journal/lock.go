package journal

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

// Lock is the right to change the host and the state directory. The kernel takes it back when the
// process ends, however it ends.
type Lock struct {
	store *Store
	file  *os.File
}

// Lock takes the lock or returns a *LockedError at once. It makes the state directory if need be,
// reads again what another process wrote meanwhile, and mends logs that a crash left torn. A directory
// that has become read-only can be locked too: what is in it is needed to give the host back.
func (s *Store) Lock(verb, who string) (*Lock, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.makeDir(); err != nil {
		return nil, err
	}
	path := filepath.Join(s.dir, lockName)
	f, err := takeLock(path, Holder{PID: os.Getpid(), Verb: verb, Who: who, Since: s.o.Now()})
	if err != nil {
		return nil, err
	}
	if !s.mended || s.log.changed() || s.history.changed() {
		err = s.load(true)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	s.lock = &Lock{store: s, file: f}
	if err := s.settle(); err != nil { // the next change says so
		s.warn(fmt.Sprintf("put committed documents in their places: %v", err))
	}
	return s.lock, nil
}

// takeLock opens a lock file and locks it, or returns a *LockedError at once.
func takeLock(path string, h Holder) (*os.File, error) {
	f, err := openLock(path)
	if err != nil {
		return nil, fileError("open lock", path, err)
	}
	if err := flock(f); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &LockedError{Path: path, Holder: readHolder(path)}
		}
		return nil, fileError("lock", path, err)
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
	return os.Rename(path, asideOf(path, time.Now()))
}

// Release gives the lock back. A second call does nothing.
func (l *Lock) Release() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if l.store.lock == l {
		l.store.unlock()
	}
}

// unlock lets go of the lock, if held.
func (s *Store) unlock() {
	if s.lock == nil {
		return
	}
	s.log.mark()
	s.history.mark()
	_ = s.lock.file.Truncate(0)
	_ = s.lock.file.Close() // closes the only descriptor, and with it the flock(2)
	s.lock = nil
}

// AgentLock is the right to be the agent of a state directory.
type AgentLock struct{ file *os.File }

// LockAgent takes the right to be the agent, for as long as the process lives or until Release. A
// *LockedError names the other agent. It is apart from Lock, which each change takes for itself.
func (s *Store) LockAgent(socket string) (*AgentLock, error) {
	if err := s.makeDir(); err != nil {
		return nil, err
	}
	f, err := takeLock(filepath.Join(s.dir, agentLockName),
		Holder{PID: os.Getpid(), Verb: "agent", Since: s.o.Now(), Socket: socket})
	if err != nil {
		return nil, err
	}
	return &AgentLock{f}, nil
}

// Release gives the right back.
func (l *AgentLock) Release() {
	_ = l.file.Truncate(0)
	_ = l.file.Close()
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EINTR {
			return err
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

// readHolder gives the holder's name; it may be about to write it, so a few looks are needed.
func readHolder(path string) Holder {
	for range 5 {
		var h Holder
		if data, err := (atomicfile.OS{}).ReadFile(path); err == nil && json.Unmarshal(data, &h) == nil {
			return h
		}
		time.Sleep(2 * time.Millisecond)
	}
	return Holder{}
}
