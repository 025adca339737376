package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/systemd/unitname"
)

const (
	unitDir = "/etc/systemd/system"
	// dropInFile sorts after the "50-MemoryHigh.conf" of a property that was set over D-Bus, upper case before lower:
	// what stands in it comes back at a daemon-reload whatever was set meanwhile (measured on 252). So a limit that can
	// be a property never goes into it.
	dropInFile = "50-bulkhead.conf"
	dropInMark = "# Written by bulkhead. `bulkhead release` takes it away."
)

// Files are the files of units below a root directory: they are read and written without systemd, which hears of
// changes at its next reload. It is safe for concurrent use as far as different units are concerned.
type Files struct{ root string }

// DropIn is the part of a unit's settings that only a file can hold: Slice= for its next start, OOMPolicy=.
type DropIn struct {
	Unit  string
	Lines []string // "Slice=bulkhead-db.slice"; none takes the drop-in away
}

// WriteDropIn writes a drop-in of ours or takes it away. One that is so already is left alone: changed says that
// ReloadUnits is to follow. Nothing running moves: Slice= counts from the unit's next start on.
func (f Files) WriteDropIn(d DropIn) (changed bool, err error) {
	path, text, err := f.dropIn(d)
	if err != nil {
		return false, err
	}
	before, err := ownFile(path)
	if err != nil {
		return false, &Error{Op: "write drop-in of", Unit: d.Unit, Cause: err,
			Hint: "move that file away if nobody needs it"}
	}
	return writeFiles("write drop-in of "+d.Unit, []fileChange{{path, before, text}})
}

// fileChange is one file before and after; nil is no file.
type fileChange struct {
	path          string
	before, after []byte
}

func (c fileChange) same() bool {
	return (c.before == nil) == (c.after == nil) && string(c.before) == string(c.after)
}

// changeFiles makes the changes and reloads, or puts everything back.
func (m *Manager) changeFiles(ctx context.Context, op string, changes []fileChange) error {
	changed, err := writeFiles(op, changes)
	if err != nil || !changed {
		return err
	}
	if err = m.Reload(ctx); err == nil {
		return nil
	}
	return errors.Join(err, takeBack(changes), m.Reload(context.WithoutCancel(ctx)))
}

// writeFiles makes the changes, all or none. Changed is false when all was so already.
func writeFiles(op string, changes []fileChange) (changed bool, err error) {
	for i, c := range changes {
		if c.same() {
			continue
		}
		if err := putFile(c.path, c.after); err != nil {
			return false, errors.Join(&Error{Op: op, Cause: err}, takeBack(changes[:i+1]))
		}
		changed = true
	}
	return changed, nil
}

// takeBack puts files back, the last first.
func takeBack(changes []fileChange) (err error) {
	for _, c := range slices.Backward(changes) {
		if !c.same() {
			err = errors.Join(err, putFile(c.path, c.before))
		}
	}
	return err
}

// controlDirs are where systemd keeps what SetProperties was given, by lifetime, and of transient units.
var controlDirs = []string{"/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient"}

// Override is one file in which systemd keeps properties that somebody set over D-Bus on a unit with a file of its own:
// "/etc/systemd/system.control/db.service.d/50-MemoryHigh.conf".
type Override struct {
	Path string `json:"path"` // on the host, without Options.Root
	Text []byte `json:"text"`
}

// Setting is the one that the file holds: "MemoryHigh".
func (o Override) Setting() string {
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(o.Path), "50-"), ".conf")
}

// Lasting gives those of overrides that outlive a boot: the others were in /run.
func Lasting(overrides []Override) []Override {
	return slices.DeleteFunc(slices.Clone(overrides),
		func(o Override) bool { return strings.HasPrefix(o.Path, "/run/") })
}

// Overrides lists those files of a unit. Read before the first SetProperties they are the original.
func (f Files) Overrides(unit string) ([]Override, error) {
	if err := unitname.CheckName(unit); err != nil {
		return nil, &Error{Op: "list overrides of", Unit: unit, Kind: ErrInvalid, Cause: err}
	}
	var list []Override
	for _, dir := range controlDirs {
		paths, err := filepath.Glob(filepath.Join("/", f.root, dir, globEscape(unit)+".d", "*.conf"))
		if err != nil {
			return nil, &Error{Op: "list overrides of", Unit: unit, Cause: err}
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, &Error{Op: "list overrides of", Unit: unit, Cause: err}
			}
			list = append(list, Override{filepath.Join(dir, unit+".d", filepath.Base(path)), text})
		}
	}
	return list, nil
}

// globEscape takes the meaning from a backslash in a unit's name.
func globEscape(name string) string { return strings.ReplaceAll(name, `\`, `\\`) }

// RestoreOverrides makes a unit's overrides be these and no others, and reloads: the way back from SetProperties that
// leaves no file behind. Setting a property to "no limit" leaves its file (measured on 252), and `systemctl revert`
// takes an administrator's own drop-ins too.
//
// A reload of 257 leaves the kernel's files as they are until some property of the unit is set, and then writes all of
// them (measured; 252 writes them at the reload). So an accounting switch is set to what it is already, and its file
// taken away again.
func (m *Manager) RestoreOverrides(ctx context.Context, unit string, want []Override) error {
	changes, err := m.overrideChanges(unit, want)
	if err != nil || !slices.ContainsFunc(changes, func(c fileChange) bool { return !c.same() }) {
		return err
	}
	if err := m.changeFiles(ctx, "restore overrides of "+unit, changes); err != nil {
		return err
	}
	return m.nudge(ctx, unit)
}

// WriteOverrides is RestoreOverrides without the reload, for one unit of several: changed says that ReloadUnits is to
// follow.
func (f Files) WriteOverrides(unit string, want []Override) (changed bool, err error) {
	changes, err := f.overrideChanges(unit, want)
	if err != nil {
		return false, err
	}
	return writeFiles("restore overrides of "+unit, changes)
}

// ReloadUnits has systemd read its files again after those of some units were written, and hold what is in them.
func (m *Manager) ReloadUnits(ctx context.Context, units ...string) error {
	if err := m.Reload(ctx); err != nil {
		return err
	}
	return m.nudge(ctx, units...)
}

// nudge has units written to the kernel whose files a reload has read, where a reload alone does not; and takes its own
// traces away.
func (m *Manager) nudge(ctx context.Context, units ...string) error {
	if !m.version.AtLeast(lazyReloadSince) {
		return nil
	}
	var changes []fileChange
	for _, unit := range units {
		u, err := m.Unit(ctx, unit)
		if err != nil {
			return err
		}
		on, known := u.Properties[nudged].(bool)
		if !known || !u.Active() {
			continue
		}
		before, err := m.Overrides(unit)
		if err != nil {
			return err
		}
		if err := m.SetProperties(ctx, unit, Runtime, Property{nudged, on}); err != nil {
			return err
		}
		traces, err := m.overrideChanges(unit, before)
		if err != nil {
			return err
		}
		changes = append(changes, traces...)
	}
	return m.changeFiles(ctx, "take away the traces of a reload", changes)
}

const (
	// lazyReloadSince is the first release that may leave limits unwritten at a reload: 252 does not, 257 does, and
	// between them nobody has looked. What is done about it harms no release.
	lazyReloadSince = 253
	// nudged is a property that every unit with a directory has, and whose setting to what it is changes nothing.
	nudged = "TasksAccounting"
)

// overrideChanges is what makes a unit's overrides be these.
func (f Files) overrideChanges(unit string, want []Override) (changes []fileChange, err error) {
	now, err := f.Overrides(unit)
	if err != nil {
		return nil, err
	}
	for _, o := range want {
		dir, name := filepath.Split(o.Path)
		if !slices.ContainsFunc(controlDirs, func(c string) bool { return filepath.Join(c, unit+".d")+"/" == dir }) ||
			!strings.HasSuffix(name, ".conf") {
			return nil, &Error{Op: "restore overrides of", Unit: unit, Kind: ErrInvalid,
				Cause: fmt.Errorf("%q is no override of it", o.Path)}
		}
		c := fileChange{path: filepath.Join("/", f.root, o.Path), after: append([]byte{}, o.Text...)}
		for _, n := range now {
			if n.Path == o.Path {
				c.before = append([]byte{}, n.Text...)
			}
		}
		changes = append(changes, c)
	}
	for _, n := range now {
		if !slices.ContainsFunc(want, func(o Override) bool { return o.Path == n.Path }) {
			changes = append(changes, fileChange{filepath.Join("/", f.root, n.Path), append([]byte{}, n.Text...), nil})
		}
	}
	return changes, nil
}

// dropIn gives the path and the text of a drop-in, nil for one that goes.
func (f Files) dropIn(d DropIn) (path string, text []byte, err error) {
	invalid := func(format string, args ...any) error {
		return &Error{Op: "write drop-in of", Unit: d.Unit, Kind: ErrInvalid, Cause: fmt.Errorf(format, args...)}
	}
	if err := unitname.CheckName(d.Unit); err != nil {
		return "", nil, &Error{Op: "write drop-in of", Unit: d.Unit, Kind: ErrInvalid, Cause: err}
	}
	section := map[string]string{"service": "Service", "slice": "Slice", "scope": "Scope", "socket": "Socket",
		"mount": "Mount", "swap": "Swap"}[unitname.TypeOf(d.Unit)]
	if section == "" {
		return "", nil, invalid("a %s has no limits", unitname.TypeOf(d.Unit))
	}
	path = filepath.Join("/", f.root, unitDir, d.Unit+".d", dropInFile)
	if len(d.Lines) == 0 {
		return path, nil, nil
	}
	for _, line := range d.Lines {
		if key, _, ok := strings.Cut(line, "="); !ok || key == "" || strings.ContainsAny(line, "\n\r\x00") ||
			strings.HasSuffix(line, `\`) || strings.ContainsAny(key, "[]#; ") {
			return "", nil, invalid("%q is not one setting", line)
		}
	}
	return path, []byte(dropInMark + "\n[" + section + "]\n" + strings.Join(d.Lines, "\n") + "\n"), nil
}

// DropIns lists the drop-ins of ours, by unit.
func (f Files) DropIns() ([]DropIn, error) {
	paths, err := filepath.Glob(filepath.Join("/", f.root, unitDir, "*.d", dropInFile))
	if err != nil {
		return nil, err
	}
	var list []DropIn
	for _, path := range paths {
		text, err := ownFile(path)
		if err != nil {
			continue // somebody else's
		}
		d := DropIn{Unit: strings.TrimSuffix(filepath.Base(filepath.Dir(path)), ".d")}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != '[' {
				d.Lines = append(d.Lines, line)
			}
		}
		list = append(list, d)
	}
	return list, nil
}

// ownFile reads a drop-in of ours, nil when there is none, an error when the file is somebody else's.
func ownFile(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !strings.HasPrefix(string(text), dropInMark):
		return nil, fmt.Errorf("%q was not written by bulkhead", path)
	}
	return text, nil
}

// putFile makes path hold text, by rename and synced; nil takes the file away, and its directory when that is empty.
func putFile(path string, text []byte) error {
	dir := filepath.Dir(path)
	if text == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if os.Remove(dir) == nil { // another drop-in keeps it
			dir = filepath.Dir(dir)
		}
		return atomicfile.SyncDir(atomicfile.OS{}, dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := atomicfile.Write(atomicfile.OS{}, path, text, 0o644); err != nil { // systemd reads what ends in .conf
		return err
	}
	return atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(dir))
}
