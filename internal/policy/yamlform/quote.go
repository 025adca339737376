package yamlform

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

var (
	plainText    = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*$`)
	reservedText = regexp.MustCompile(`^(?i:true|false|null|yes|no|on|off|y|n)$`)
)

// Quote writes text so that YAML reads it back as that text, wherever a value or a key may stand:
// bare where that is safe, else in single quotes, or in double quotes when it holds something that
// does not print.
func Quote(text string) string {
	switch {
	case plainText.MatchString(text) && !reservedText.MatchString(text):
		return text
	case !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "'" + strings.ReplaceAll(text, "'", "''") + "'"
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\U%08X`, r)
		}
	}
	return b.String() + `"`
}
