package zfslayout

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/treecopy"
)

// edited is the text of a file with an edit.
func edited(text []byte, e Edit) ([]byte, error) {
	lines := strings.SplitAfter(string(text), "\n")
	if e.Line < 1 || e.Line > len(lines) {
		return nil, fmt.Errorf("%s has no line %d any more", e.File, e.Line)
	}
	line, end := lines[e.Line-1], "\n"
	if strings.HasSuffix(line, "\r\n") {
		end = "\r\n"
	}
	if e.Old != "" {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		name = strings.ReplaceAll(strings.TrimSpace(name), "-", "_")
		if strings.TrimPrefix(name, "loose_") != e.Old {
			return nil, fmt.Errorf("line %d of %s is not the one of %s any more", e.Line, e.File, e.Old)
		}
		lines[e.Line-1] = e.New + end
		return []byte(strings.Join(lines, "")), nil
	}
	if !strings.HasSuffix(line, "\n") {
		line += end
	}
	lines[e.Line-1] = line + e.New + end
	return []byte(strings.Join(lines, "")), nil
}

// original reads the file of an edit, for the record. One that others than root could replace is an error.
func original(e Edit, dataDir string) (o Original, err error) {
	o.Edit = e
	if o.File, err = filepath.EvalSymlinks(e.File); err == nil {
		err = alone(filepath.Dir(o.File))
	}
	if err == nil && mountinfo.Within(o.File, dataDir) {
		err = fmt.Errorf("%s is in the data directory", o.File)
	}
	if err == nil {
		o.Text, err = (atomicfile.OS{}).ReadFile(o.File)
	}
	if err == nil {
		o.New, err = edited(o.Text, e)
	}
	return o, err
}

// Editable says why an edit cannot be made; nil where it can.
func Editable(e Edit, dataDir string) error {
	_, err := original(e, dataDir)
	return err
}

// alone sees that nobody but root, or the caller, can replace names in a directory, or the directory itself.
func alone(dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		uid, _, err := treecopy.Owner(dir)
		if err != nil {
			return err
		}
		sticky := info.Mode()&fs.ModeSticky != 0
		if uid != 0 && uid != os.Geteuid() || info.Mode().Perm()&0o022 != 0 && !sticky {
			return fmt.Errorf("others than root can write to the directory %s", dir)
		}
		if dir == "/" {
			return nil
		}
	}
}

// present says whether a file still has the line of the edit.
func (o Original) present() (bool, error) {
	now, err := (atomicfile.OS{}).ReadFile(o.File)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(now)) {
		if strings.TrimSpace(line) == o.Edit.New {
			return true, nil
		}
	}
	return false, nil
}

// write makes the edit, keeping the file as it was under another name. Done already, it does nothing.
func (o Original) write() error {
	now, err := (atomicfile.OS{}).ReadFile(o.File)
	switch {
	case err != nil:
		return err
	case bytes.Equal(now, o.New):
		return nil
	case !bytes.Equal(now, o.Text):
		return fmt.Errorf("%s was edited meanwhile", o.File)
	}
	if err := replace(o.File, o.File+Suffix, o.Text); err != nil {
		return err
	}
	return replace(o.File, o.File, o.New)
}

// undo gives the file back. In one that somebody edited since only the line of the edit is undone.
func (o Original) undo() (note string, err error) {
	now, err := (atomicfile.OS{}).ReadFile(o.File)
	if errors.Is(err, fs.ErrNotExist) {
		return o.File + " is gone; what it was is in " + o.File + Suffix, nil
	}
	if err != nil {
		return "", err
	}
	text := o.Text
	if !bytes.Equal(now, o.New) && !bytes.Equal(now, o.Text) {
		text, note = without(now, o), o.File+" was edited since: only the line of this program was taken out; what "+
			"it was is in "+o.File+Suffix
		if bytes.Equal(now, text) {
			note = o.File + " was edited since, and the line of this program is not in it: it stays as it is; what " +
				"it was is in " + o.File + Suffix + ". See where it has the server look for its redo log"
		}
	}
	if !bytes.Equal(now, text) {
		if err := replace(o.File, o.File, text); err != nil {
			return note, err
		}
	}
	if note != "" {
		return note, nil
	}
	if kept, err := (atomicfile.OS{}).ReadFile(o.File + Suffix); err != nil || !bytes.Equal(kept, o.Text) {
		return "", nil //nolint:nilerr // it is not what was kept, and stays
	}
	return "", os.Remove(o.File + Suffix)
}

// without is a text without the line of an edit, or with the one that was there before.
func without(text []byte, o Original) []byte {
	lines := strings.SplitAfter(string(text), "\n")
	before := strings.SplitAfter(string(o.Text), "\n")
	for i, line := range lines {
		if strings.TrimSpace(line) == o.Edit.New {
			lines[i] = ""
			if o.Edit.Old != "" {
				lines[i] = strings.TrimSuffix(before[o.Edit.Line-1], "\n") + "\n"
			}
		}
	}
	return []byte(strings.Join(lines, ""))
}

// likeFile is the file system, where a file gets the owner, mode and label of another one before it gets its name.
type likeFile struct {
	atomicfile.OS
	like string
}

// Rename is rename(2) of the file that was written.
func (l likeFile) Rename(from, to string) error {
	if err := treecopy.Like(l.like, from); err != nil {
		return err
	}
	f, err := os.OpenFile(from, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return l.OS.Rename(from, to)
}

// replace writes a file whole or not at all, with the owner, mode and label of another one.
func replace(like, name string, text []byte) error {
	_, err := atomicfile.Write(likeFile{like: like}, name, text, 0o600)
	return err
}
