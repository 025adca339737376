package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/tunable/ownfile"
)

// Settings is the actuator of KindSetting.
type Settings struct{ Host }

// Loader is systemd. What it has read counts at once for timeouts, for the others at the next start.
func (s Settings) Loader() change.Loader { return loader{s.Systemd} }

// loader has the units of addresses read.
type loader struct{ Systemd }

func (l loader) Reload(ctx context.Context, addrs ...string) error {
	var units []string
	for _, addr := range addrs {
		units = append(units, path.Dir(addr))
	}
	slices.Sort(units)
	return l.Systemd.Reload(ctx, slices.Compact(units)...)
}

// file is what the drop-in of a unit holds: settings in order, or the text of somebody else.
func (h Host) file(unit string) (lines []string, foreign string, err error) {
	text, err := h.Root.ReadFile(File(unit))
	switch body, ours := ownfile.Body(string(text)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", nil
	case err != nil:
		return nil, "", fmt.Errorf("read %s: %w", File(unit), err)
	case ours:
		return strings.Split(strings.TrimSuffix(strings.TrimPrefix(body, section), "\n"), "\n"), "", nil
	default:
		return nil, ownfile.Foreign(string(text)), nil
	}
}

const section = "[Service]\n"

// Read gives what the drop-in sets; of one that somebody edited a line that says so and the text.
func (s Settings) Read(ctx context.Context, addr string) (string, error) {
	unit, k, err := split(addr)
	if err != nil {
		return "", err
	}
	lines, foreign, err := s.file(unit)
	if err != nil || foreign != "" {
		return foreign, err
	}
	for _, line := range lines {
		if value, is := strings.CutPrefix(line, k.name+"="); is {
			return value, nil
		}
	}
	if len(lines) == 0 {
		err = s.there(unit)
	}
	if err == nil {
		// What the drop-in holds is known also where systemd cannot be asked: its lines are taken away then, too.
		if err = s.knows(ctx, k); !errors.Is(err, change.ErrGone) {
			err = nil
		}
	}
	return "", err
}

// Write writes the line, or takes it away (""), and the file with the last one.
func (s Settings) Write(ctx context.Context, addr, value string) error {
	unit, k, err := split(addr)
	switch {
	case err != nil:
		return err
	case s.Dir == "":
		return change.ErrCaptured
	case !strings.HasPrefix(value, ownfile.AsLeft):
		if value != "" && !k.values.MatchString(value) {
			return fmt.Errorf("%s takes no %q, but %s", k.name, value, k.want)
		}
		lines, foreign, err := s.file(unit)
		if err == nil && value != "" {
			err = s.knows(ctx, k)
		}
		if err == nil && len(lines) == 0 && foreign == "" {
			err = s.there(unit)
		}
		if err != nil {
			return err
		}
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, k.name+"=") })
		if value != "" {
			lines = append(lines, k.name+"="+value)
		}
		slices.Sort(lines)
		if value = ""; len(lines) > 0 {
			value = section + strings.Join(lines, "\n") + "\n"
		}
	}
	if err := ownfile.Write(filepath.Join(s.Dir, File(unit)), value, true); err != nil {
		return fmt.Errorf("write %s: %w", File(unit), err)
	}
	return nil
}

// Same compares texts.
func (Settings) Same(_, want, got string) bool { return want == got }

// Undo gives the line back that was there, or takes ours away, with what somebody who was killed left beside the file.
func (s Settings) Undo(ctx context.Context, c change.Change) (bool, error) {
	undone, err := change.Restore(ctx, s, c)
	if err == nil && s.Dir != "" {
		err = ownfile.Tidy(filepath.Join(s.Dir, File(path.Dir(c.Addr))), true)
	}
	return undone, err
}

// AfterBoot is the change: the file is still there.
func (Settings) AfterBoot(c change.Change) change.Change { return c }
