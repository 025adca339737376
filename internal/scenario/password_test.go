package scenario

import (
	"strings"
	"testing"

	"bulkhead/internal/policy"
)

// A mistake on the line of a DSN is shown without its password, with the caret where it was.
func TestPasswordInMistake(t *testing.T) {
	for _, line := range []string{
		"db: {engine: mariadb, dsn: 'mysql://app:geheim@h/shop', bufer: '1'}",
		"db: {engine: mariadb, dns: mysql://app:geheim@h/shop}",
		"db: {engine: mysql, dsn: 'mysql://app:ge/@heim@h/shop'}",
		"db: {engine: mariadb, dsn: [mysql://app:geheim@h/shop]}",
	} {
		_, err := Parse(policy.Source{Path: "x.yaml", Text: "version: 1\nname: x\ndatabases:\n  " + line +
			"\narms: {}\n"})
		if err == nil || strings.Contains(err.Error(), "heim") || !strings.Contains(err.Error(), "://app:xxxxxx") ||
			!strings.Contains(err.Error(), "^") {
			t.Errorf("%s: %v", line, err)
		}
	}
}
