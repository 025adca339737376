// Package journal owns the state directory: the originals of everything bulkhead changes on the
// host, the history of who changed what, and the documents that must survive a restart.
//
// journal.log is written ahead: Begin puts a transaction's originals on disk, synced, before the
// caller changes anything; End says how it went. A transaction without an end was cut off, by a
// crash or kill -9, and Pending hands it to whoever undoes it. Everything carries the boot it
// belongs to, because nothing in a cgroup file system outlives one.
//
//	/var/lib/bulkhead/        0700
//	    lock                  flock(2); names the holder
//	    agent.lock            the same, held by the agent as long as it lives
//	    journal.log           one record per line: CRC-32C in hex, a space, JSON
//	    history.log           the same format, one Entry each
//	    applied.json, …       documents, replaced by rename
//	    journal.log.damaged-… a log that was damaged in the middle, kept for a person to look at
//
// Reading works without the lock and changes nothing, not even a torn tail. Everything that writes
// needs the lock. A Store is safe for use by several goroutines.
package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"
)

// Names of files in the state directory.
const (
	lockName      = "lock"
	agentLockName = "agent.lock"
	logName       = "journal.log"
	historyName   = "history.log"
)

// Sizes at which the logs are rewritten with only what is still needed.
const (
	defaultCompactAt   = 1 << 20 // bytes of journal.log
	defaultHistoryFull = 8 << 20 // bytes of history.log; the newest half stays
)

// Errors that callers branch on.
var (
	ErrNotLocked = errors.New("the state directory is not locked")
	ErrDamaged   = errors.New("damaged")
	ErrNewer     = errors.New("written by a newer bulkhead")
	ErrPending   = errors.New("an earlier change was interrupted and is not undone yet")
)

// Options changes how a Store works; the zero value is what production uses.
type Options struct {
	// FS is the file system; nil is the real one.
	FS atomicfile.FS
	// Now is the clock of records; nil is time.Now.
	Now func() time.Time
	// Alive says whether a process still runs. When set, compaction forgets the homes and the
	// originals of processes that have exited.
	Alive func(procfs.ID) bool
	// CompactAt is the size of journal.log, in bytes, at which it is rewritten; 0 is 1 MiB.
	CompactAt int64
	// HistoryFull is the size of history.log, in bytes, at which its older half is dropped; 0 is 8 MiB.
	HistoryFull int64
}

// Store is an open state directory.
type Store struct {
	dir string
	o   Options

	mu       sync.Mutex
	lock     *Lock // nil while not locked
	log      *statedir.Log
	history  historyLog
	state    *state
	mended   bool // the logs were read under the lock, and are sound
	sound    bool // the logs were sound when they were read, and nothing is to be added to them
	light    bool // the open transaction was not synced
	warnings warnings
}

// Open reads the state directory. A directory that does not exist reads as empty; the first Lock
// makes it. What is wrong with the logs is in Warnings, and is mended by the next Lock.
func Open(dir string, o Options) (*Store, error) {
	if o.FS == nil {
		o.FS = atomicfile.OS{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.CompactAt == 0 {
		o.CompactAt = defaultCompactAt
	}
	if o.HistoryFull == 0 {
		o.HistoryFull = defaultHistoryFull
	}
	s := &Store{
		dir: dir, o: o, state: newState(),
		log:     &statedir.Log{FS: o.FS, Path: filepath.Join(dir, logName)},
		history: historyLog{Log: &statedir.Log{FS: o.FS, Path: filepath.Join(dir, historyName)}, full: o.HistoryFull},
	}
	s.history.warnings = &s.warnings
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	if err := s.load(false); err != nil {
		return nil, err
	}
	return s, nil
}

// Dir is the state directory.
func (s *Store) Dir() string { return s.dir }

// Close releases the lock, if this store holds it, and closes the files.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil {
		s.lock.drop()
	}
	return errors.Join(s.log.Close(), s.history.Close())
}

// Warnings are what was found wrong with the logs, with byte offsets, oldest first.
func (s *Store) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warnings)
}

// warnings are kept once each, oldest first.
type warnings []string

func (w *warnings) add(text string) {
	if text != "" && !slices.Contains(*w, text) {
		*w = append(*w, text)
	}
}

// load reads both logs. With mend set (the lock is held) it cuts off torn tails, sets damaged
// files aside and writes the history entry that a crash kept back.
func (s *Store) load(mend bool) error {
	st := newState()
	d, err := s.log.Read(st.use)
	if err != nil {
		return err
	}
	if st.version > formatVersion {
		return &statedir.Error{
			Op: "read log", Path: s.log.Path, Err: fmt.Errorf("%w (format %d)", ErrNewer, st.version),
			Hint: "use that version, or move the file away: its originals are then lost",
		}
	}
	var seen counters
	hd, err := s.history.Read(seen.use)
	if err != nil {
		return err
	}
	damaged := !d.Sound()
	if err := recall(s.history.Log, st, seen, damaged && !d.Torn()); err != nil {
		return err
	}
	lost, err := statedir.Line(record{Kind: kindLost})
	if err != nil {
		return err
	}
	end, err := lateEnd(s.history.Log, st, seen)
	if err != nil {
		return err
	}
	s.log.Adopt(d) // from here on nothing fails: what was not taken in is read again the next time
	s.history.Adopt(hd)
	for _, text := range []string{s.log.Judge(d, mend, lost, s.o.Now()), s.history.Judge(hd, mend, nil, s.o.Now())} {
		s.warnings.add(text)
	}
	if mend && end != nil {
		if err := s.log.Append(end, true); err != nil {
			s.warnings.add(fmt.Sprintf("record the end of a change: %v", err)) // it is found again the next time
		}
	}
	if !damaged {
		warnLost(s, st)
	}
	s.state, s.history.seen = st, seen
	s.mended = mend && s.log.Sealed == nil && s.history.Sealed == nil
	late := s.history.late(st.last)
	s.sound = whole(d, hd, end, late)
	if late != nil && s.mended {
		if _, err := s.history.record(*late, s.o.Now()); err != nil {
			s.warnings.add(fmt.Sprintf("record history: %v", err))
		}
	}
	return nil
}

// whole says that nothing is wrong with the logs, and that neither an end nor an entry is to be added.
func whole(log, history statedir.Damage, end []byte, late *Entry) bool {
	return log.Sound() && history.Sound() && end == nil && late == nil
}

// makeDir makes the state directory, readable by its owner only.
func makeDir(fsys atomicfile.FS, dir string) error {
	if err := checkDir(dir); err != nil {
		return err
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = atomicfile.SyncDir(fsys, filepath.Dir(dir))
	}
	if err != nil {
		return statedir.FileError("make state directory", dir, err)
	}
	return nil
}

// checkDir refuses a directory whose originals another user could forge: they are written back
// to the kernel as root. A directory that does not exist is fine.
func checkDir(dir string) error {
	fi, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return statedir.FileError("open state directory", dir, err)
	}
	if !fi.IsDir() {
		return &statedir.Error{Op: "open state directory", Path: dir, Err: syscall.ENOTDIR,
			Hint: "give another one with --state"}
	}
	owner := os.Geteuid()
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		owner = int(st.Uid)
	}
	if fi.Mode().Perm()&0o022 != 0 || owner != os.Geteuid() && owner != 0 {
		return &statedir.Error{
			Op: "open state directory", Path: dir,
			Err:  fmt.Errorf("others may write to it (mode %04o, owner %d)", fi.Mode().Perm(), owner),
			Hint: "chown it to root and chmod 0700",
		}
	}
	return nil
}

// Lock is the right to change the host and the state directory. The kernel takes it back when the
// process ends, however it ends.
type Lock struct {
	store *Store
	file  *os.File
}
