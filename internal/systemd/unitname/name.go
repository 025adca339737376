// Package unitname makes and reads names of systemd's units (systemd.unit(5)): escaping, the slice, scope or service
// that stands for a group of a policy, the directory and the parent of a slice, the object path of a unit on D-Bus.
// It asks nobody; all functions are pure.
package unitname

import (
	"encoding/hex"
	"fmt"
	"path"
	"strings"
)

const (
	// Alphanumeric are the characters that need no escaping.
	Alphanumeric = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	// nameBytes are what a unit name may hold. The '@' is for instances only.
	nameBytes = Alphanumeric + `:-_.\`
	// nameMax is the longest unit name, suffix included (UNIT_NAME_MAX of 256 holds a final zero).
	nameMax = 255

	unitPrefix = "/org/freedesktop/systemd1/unit/"
)

// suffixes are the types of unit that there are (systemd.unit(5)); snapshot went with 228.
var suffixes = []string{
	"service", "socket", "target", "device", "mount", "automount", "swap", "timer", "path", "slice", "scope",
	"snapshot",
}

// Escape makes a part of a unit name from any string, as systemd-escape(1) does: "/" becomes "-", and "-", "\", a
// leading "." and every byte that a unit name cannot hold become \xNN.
func Escape(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case c == '/':
			b.WriteByte('-')
		case c == '-' || c == '\\' || c == '.' && i == 0 || strings.IndexByte(nameBytes, c) < 0:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Unescape is the inverse of Escape.
func Unescape(name string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		switch c := name[i]; c {
		case '-':
			b.WriteByte('/')
		case '\\':
			if i+4 > len(name) || name[i+1] != 'x' {
				return "", fmt.Errorf("unescape %q: a backslash stands before xNN only", name)
			}
			raw, err := hex.DecodeString(name[i+2 : i+4])
			if err != nil {
				return "", fmt.Errorf("unescape %q: %w", name, err)
			}
			b.Write(raw)
			i += 3
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

// TopPrefix begins the names of outermost groups that stand side by side at the top of a hierarchy. It tells that
// bulkhead made them.
const TopPrefix = "bulkhead."

// SliceName names the slice of a group. Below a root group, "ora" and "mysql23761/backup" give
// "ora-mysql23761-backup.slice", and the group "" is the root group's own slice. Without a root group (root is "")
// outermost groups are top-level slices: "mysql23761/backup" gives "bulkhead.mysql23761-backup.slice" in
// "bulkhead.mysql23761.slice", and the group "" has none.
// systemd nests slices by the dashes in their names, so a dash inside a name is escaped.
func SliceName(root, group string) (string, error) { return groupUnit(root, group, "slice") }

// KeeperName names the service that keeps the delegated directory of a group's loose processes. Only a group
// has one: "bulkhead.service" is the agent.
func KeeperName(root, group string) (string, error) {
	if group == "" {
		return "", fmt.Errorf("name keeper of %q: the root group has none", root)
	}
	return groupUnit(root, group, "service")
}

// ScopeName names a scope for one command inside a group; tag tells it from others there.
func ScopeName(root, group, tag string) (string, error) {
	if tag == "" || strings.Contains(tag, "/") {
		return "", fmt.Errorf("name scope in %q: a tag is one name, not %q", group, tag)
	}
	return groupUnit(root, path.Join(group, tag), "scope")
}

// runTag begins the tag of a scope that `run` makes. No group's slice or keeper is mistaken for one: those are no
// scopes.
const runTag = "run."

// RunName names the scope of a command that `run` starts in a group, after the process that becomes the command: pid
// and start time make it another one than any before in this boot. A group whose name leaves no room is left out of
// it.
func RunName(root, group string, pid int, start uint64) (string, error) {
	tag := fmt.Sprintf("%s%d.%d", runTag, pid, start)
	name, err := ScopeName(root, group, tag)
	if err != nil {
		return ScopeName(root, "", tag)
	}
	return name, nil
}

// IsRun says whether a unit below root is one that RunName gives.
func IsRun(root, unit string) bool {
	group, ok := GroupOf(root, unit)
	return ok && TypeOf(unit) == "scope" && strings.HasPrefix(path.Base(group), runTag)
}

func groupUnit(root, group, suffix string) (string, error) {
	var parts []string
	if root != "" {
		parts = append(parts, root)
	}
	if group != "" || root == "" {
		parts = append(parts, strings.Split(group, "/")...)
	}
	for i, part := range parts {
		if part == "" {
			return "", fmt.Errorf("name %s of group %q under %q: empty name", suffix, group, root)
		}
		parts[i] = Escape(part)
	}
	if root == "" {
		parts[0] = TopPrefix + parts[0]
	}
	name := strings.Join(parts, "-") + "." + suffix
	if len(name) > nameMax {
		return "", fmt.Errorf("name %s of group %q under %q: %d bytes, a unit name has at most %d; hint: give the "+
			"groups shorter names",
			suffix, group, root, len(name), nameMax)
	}
	return name, nil
}

// GroupOf is the inverse of SliceName, KeeperName and ScopeName (whose tag it gives as the last name): the group that
// a unit below root stands for, "" for the root group's own. ok is false for a unit that none of them would give.
func GroupOf(root, unit string) (group string, ok bool) {
	prefix, suffix, found := CutSuffix(unit)
	if !found || suffix != "slice" && suffix != "service" && suffix != "scope" {
		return "", false
	}
	if root == "" {
		if prefix, found = strings.CutPrefix(prefix, TopPrefix); !found {
			return "", false
		}
	}
	parts := strings.Split(prefix, "-")
	for i, part := range parts {
		text, err := Unescape(part)
		if err != nil || text == "" || strings.Contains(text, "/") {
			return "", false
		}
		parts[i] = text
	}
	if root != "" {
		if parts[0] != root {
			return "", false
		}
		parts = parts[1:]
	}
	group = strings.Join(parts, "/")
	again, err := groupUnit(root, group, suffix)
	return group, err == nil && again == unit
}

// SliceDir gives the directory that systemd makes for a slice, below the mount of a hierarchy:
// "/a.slice/a-b.slice" for "a-b.slice", "/" for "-.slice". What a unit's ControlGroup says goes before this.
func SliceDir(slice string) (string, error) {
	prefix, suffix, ok := CutSuffix(slice)
	if !ok || suffix != "slice" {
		return "", fmt.Errorf("find directory of %q: not a slice", slice)
	}
	if prefix == "-" {
		return "/", nil
	}
	var b strings.Builder
	parts := strings.Split(prefix, "-")
	for i, part := range parts {
		if part == "" {
			return "", fmt.Errorf("find directory of %q: a slice's name has no empty part", slice)
		}
		b.WriteString("/" + strings.Join(parts[:i+1], "-") + ".slice")
	}
	return b.String(), nil
}

// ParentSlice gives the slice that a slice lies in, "-.slice" for those at the top.
func ParentSlice(slice string) (string, error) {
	dir, err := SliceDir(slice)
	if err != nil {
		return "", err
	}
	if parent := path.Base(path.Dir(dir)); parent != "/" {
		return parent, nil
	}
	return "-.slice", nil
}

// CheckName says what is wrong with a unit's name, nil when it may be asked for. A template ("a@.service") is a
// name, and not that of a unit.
func CheckName(unit string) error {
	prefix, suffix, ok := CutSuffix(unit)
	before, instance, at := strings.Cut(prefix, "@")
	switch {
	case unit == "":
		return fmt.Errorf("unit name: empty")
	case len(unit) > nameMax:
		return fmt.Errorf("unit name %q: %d bytes, at most %d are allowed", unit, len(unit), nameMax)
	case !ok:
		return fmt.Errorf("unit name %q: does not end in a type such as .service or .slice", unit)
	case before == "":
		return fmt.Errorf("unit name %q: nothing before the type", unit)
	case at && instance == "":
		return fmt.Errorf("unit name %q: a template; name an instance of it, such as %q", unit, before+"@1."+suffix)
	}
	for i := range len(unit) {
		if c := unit[i]; c != '@' && strings.IndexByte(nameBytes, c) < 0 {
			return fmt.Errorf("unit name %q: %q cannot stand in it; systemd-escape(1) writes it as \\x%02x", unit, c, c)
		}
	}
	if suffix == "slice" {
		_, err := SliceDir(unit)
		return err
	}
	return nil
}

// TypeOf gives the type in a unit's name: "service"; "" when it has none.
func TypeOf(unit string) string {
	_, suffix, _ := CutSuffix(unit)
	return suffix
}

// CutSuffix cuts the type off the name of a unit: "db" and "slice" of "db.slice".
func CutSuffix(unit string) (prefix, suffix string, ok bool) {
	dot := strings.LastIndexByte(unit, '.')
	if dot < 1 {
		return unit, "", false
	}
	for _, s := range suffixes {
		if unit[dot+1:] == s {
			return unit[:dot], s, true
		}
	}
	return unit, "", false
}

// ObjectPath gives the D-Bus object of a unit: every byte but letters, and digits after the first byte, becomes
// _NN. (The library's own does not pad a byte below 16 to two digits.)
func ObjectPath(unit string) string {
	var b strings.Builder
	b.WriteString(unitPrefix)
	if unit == "" {
		b.WriteByte('_')
	}
	for i := range len(unit) {
		if c := unit[i]; strings.IndexByte(Alphanumeric, c) < 0 || i == 0 && c <= '9' {
			fmt.Fprintf(&b, "_%02x", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// UnitOfObject is the inverse of ObjectPath.
func UnitOfObject(object string) (unit string, ok bool) {
	escaped, ok := strings.CutPrefix(object, unitPrefix)
	if !ok || escaped == "" || strings.Contains(escaped, "/") {
		return "", false
	}
	if escaped == "_" {
		return "", true
	}
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		if escaped[i] != '_' {
			b.WriteByte(escaped[i])
			continue
		}
		if i+3 > len(escaped) {
			return "", false
		}
		raw, err := hex.DecodeString(escaped[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b.Write(raw)
		i += 2
	}
	return b.String(), true
}
