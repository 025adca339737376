package usage

import (
	"testing"
	"time"
)

func TestSpan(t *testing.T) {
	var s span
	for _, bad := range []string{"", "0", "0s", "-1s", "5", "tomorrow", "1d"} {
		if err := s.Set(bad); err == nil {
			t.Errorf("%q is taken as %s", bad, s.String())
		}
	}
	if err := s.Set("2h30m"); err != nil || time.Duration(s) != 150*time.Minute || s.String() != "2h30m0s" {
		t.Errorf("2h30m: %v, %v", s, err)
	}
}
