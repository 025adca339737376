package dbstat

import (
	"strings"
	"testing"
	"time"
)

func TestBadNames(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                                     "of the form ENGINE://",
		"root@localhost":                       "of the form ENGINE://",
		"mysql://root:s3cret@[::1/":            "of the form ENGINE://",
		"oracle://scott:s3cret@db/":            `"oracle" are not known`,
		"mysql://root:s3cret@/":                "name a host, or a socket",
		"postgres://u:s3cret@db:port/":         "",
		"redis://:s3cret@db:6379/nine":         "",
		"postgres://u:s3cret@db/?sslmode=best": "",
	} {
		s, err := Parse(dsn)
		if err == nil {
			t.Errorf("%q is taken: %+v", dsn, s)
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}

// A server that is not there is an error in time, and no password is in it.
func TestNobodyAnswers(t *testing.T) {
	for _, dsn := range []string{"mysql://u:s3cret@127.0.0.1:1/", "mysql://u:s3cret@localhost/?socket=/nonexistent",
		"postgres://u:s3cret@127.0.0.1:1/db", "redis://:s3cret@127.0.0.1:1", "unix:///nonexistent"} {
		s, err := Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := s.Work(t.Context()); err == nil || strings.Contains(err.Error(), "s3cret") ||
			time.Since(start) > 10*time.Second {
			t.Errorf("%s after %s: %v", dsn, time.Since(start), err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
