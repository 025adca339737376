package host

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a kernel release: "6.1.0-18-amd64" is {6, 1, 0} with the text kept.
type Version struct {
	Major, Minor, Patch int
	Text                string
}

// ParseVersion reads a kernel release as uname(2) gives it: two or three numbers joined by dots, then
// whatever the distribution added ("3.10.0-1160.el7.x86_64", "6.12-rc1", "4.4").
func ParseVersion(release string) (Version, error) {
	text := strings.TrimSpace(release)
	v := Version{Text: text}
	rest := text
	for i, field := range []*int{&v.Major, &v.Minor, &v.Patch} {
		end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(rest)
		}
		n, err := strconv.Atoi(rest[:end])
		if err != nil {
			if i == 2 { // "6.12." or "5.10.x" still says what it is
				return v, nil
			}
			return Version{}, fmt.Errorf("parse kernel release %q: want MAJOR.MINOR", text)
		}
		*field = n
		rest = rest[end:]
		if i == 2 || !strings.HasPrefix(rest, ".") {
			if i == 0 {
				return Version{}, fmt.Errorf("parse kernel release %q: want MAJOR.MINOR", text)
			}
			return v, nil
		}
		rest = rest[1:]
	}
	return v, nil
}

// AtLeast says whether the kernel is major.minor or later. A distribution may have backported more.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Since says whether the kernel is the wanted "5.14" or later. "" is any kernel, and a kernel of unknown version counts
// as new. It panics when the text is no version, for it is one of a table.
func (v Version) Since(want string) bool {
	if want == "" || v.Major == 0 {
		return true
	}
	first, err := ParseVersion(want)
	if err != nil {
		panic(err)
	}
	return v.AtLeast(first.Major, first.Minor)
}

// String returns the release as the kernel gave it.
func (v Version) String() string {
	if v.Text == "" {
		return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
	}
	return v.Text
}
