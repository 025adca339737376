package systemd

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a release of systemd: "252.39-1~deb12u1" is number 252 with the text kept. Before 183 was udev's.
type Version struct {
	Number int    `json:"number"`
	Text   string `json:"text"`
}

// ParseVersion reads a version as the manager's property Version gives it: a number, then whatever the
// distribution put behind it ("219", "252.39-1~deb12u1", "257~rc1-2", "v256.4").
func ParseVersion(text string) (Version, error) {
	text = strings.TrimSpace(text)
	digits := strings.TrimPrefix(strings.TrimPrefix(text, "systemd "), "v")
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > 1<<20 {
		return Version{}, fmt.Errorf("parse systemd version %q: want a number at the start", text)
	}
	return Version{Number: n, Text: text}, nil
}

// AtLeast says whether v is that release or a later one. A version that could not be read counts as new, and a
// distribution may have backported more.
func (v Version) AtLeast(number int) bool { return v.Number == 0 || v.Number >= number }

// String gives the text as systemd had it.
func (v Version) String() string {
	if v.Text == "" {
		return strconv.Itoa(v.Number)
	}
	return v.Text
}
