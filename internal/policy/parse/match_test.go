package parse

import (
	"strings"
	"testing"

	"bulkhead/internal/policy"
)

// A program is a base name, a whole path, or the beginning of one; what could match nothing or everything is refused.
func TestProgram(t *testing.T) {
	for program, wrong := range map[string]string{
		"mysqld": "", "/usr/sbin/mysqld": "", "/opt/mysql/*": "", "backup of all.sh": "", "/opt/my*": "",
		"*": "every process", "/*": "every process", "/": "every process", "my*": "matches nothing",
		"bin/mysqld": "matches nothing",
	} {
		text := "version: 1\ngroups:\n  g: {match: [{program: '" + program + "'}]}\n"
		_, err := Policy([]policy.Source{{Path: "p", Text: text}})
		switch {
		case wrong == "" && err != nil:
			t.Errorf("%s: %v", program, err)
		case wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)):
			t.Errorf("%s: %v, want %q", program, err, wrong)
		}
	}
}

// A regular expression that would make each look slow is refused.
func TestLongRegexp(t *testing.T) {
	for length, fine := range map[int]bool{longestRegexp: true, longestRegexp + 1: false} {
		text := "version: 1\ngroups: {g: {match: [{cmdline: '" + strings.Repeat("x", length) + "'}]}}\n"
		if _, err := Policy([]policy.Source{{Path: "p", Text: text}}); (err == nil) != fine {
			t.Errorf("%d bytes: %v", length, err != nil)
		}
	}
}
