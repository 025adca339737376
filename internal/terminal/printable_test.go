package terminal_test

import (
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"bulkhead/internal/terminal"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"mysqld --port=3306":      "mysqld --port=3306",
		"größe 数据 \U0001f600":     "größe 数据 \U0001f600",
		`C:\x`:                    `C:\x`,
		"\x1b]0;owned\x07":        `\x1b]0;owned\x07`,
		"a\nb\tc\r":               `a\x0ab\x09c\x0d`,
		"del\x7f":                 `del\x7f`,
		"c1 \u009b31m":            `c1 \u009b31m`,
		"\xff\xfe":                `\xff\xfe`,
		"\u202egnp.exe":           `\u202egnp.exe`,
		"line\u2028sep":           `line\u2028sep`,
		"tag \U000e0041":          `tag \U000e0041`,
		"the real \ufffd remains": "the real \ufffd remains",
	} {
		if got := terminal.Printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Whatever comes in, what comes out is one line of printable text, and printing it again changes nothing.
func TestPrintableIsPrintable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out := terminal.Printable(string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text"))
		if !utf8.ValidString(out) || terminal.Printable(out) != out {
			t.Fatalf("%q", out)
		}
		for _, r := range out {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q holds %U", out, r)
			}
		}
	})
}
