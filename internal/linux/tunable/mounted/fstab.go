package mounted

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/tunable/ownfile"
)

// Listed is the actuator of KindListed. Of fstab one option of one line is written, and every other byte stays. A mount
// that has no line there, but a unit of systemd's of its own, has its options in a drop-in of bulkhead's.
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

// with is the line with an option of a family, "" for none.
func (l line) with(f family, option string) string {
	blanks, options := l.options()
	options = f.with(options, option)
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
		return nil, nil
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
	if errors.Is(err, change.ErrGone) {
		return l.readUnit(point, f, err)
	}
	if err != nil {
		return "", err
	}
	_, options := of.options()
	return f.counts(options), nil
}

// Write writes the option into the line, or takes it out ("").
func (l Listed) Write(_ context.Context, addr, word string) error {
	point, f, err := split(addr)
	if err != nil {
		return err
	}
	left := strings.HasPrefix(word, ownfile.AsLeft) // a drop-in as somebody else wrote it
	option, err := word, error(nil)
	if !left {
		option, err = f.option(word)
	}
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
	if errors.Is(err, change.ErrGone) {
		return l.writeUnit(point, f, option, err)
	}
	if err != nil {
		return err
	}
	if left {
		return fmt.Errorf("%s has a line for %s now, which had a drop-in that somebody edited", Fstab, point)
	}
	if err := f.suits(point, strings.TrimSpace(of.fields[2]), option); err != nil {
		return err
	}
	lines[of.at] = of.with(f, option)
	if err := ownfile.Replace(filepath.Join(l.Dir, Fstab), strings.Join(lines, "")); err != nil {
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
func (l Listed) Left(addr string) bool {
	point, _, err := split(addr)
	return l.Root.Exists(ownfile.Beside(Fstab)) ||
		err == nil && l.Dir != "" && ownfile.Left(filepath.Join(l.Dir, UnitFile(point)), true)
}
