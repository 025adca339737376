// Package auditlog finds and reads the logs of auditd (auditd.conf(5)) of a host: those that were rotated too, and what
// is added to the newest. Only root may read them; errors match those of package io/fs.
package auditlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/avc"
)

// config is auditd's, Usual where it writes without a word there.
const (
	config = "/etc/audit/auditd.conf"
	Usual  = "/var/log/audit/audit.log"
)

// Files are those of auditd, the oldest first; the newest may not be there.
func Files(root *sysroot.FS) ([]string, error) {
	file := Usual
	text, err := root.ReadOptional(config)
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("read %q: %w", config, err)
	}
	for line := range strings.Lines(text) {
		if key, value, is := strings.Cut(line, "="); is && strings.TrimSpace(key) == "log_file" {
			file = strings.TrimSpace(value)
		}
	}
	names := []string{file}
	const most = 999 // num_logs
	for n := 1; n <= most; n++ {
		name := file + "." + strconv.Itoa(n)
		if !root.Exists(name) {
			break
		}
		names = append([]string{name}, names...)
	}
	return names, nil
}

// Read reads them all, the oldest first, and gives their names. Now is where dates without a year are counted from.
func Read(root *sysroot.FS, log *avc.Log, now time.Time) ([]string, error) {
	names, err := Files(root)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		f, err := root.Open(name)
		if err == nil {
			err = log.Read(f, now)
			f.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", name, sysroot.Cause(err))
		}
	}
	return names, nil
}

// Follower gives denials as they are logged, once each. It is for one goroutine.
type Follower struct {
	Root *sysroot.FS
	// Since is when the first of them may have been.
	Since time.Time
	file  *os.File // the newest log, as far as it was read
	rest  []byte   // of a line that is not whole yet
	part  []byte   // is read into
}

// Next gives what was logged since it was asked before; the first time, since Since. After a rotation it reads the log
// before to its end; two rotations between two questions would hide what only the log between them has.
func (f *Follower) Next(now time.Time) ([]avc.Denial, error) {
	log := &avc.Log{}
	names, err := Files(f.Root)
	if err != nil {
		return nil, err
	}
	newest := names[len(names)-1]
	if f.file == nil {
		for _, name := range names[:len(names)-1] {
			if err := f.open(name); err != nil {
				return nil, err
			}
			if err := f.more(log, now); err != nil {
				return nil, err
			}
		}
	} else {
		if err := f.more(log, now); err != nil {
			return nil, err
		}
		if same, err := f.is(newest); err != nil || same {
			return log.Denials, err
		}
	}
	if err := f.open(newest); err != nil {
		return log.Denials, err
	}
	err = f.more(log, now)
	return log.Denials, err
}

// open goes on with another file.
func (f *Follower) open(name string) error {
	next, err := f.Root.Open(name)
	if err != nil {
		f.Close()
		return fmt.Errorf("read %q: %w", name, sysroot.Cause(err))
	}
	f.Close()
	f.file = next
	return nil
}

// is says whether the file that is read has this name still, and was not cut.
func (f *Follower) is(name string) (bool, error) {
	now, err := f.Root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // it is being rotated: the new one comes
	}
	was, one := f.file.Stat()
	at, two := f.file.Seek(0, io.SeekCurrent)
	if err := errors.Join(err, one, two); err != nil {
		return false, fmt.Errorf("read %q: %w", name, sysroot.Cause(err))
	}
	return os.SameFile(now, was) && now.Size() >= at, nil
}

// more reads the whole lines that were added, a part at a time, and keeps what is not before Since.
func (f *Follower) more(log *avc.Log, now time.Time) error {
	const part, longest = 1 << 20, 64 << 10 // of a line no more is read
	if f.part == nil {
		f.part = make([]byte, part)
	}
	for {
		n, err := f.file.Read(f.part)
		if n > 0 {
			text := append(f.rest, f.part[:n]...)
			end := bytes.LastIndexByte(text, '\n') + 1
			f.rest = bytes.Clone(text[end:min(len(text), end+longest)])
			if err := log.Read(bytes.NewReader(text[:end]), now); err != nil {
				return err
			}
			log.Since(f.Since.Truncate(time.Millisecond)) // records have no more
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the log of auditd: %w", sysroot.Cause(err))
		}
	}
}

// Close forgets the file: the next question reads from Since again.
func (f *Follower) Close() {
	if f.file != nil {
		f.file.Close()
	}
	f.file, f.rest = nil, nil
}
