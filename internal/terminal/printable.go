// Package terminal makes texts that others chose, such as names and arguments of processes, fit for a terminal. Its
// functions keep nothing.
package terminal

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes a text that somebody else chose (a process's name, its arguments, a path) fit for a
// terminal and for one line: control characters, direction marks and line separators become escapes
// such as \x1b and \u202e, and so do bytes that are no UTF-8. Any other text, blanks and backslashes
// included, stays as it is, so the result is for people and cannot be turned back.
func Printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		s = s[size:]
	}
	return b.String()
}
