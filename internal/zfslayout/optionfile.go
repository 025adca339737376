package zfslayout

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/linux/treecopy"
)

// edited is the text of a file with an edit.
func edited(text []byte, e Edit) ([]byte, error) {
	lines := strings.SplitAfter(string(text), "\n")
	if e.Line < 1 || e.Line > len(lines) {
		return nil, fmt.Errorf("%s has no line %d any more", e.File, e.Line)
	}
	line := lines[e.Line-1]
	if e.Old != "" {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		if strings.ReplaceAll(strings.TrimSpace(name), "-", "_") != e.Old {
			return nil, fmt.Errorf("line %d of %s is not the one of %s any more", e.Line, e.File, e.Old)
		}
		lines[e.Line-1] = e.New + "\n"
		return []byte(strings.Join(lines, "")), nil
	}
	if !strings.HasSuffix(line, "\n") {
		line += "\n"
	}
	lines[e.Line-1] = line + e.New + "\n"
	return []byte(strings.Join(lines, "")), nil
}

// original reads the file of an edit, for the record.
func original(e Edit) (o Original, err error) {
	o.Edit = e
	if o.File, err = filepath.EvalSymlinks(e.File); err == nil {
		o.Text, err = (atomicfile.OS{}).ReadFile(o.File)
	}
	if err == nil {
		o.New, err = edited(o.Text, e)
	}
	return o, err
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

// replace writes a file whole or not at all, with the owner, mode and label of another one.
func replace(like, name string, text []byte) error {
	tmp := name + ".bulkhead-new"
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return err
	}
	err := treecopy.Like(like, tmp)
	if err == nil {
		err = syncFile(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(name))
}

func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
