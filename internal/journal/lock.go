package journal

import (
	"fmt"
	"os"
	"path/filepath"

	"bulkhead/internal/journal/statedir"
)

// Lock takes the lock or returns a *LockedError at once. It makes the state directory if need be,
// reads again what another process wrote meanwhile, and mends logs that a crash left torn. A directory
// that has become read-only can be locked too: what is in it is needed to give the host back.
func (s *Store) Lock(verb, who string) (*Lock, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := makeDir(s.o.FS, s.dir); err != nil {
		return nil, err
	}
	path := filepath.Join(s.dir, lockName)
	f, err := statedir.TakeLock(path, statedir.Holder{PID: os.Getpid(), Verb: verb, Who: who, Since: s.o.Now()})
	if err != nil {
		return nil, err
	}
	switch {
	case s.log.Changed() || s.history.Changed() || !s.mended && !s.sound:
		err = s.load(true)
	default: // what Open read, without the lock, is as it was then
		s.mended = true
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	s.lock = &Lock{store: s, file: f}
	if err := s.settle(); err != nil { // the next change says so
		s.warnings.add(fmt.Sprintf("put committed documents in their places: %v", err))
	}
	return s.lock, nil
}

// Release gives the lock back. A second call does nothing.
func (l *Lock) Release() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if l.store.lock == l {
		l.drop()
	}
}

// drop lets go of the lock. It needs the mutex of the store.
func (l *Lock) drop() {
	l.store.log.Mark()
	l.store.history.Mark()
	_ = l.file.Truncate(0)
	_ = l.file.Close() // closes the only descriptor, and with it the flock(2)
	l.store.lock = nil
}

// AgentLock is the right to be the agent of a state directory.
type AgentLock struct{ file *os.File }

// LockAgent takes the right to be the agent, for as long as the process lives or until Release. A
// *LockedError names the other agent. It is apart from Lock, which each change takes for itself.
func (s *Store) LockAgent(socket string) (*AgentLock, error) {
	if err := makeDir(s.o.FS, s.dir); err != nil {
		return nil, err
	}
	f, err := statedir.TakeLock(filepath.Join(s.dir, agentLockName),
		statedir.Holder{PID: os.Getpid(), Verb: "agent", Since: s.o.Now(), Socket: socket})
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
