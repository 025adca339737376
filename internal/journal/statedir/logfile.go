package statedir

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

// Log is an append-only log. Its file holds size sound bytes, and maybe, after a failed append
// that could not be cut off either, some more.
type Log struct {
	FS   atomicfile.FS
	Path string

	f     atomicfile.File // nil until the first append
	Size  int64
	dirty bool // bytes beyond size may be in the file
	fresh bool // the directory entry is not known to be on disk
	// Sealed is why the log could not be mended: a record behind a torn one would be lost.
	Sealed error
	seen   os.FileInfo
}

// Damage is a log as read, with what is wrong in it.
type Damage struct {
	data    []byte
	missing bool // there is no file
	faults  []Fault
	// unusable is why what lies there was not read at all; nil when it was.
	unusable error
	// looked is what the file looked like before it was read; nil: there was none.
	looked os.FileInfo
}

// Sound says that nothing is wrong.
func (d Damage) Sound() bool { return len(d.faults) == 0 && d.unusable == nil }

// Torn says that only the last record is bad: what an interrupted append leaves behind.
func (d Damage) Torn() bool {
	if len(d.faults) != 1 || d.unusable != nil {
		return false
	}
	last := d.faults[0]
	return last.offset+last.Length == int64(len(d.data))
}

// Read hands every sound record of the file to use. It changes nothing, here or there. A log that
// does not exist is empty.
func (l *Log) Read(use func([]byte) error) (Damage, error) {
	looked, _ := os.Lstat(l.Path)
	data, err := l.FS.ReadFile(l.Path)
	if errors.Is(err, atomicfile.ErrUnusable) {
		return Damage{missing: true, unusable: err, looked: looked}, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Damage{}, FileError("read log", l.Path, err)
	}
	return Damage{data: data, missing: err != nil, faults: Scan(data, use), looked: looked}, nil
}

// Adopt takes the file for what read just found; another process may have replaced the open one. Who has no lock may
// find it replaced while it was read, too: then Changed says so.
func (l *Log) Adopt(d Damage) {
	_ = l.Close() // nothing was written through it that was not checked
	l.Size, l.dirty, l.fresh, l.Sealed = int64(len(d.data)), false, d.missing, nil
	l.seen = d.looked
}

// Describe says what is wrong with the log, for people.
func (l *Log) Describe(d Damage) string {
	if d.unusable != nil {
		return fmt.Sprintf("%s: %v", l.Path, d.unusable)
	}
	f := d.faults[0]
	if d.Torn() {
		return fmt.Sprintf("%s: the last record, at byte %d, was not written to its end (%s)", l.Path, f.offset,
			f.reason)
	}
	return fmt.Sprintf("%s: damaged at byte %d (%s)%s", l.Path, f.offset, f.reason, more(len(d.faults)-1))
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
func (l *Log) mend(d Damage, mark []byte, now time.Time) (string, error) {
	if d.Torn() {
		l.Size, l.dirty = d.faults[0].offset, true
		if err := l.Append(nil, true); err != nil {
			return "", err
		}
		return l.Describe(d) + "; it was cut off", nil
	}
	aside := AsideOf(l.Path, now)
	if d.unusable != nil {
		if err := l.FS.Rename(l.Path, aside); err != nil {
			return "", fmt.Errorf("%w: %w", d.unusable, FileError("set log aside", l.Path, err))
		}
		if err := l.Replace(mark); err != nil {
			return "", err
		}
		return l.Describe(d) + fmt.Sprintf("; it was put aside as %q", aside), nil
	}
	if _, err := atomicfile.Write(l.FS, aside, d.data, 0o600); err != nil {
		return "", FileError("set damaged log aside as", aside, err)
	}
	if err := l.Replace(append(Without(d.data, d.faults), mark...)); err != nil {
		return "", err
	}
	return l.Describe(d) + fmt.Sprintf("; what could be read was kept, the damaged file is %q", aside), nil
}

// AsideOf is the name under which what is damaged is kept for a person to look at.
func AsideOf(path string, now time.Time) string {
	return path + ".damaged-" + now.UTC().Format("20060102T150405.000000000Z")
}

// Append adds whole records. After an error the log holds what it held before; if even that could not be arranged, the
// next append arranges it first, and the error matches ErrUncertain when the records may be there whole until then.
func (l *Log) Append(data []byte, sync bool) (err error) {
	if l.Sealed != nil {
		return l.Sealed
	}
	whole := false
	defer func() {
		if err == nil {
			return
		}
		l.cut()
		err = FileError("append to log", l.Path, err)
		if whole && l.dirty {
			err = &uncertain{err}
		}
	}()
	if err := l.open(); err != nil {
		return err
	}
	if l.dirty {
		if err := l.f.Truncate(l.Size); err != nil {
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
	l.Size += int64(len(data))
	return nil
}

func (l *Log) open() error {
	if l.f != nil {
		return nil
	}
	f, err := l.FS.Open(l.Path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	l.f = f
	if err != nil {
		l.f = nil
	}
	return err
}

// sync puts the file on disk, and its directory entry the first time.
func (l *Log) sync() error {
	if err := l.f.Sync(); err != nil {
		return err
	}
	if !l.fresh {
		return nil
	}
	if err := atomicfile.SyncDir(l.FS, filepath.Dir(l.Path)); err != nil {
		return err
	}
	l.fresh = false
	return nil
}

// cut takes off what a failed append left behind, if the file system lets it.
func (l *Log) cut() {
	if l.f != nil && l.dirty && l.f.Truncate(l.Size) == nil {
		l.dirty = false
	}
}

// Replace rewrites the log by rename; a kill at any point leaves the old one or the new one.
func (l *Log) Replace(data []byte) error {
	renamed, err := atomicfile.Write(l.FS, l.Path, data, 0o600)
	if !renamed {
		return FileError("rewrite log", l.Path, err)
	}
	// When only the directory could not be synced, the next synced append does it. The open file
	// is the old one, which has no name any more.
	l.Size, l.dirty, l.fresh = int64(len(data)), false, err != nil
	return l.Close()
}

// Close closes the file.
func (l *Log) Close() error {
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}

// Mark remembers what the file looks like, so that changed can tell whether somebody else wrote.
func (l *Log) Mark() { l.seen, _ = os.Lstat(l.Path) }

// Changed says that the file is not the one, or not as long as, this log knows.
func (l *Log) Changed() bool {
	now, err := os.Lstat(l.Path)
	if err != nil || l.seen == nil || l.dirty {
		return true
	}
	return !os.SameFile(now, l.seen) || now.Size() != l.Size || !now.ModTime().Equal(l.seen.ModTime())
}

// Judge says what is wrong with a log, "" for nothing, and, if asked, mends it; the mended one ends with mark. One that
// cannot be mended, because the disk is full or read-only, is read as it is and takes no more.
func (l *Log) Judge(d Damage, mend bool, mark []byte, now time.Time) string {
	if d.Sound() {
		return ""
	}
	if mend {
		mended, err := l.mend(d, mark, now)
		if l.Sealed = err; err == nil {
			return mended
		}
	}
	return l.Describe(d)
}
