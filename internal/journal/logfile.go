package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"bulkhead/internal/atomicfile"
)

// logFile is an append-only log. Its file holds size sound bytes, and maybe, after a failed append
// that could not be cut off either, some more.
type logFile struct {
	fs   atomicfile.FS
	path string

	f     atomicfile.File // nil until the first append
	size  int64
	dirty bool // bytes beyond size may be in the file
	fresh bool // the directory entry is not known to be on disk
	// sealed is why the log could not be mended: a record behind a torn one would be lost.
	sealed error
	seen   os.FileInfo
}

// damage is a log as read, with what is wrong in it.
type damage struct {
	data    []byte
	missing bool // there is no file
	faults  []fault
	// unusable is why what lies there was not read at all; nil when it was.
	unusable error
}

// sound says that nothing is wrong.
func (d damage) sound() bool { return len(d.faults) == 0 && d.unusable == nil }

// torn says that only the last record is bad: what an interrupted append leaves behind.
func (d damage) torn() bool {
	if len(d.faults) != 1 || d.unusable != nil {
		return false
	}
	last := d.faults[0]
	return last.offset+last.length == int64(len(d.data))
}

// read hands every sound record of the file to use. It changes nothing, here or there. A log that
// does not exist is empty.
func (l *logFile) read(use func([]byte) error) (damage, error) {
	data, err := l.fs.ReadFile(l.path)
	if errors.Is(err, atomicfile.ErrUnusable) {
		return damage{missing: true, unusable: err}, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return damage{}, fileError("read log", l.path, err)
	}
	return damage{data: data, missing: err != nil, faults: scan(data, use)}, nil
}

// adopt takes the file for what read just found; another process may have replaced the open one.
func (l *logFile) adopt(d damage) {
	_ = l.close() // nothing was written through it that was not checked
	l.size, l.dirty, l.fresh, l.sealed = int64(len(d.data)), false, d.missing, nil
	l.mark()
}

// describe says what is wrong with the log, for people.
func (l *logFile) describe(d damage) string {
	if d.unusable != nil {
		return fmt.Sprintf("%s: %v", l.path, d.unusable)
	}
	f := d.faults[0]
	if d.torn() {
		return fmt.Sprintf("%s: the last record, at byte %d, was not written to its end (%s)", l.path, f.offset,
			f.reason)
	}
	return fmt.Sprintf("%s: damaged at byte %d (%s)%s", l.path, f.offset, f.reason, more(len(d.faults)-1))
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and in %d more places", n)
}

// mend makes the file sound again and says what it did. A torn tail is cut off. A file damaged
// elsewhere is kept under another name, and a new one gets the records that could be read, and mark; a kill
// at any point leaves the damaged file or the mended one in place, never none.
func (l *logFile) mend(d damage, mark []byte, now time.Time) (string, error) {
	if d.torn() {
		l.size, l.dirty = d.faults[0].offset, true
		if err := l.append(nil, true); err != nil {
			return "", err
		}
		return l.describe(d) + "; it was cut off", nil
	}
	aside := asideOf(l.path, now)
	if d.unusable != nil {
		if err := l.fs.Rename(l.path, aside); err != nil {
			return "", fmt.Errorf("%w: %w", d.unusable, fileError("set log aside", l.path, err))
		}
		if err := l.replace(mark); err != nil {
			return "", err
		}
		return l.describe(d) + fmt.Sprintf("; it was put aside as %q", aside), nil
	}
	if _, err := atomicfile.Write(l.fs, aside, d.data, 0o600); err != nil {
		return "", fileError("set damaged log aside as", aside, err)
	}
	if err := l.replace(append(without(d.data, d.faults), mark...)); err != nil {
		return "", err
	}
	return l.describe(d) + fmt.Sprintf("; what could be read was kept, the damaged file is %q", aside), nil
}

// asideOf is the name under which what is damaged is kept for a person to look at.
func asideOf(path string, now time.Time) string {
	return path + ".damaged-" + now.UTC().Format("20060102T150405.000000000Z")
}

// append adds whole records. After an error the log holds what it held before; if even that could not be arranged, the
// next append arranges it first, and the error matches ErrUncertain when the records may be there whole until then.
func (l *logFile) append(data []byte, sync bool) (err error) {
	if l.sealed != nil {
		return l.sealed
	}
	whole := false
	defer func() {
		if err == nil {
			return
		}
		l.cut()
		err = fileError("append to log", l.path, err)
		if whole && l.dirty {
			err = &uncertain{err}
		}
	}()
	if err := l.open(); err != nil {
		return err
	}
	if l.dirty {
		if err := l.f.Truncate(l.size); err != nil {
			return err
		}
		l.dirty = false
	}
	if n, err := l.f.Write(data); err != nil || n < len(data) {
		l.dirty = true
		if err == nil {
			err = io.ErrShortWrite
		}
		return err
	}
	if sync {
		if err := l.sync(); err != nil {
			l.dirty, whole = true, true
			return err
		}
	}
	l.size += int64(len(data))
	return nil
}

func (l *logFile) open() error {
	if l.f != nil {
		return nil
	}
	f, err := l.fs.Open(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	l.f = f
	if err != nil {
		l.f = nil
	}
	return err
}

// sync puts the file on disk, and its directory entry the first time.
func (l *logFile) sync() error {
	if err := l.f.Sync(); err != nil {
		return err
	}
	if !l.fresh {
		return nil
	}
	if err := atomicfile.SyncDir(l.fs, filepath.Dir(l.path)); err != nil {
		return err
	}
	l.fresh = false
	return nil
}

// cut takes off what a failed append left behind, if the file system lets it.
func (l *logFile) cut() {
	if l.f != nil && l.dirty && l.f.Truncate(l.size) == nil {
		l.dirty = false
	}
}

// replace rewrites the log by rename; a kill at any point leaves the old one or the new one.
func (l *logFile) replace(data []byte) error {
	renamed, err := atomicfile.Write(l.fs, l.path, data, 0o600)
	if !renamed {
		return fileError("rewrite log", l.path, err)
	}
	// When only the directory could not be synced, the next synced append does it. The open file
	// is the old one, which has no name any more.
	l.size, l.dirty, l.fresh = int64(len(data)), false, err != nil
	return l.close()
}

func (l *logFile) close() error {
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}

// mark remembers what the file looks like, so that changed can tell whether somebody else wrote.
func (l *logFile) mark() { l.seen, _ = os.Lstat(l.path) }

// changed says that the file is not the one, or not as long as, this log knows.
func (l *logFile) changed() bool {
	now, err := os.Lstat(l.path)
	if err != nil || l.seen == nil || l.dirty {
		return true
	}
	return !os.SameFile(now, l.seen) || now.Size() != l.size || !now.ModTime().Equal(l.seen.ModTime())
}
