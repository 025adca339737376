package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// logFile is an append-only log. Its file holds size sound bytes, and maybe, after a failed append
// that could not be cut off either, some more.
type logFile struct {
	fs   FS
	path string

	f     File // nil until the first append
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
}

// torn says that only the last record is bad: what an interrupted append leaves behind.
func (d damage) torn() bool {
	last := d.faults[len(d.faults)-1]
	return len(d.faults) == 1 && last.offset+last.length == int64(len(d.data))
}

// read hands every sound record of the file to use. It changes nothing, here or there. A log that
// does not exist is empty.
func (l *logFile) read(use func([]byte) error) (damage, error) {
	data, err := l.fs.ReadFile(l.path)
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
	f := d.faults[0]
	if d.torn() {
		return fmt.Sprintf("%s: the last record, at byte %d, was not written to its end (%s)", l.path, f.offset, f.reason)
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
	aside := l.path + ".damaged-" + now.UTC().Format("20060102T150405.000000000Z")
	if _, err := writeFile(l.fs, aside, d.data); err != nil {
		return "", fileError("set damaged log aside as", aside, err)
	}
	if err := l.replace(append(without(d.data, d.faults), mark...)); err != nil {
		return "", err
	}
	return l.describe(d) + fmt.Sprintf("; what could be read was kept, the damaged file is %q", aside), nil
}

// append adds whole records. After an error the log holds what it held before; if even that could
// not be arranged, the next append arranges it first, and the error matches ErrUncertain when the records may be there whole until then.
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
	if err := syncDir(l.fs, filepath.Dir(l.path)); err != nil {
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
	renamed, err := writeFile(l.fs, l.path, data)
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
func (l *logFile) mark() { l.seen, _ = os.Stat(l.path) }

// changed says that the file is not the one, or not as long as, this log knows.
func (l *logFile) changed() bool {
	now, err := os.Stat(l.path)
	if err != nil || l.seen == nil || l.dirty {
		return true
	}
	return !os.SameFile(now, l.seen) || now.Size() != l.size || !now.ModTime().Equal(l.seen.ModTime())
}

// writeFile puts data under a name, whole or not at all: a temporary file in the same directory,
// synced, renamed, and the directory synced. Renamed with an error says that the data is there, but
// not known to be on disk.
func writeFile(fsys FS, name string, data []byte) (renamed bool, err error) {
	tmp := name + ".tmp"
	err = writeSynced(fsys, tmp, data)
	if err == nil {
		err = fsys.Rename(tmp, name)
	}
	if err != nil {
		// Also gives back the space on a full disk; the error that counts is the first one.
		_ = fsys.Remove(tmp)
		return false, err
	}
	return true, syncDir(fsys, filepath.Dir(name))
}

func writeSynced(fsys FS, name string, data []byte) error {
	f, err := fsys.Open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	n, err := f.Write(data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir puts a directory's entries on disk.
func syncDir(fsys FS, dir string) error {
	d, err := fsys.Open(dir, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
