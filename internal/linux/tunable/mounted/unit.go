package mounted

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/tunable/ownfile"
	"bulkhead/internal/systemd/unitname"
)

// unitDirs are where an administrator or a package has units of mounts: a file hides those of its name in later
// directories. Units that systemd makes of fstab are elsewhere.
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
	"/usr/lib/systemd/system", "/lib/systemd/system"}

const dropIn = "90-bulkhead.conf"

// UnitFile is the drop-in of the unit of a mount.
func UnitFile(point string) string { return path.Join(unitDirs[0], unitOf(point)+".d", dropIn) }

// unitOf is the name of the unit of a mount (systemd.unit(5), systemd-escape --path).
func unitOf(point string) string {
	if point == "/" {
		return "-.mount"
	}
	return unitname.Escape(strings.Trim(point, "/")) + ".mount"
}

// unit is what systemd has of a mount: its type, its options without bulkhead's drop-in, and those with it.
type unit struct {
	kind      string
	base, own []string
	foreign   string // of a drop-in that somebody edited: a line that says so, and the text
}

// unitFiles are the unit of a mount with its drop-ins of earlier names than bulkhead's, and those of later names. None
// is no unit.
func (h Host) unitFiles(point string) (files, later []string) {
	name := unitOf(point)
	i := slices.IndexFunc(unitDirs, func(dir string) bool { return h.Root.Exists(path.Join(dir, name)) })
	if i < 0 || !h.Root.Exists("/run/systemd/system") {
		return nil, nil
	}
	dropIns := map[string]string{}
	for _, dir := range slices.Backward(unitDirs) {
		names, _ := h.Root.ReadDir(path.Join(dir, name+".d")) // one that is not there has none
		for _, n := range names {
			if path.Ext(n) == ".conf" {
				dropIns[n] = path.Join(dir, name+".d", n)
			}
		}
	}
	files = []string{path.Join(unitDirs[i], name)}
	for _, n := range slices.Sorted(maps.Keys(dropIns)) {
		switch {
		case n < dropIn:
			files = append(files, dropIns[n])
		case n > dropIn:
			later = append(later, dropIns[n])
		}
	}
	return files, later
}

// unit reads the unit of a mount. Without one the error is none.
func (h Host) unit(point string, none error) (u unit, err error) {
	files, later := h.unitFiles(point)
	if len(files) == 0 {
		return u, none
	}
	for i, file := range slices.Concat(files, later) {
		text, err := h.Root.ReadText(file)
		if err != nil {
			return u, fmt.Errorf("read %s: %w", file, err)
		}
		options, sets := keyOf(text, "Options")
		switch {
		case sets && i >= len(files):
			return u, change.Gone(file + " sets the options of " + point + " after any drop-in of bulkhead's: change " +
				"them there")
		case sets:
			u.base = listOf(options)
		}
		if kind, sets := keyOf(text, "Type"); sets {
			u.kind = kind
		}
	}
	u.own = u.base
	if !h.Root.Exists(UnitFile(point)) {
		return u, nil
	}
	text, err := h.Root.ReadFile(UnitFile(point))
	if err != nil {
		return u, fmt.Errorf("read %s: %w", UnitFile(point), err)
	}
	body, ours := ownfile.Body(string(text))
	if !ours {
		u.foreign = ownfile.Foreign(string(text))
		return u, nil
	}
	options, _ := keyOf(body, "Options")
	u.own = listOf(options)
	return u, nil
}

// keyOf is the last value of a key in a unit. A backslash at the end of a line joins the next one.
func keyOf(text, key string) (value string, sets bool) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if name, v, is := strings.Cut(strings.TrimSpace(line), "="); is && strings.TrimSpace(name) == key {
			value, sets = strings.TrimSpace(v), true
		}
	}
	return value, sets
}

// listOf are options as a list.
func listOf(options string) []string {
	return slices.DeleteFunc(strings.Split(options, ","), func(o string) bool { return o == "" })
}

// readUnit gives the option of a family of a mount that has a unit.
func (h Host) readUnit(point string, f family, none error) (string, error) {
	u, err := h.unit(point, none)
	if err != nil || u.foreign != "" {
		return u.foreign, err
	}
	return f.counts(u.own), nil
}

// writeUnit writes the option into a drop-in with all options of the mount, as systemd takes those of the last file
// alone. One that says what the other files say goes.
func (h Host) writeUnit(point string, f family, option string, none error) error {
	u, err := h.unit(point, none)
	body := option
	if !strings.HasPrefix(option, ownfile.AsLeft) {
		if err == nil {
			err = f.suits(point, u.kind, option)
		}
		options := f.with(u.own, option)
		if body = ""; !slices.Equal(options, u.base) {
			body = "[Mount]\nOptions=" + strings.Join(options, ",") + "\n"
		}
	}
	if err != nil {
		return err
	}
	if err := ownfile.Write(filepath.Join(h.Dir, UnitFile(point)), body, true); err != nil {
		return fmt.Errorf("write %s: %w", UnitFile(point), err)
	}
	return nil
}
