package bench

import (
	"strings"
	"testing"
)

func TestLastLines(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{{"a\nb\nc\n", 2, "b\nc"}, {"a", 5, "a"}, {strings.Repeat("x\n", 100), 3, "x\nx\nx"}} {
		if got := lastLines(tt.text, tt.n); got != tt.want {
			t.Errorf("last %d lines of %q are %q", tt.n, tt.text, got)
		}
	}
}

func TestGreeting(t *testing.T) {
	version, err := greeting(strings.NewReader("\x4a\x00\x00\x00\x0a5.5.5-10.11.19-MariaDB-0+deb12u1\x00rest"))
	if err != nil || version != "10.11.19-MariaDB" {
		t.Errorf("greeted by %q, %v", version, err)
	}
	for _, bad := range []string{"", "abc", "\x4a\x00\x00\x00\x09old\x00"} {
		if _, err := greeting(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is a greeting", bad)
		}
	}
}
