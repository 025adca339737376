// Package mountinfo reads /proc/PID/mountinfo (proc(5), Documentation/filesystems/proc.rst, 3.5) and tells which
// mount a path lies on. Its values are not changed after they were read.
package mountinfo

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"bulkhead/internal/linux/sysroot"
)

// Mount is one line of /proc/PID/mountinfo (proc(5)).
type Mount struct {
	ID, Parent int
	Dev        string // "major:minor"
	Root       string // the mounted directory inside its filesystem
	Point      string // where, octal escapes decoded
	Options    []string
	Type       string // filesystem type
	Source     string
	Super      []string // super block options
}

// Mounts are those of one mount namespace, in the order of the kernel.
type Mounts []Mount

// Of returns the mount that a clean absolute path lies on: of the visible ones the deepest.
func (mounts Mounts) Of(name string) (Mount, bool) {
	best, found := Mount{}, false
	for _, m := range mounts {
		if Within(name, m.Point) && len(m.Point) >= len(best.Point) && mounts.Visible(m) {
			best, found = m, true
		}
	}
	return best, found
}

// Read returns what this process sees mounted.
func Read(root *sysroot.FS) (Mounts, error) {
	text, err := root.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// Parse reads /proc/PID/mountinfo (proc(5)).
func Parse(text []byte) (Mounts, error) {
	var mounts Mounts
	err := sysroot.Lines("mountinfo", text, func(line string) error {
		m, err := parseMount(line)
		mounts = append(mounts, m)
		return err
	})
	if err != nil {
		return nil, err
	}
	return mounts, nil
}

// parseMount reads "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue".
// Fields are parted by single blanks, so that an empty source is an empty field.
func parseMount(line string) (Mount, error) {
	own, filesystem, found := strings.Cut(line, " - ")
	fields := strings.Split(own, " ")
	if !found || len(fields) < 6 {
		return Mount{}, errors.New("want at least ten fields with a lone dash")
	}
	var m Mount
	var err error
	if m.ID, err = strconv.Atoi(fields[0]); err != nil {
		return Mount{}, fmt.Errorf("mount ID %q is not a number", fields[0])
	}
	if m.Parent, err = strconv.Atoi(fields[1]); err != nil {
		return Mount{}, fmt.Errorf("parent ID %q is not a number", fields[1])
	}
	m.Dev = fields[2]
	m.Root = Unescape(fields[3])
	m.Point = Unescape(fields[4])
	m.Options = strings.Split(fields[5], ",")
	rest := strings.SplitN(filesystem, " ", 3)
	if len(rest) < 3 {
		return Mount{}, errors.New("want type, source and options after the dash")
	}
	m.Type = Unescape(rest[0])
	m.Source = Unescape(rest[1])
	m.Super = strings.Split(rest[2], ",")
	for i, option := range m.Super {
		m.Super[i] = Unescape(option)
	}
	return m, nil
}

// Unescape decodes the \040 that the kernel writes for blank, tab, newline, backslash and '#'.
func Unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out = append(out, byte(n))
				i += 3
				continue
			}
		}
		out = append(out, s[i])
	}
	return string(out)
}

// Visible says whether a path below the mount point of m leads into m: no other mount lies over it.
// What is mounted at or above its point must be an ancestor of m, else it was mounted over m later.
func (mounts Mounts) Visible(m Mount) bool {
	parents := make(map[int]int, len(mounts))
	for _, other := range mounts {
		parents[other.ID] = other.Parent
	}
	above := map[int]bool{}
	for id, known := m.ID, true; known && !above[id]; {
		above[id] = true
		id, known = parents[id]
	}
	for _, other := range mounts {
		if Within(m.Point, other.Point) && !above[other.ID] {
			return false
		}
	}
	return true
}

// Within says whether a clean absolute path is a directory or lies below it.
func Within(name, dir string) bool {
	dir = strings.TrimSuffix(dir, "/")
	return strings.HasPrefix(name, dir) && (len(name) == len(dir) || name[len(dir)] == '/')
}
