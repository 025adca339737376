package mounted

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/mountinfo"
)

// Listed is the actuator of KindListed. Of the file one option of one line is written, and every other byte stays.
type Listed struct{ Host }

// fields are the parts of a line: each field with the blanks before it.
var fields = regexp.MustCompile(`[ \t]*[^ \t\n]+`)

// line is the line of a mount in a table, taken apart.
type line struct {
	at     int // number in the table, from 0
	fields []string
	rest   string // after the last field
}

// find gives the line of a mount. Two lines for one place are an error: which one counts depends on the day.
func find(lines []string, point string) (found line, err error) {
	found.at = -1
	for at, text := range lines {
		parts := fields.FindAllString(text, -1)
		if len(parts) < 3 || strings.HasPrefix(strings.TrimSpace(parts[0]), "#") ||
			mountinfo.Unescape(strings.TrimLeft(parts[1], " \t")) != point {
			continue
		}
		if found.at >= 0 {
			return found, fmt.Errorf("lines %d and %d of %s are both for %s: take one out", found.at+1, at+1, Fstab,
				point)
		}
		found = line{at, parts, text[len(strings.Join(parts, "")):]}
	}
	if found.at < 0 {
		return found, change.Gone(Fstab + " has no line for " + point)
	}
	return found, nil
}

// options are those of the line, with the blanks before them.
func (l line) options() (blanks string, options []string) {
	if len(l.fields) < 4 {
		return " ", nil
	}
	text := strings.TrimLeft(l.fields[3], " \t")
	return l.fields[3][:len(l.fields[3])-len(text)], strings.Split(text, ",")
}

// last is the place of the option of a family that counts, -1 for none.
func last(options []string, f family) int {
	for i, o := range slices.Backward(options) {
		if f.has(o) {
			return i
		}
	}
	return -1
}

// with is the line with an option of a family, "" for none: in the place of the one that counts, or as the last.
func (l line) with(f family, option string) string {
	blanks, options := l.options()
	switch i := last(options, f); {
	case option == "" && i >= 0:
		options = slices.Delete(slices.Clone(options), i, i+1)
	case option != "" && i >= 0:
		options[i] = option
	case option != "":
		options = append(options, option)
	}
	parts := slices.Clone(l.fields)
	switch {
	case len(options) > 0:
		parts = slices.Concat(parts[:3], []string{blanks + strings.Join(options, ",")}, parts[min(4, len(parts)):])
	case len(parts) == 4: // what was the only option was bulkhead's, on a line that had none
		parts = parts[:3]
	case len(parts) > 4:
		parts[3] = blanks + "defaults"
	}
	return strings.Join(parts, "") + l.rest
}

// table is the file by lines, each with its end.
func (h Host) table() ([]string, error) {
	text, err := h.Root.ReadFile(Fstab)
	if errors.Is(err, fs.ErrNotExist) {
		err = change.Gone("there is no " + Fstab)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", Fstab, err)
	}
	return strings.SplitAfter(string(text), "\n"), nil
}

// Read gives the option of the line.
func (l Listed) Read(_ context.Context, addr string) (string, error) {
	point, f, err := split(addr)
	if err != nil {
		return "", err
	}
	lines, err := l.table()
	if err != nil {
		return "", err
	}
	of, err := find(lines, point)
	if err != nil {
		return "", err
	}
	_, options := of.options()
	if i := last(options, f); i >= 0 {
		return f.word(options[i]), nil
	}
	return "", nil
}

// Write writes the option into the line, or takes it out ("").
func (l Listed) Write(_ context.Context, addr, word string) error {
	point, f, err := split(addr)
	if err != nil {
		return err
	}
	option, err := f.option(word)
	switch {
	case err != nil:
		return err
	case l.Dir == "":
		return change.ErrCaptured
	}
	lines, err := l.table()
	if err != nil {
		return err
	}
	of, err := find(lines, point)
	if err != nil {
		return err
	}
	kind := strings.TrimSpace(of.fields[2])
	if len(f.types) > 0 && !slices.Contains(f.types, kind) && kind != "auto" && option != "" {
		return fmt.Errorf("%s of %s: a file system of type %s has no option %s, and would not be mounted with it",
			f.name, point, kind, option)
	}
	lines[of.at] = of.with(f, option)
	if err := replace(filepath.Join(l.Dir, Fstab), strings.Join(lines, "")); err != nil {
		return fmt.Errorf("write %s: %w", Fstab, err)
	}
	return nil
}

// Same compares words.
func (Listed) Same(_, want, got string) bool { return want == got }

// Undo gives the line the option back that it had.
func (l Listed) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, l, c)
}

// Left says whether somebody was killed while he wrote the file.
func (l Listed) Left() bool { return l.Root.Exists(beside(Fstab)) }

// beside is the name under which a file is written before it takes the place of the old one.
func beside(at string) string {
	return filepath.Join(filepath.Dir(at), "."+filepath.Base(at)+".bulkhead")
}

// replace gives a file another text whole, with the mode and the owner that it has.
func replace(at, text string) (err error) {
	info, err := os.Lstat(at)
	if err != nil {
		return err
	}
	is, known := info.Sys().(*syscall.Stat_t)
	if !info.Mode().IsRegular() || !known {
		return errors.New("it is no regular file; write the option yourself where it leads to")
	}
	next := beside(at)
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(next)
		}
	}()
	_, err = f.WriteString(text)
	if int(is.Uid) != os.Geteuid() || int(is.Gid) != os.Getegid() {
		err = errors.Join(err, f.Chown(int(is.Uid), int(is.Gid)))
	}
	if err = errors.Join(err, f.Chmod(info.Mode()), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(next, at); err != nil {
		return err
	}
	return atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(at))
}
