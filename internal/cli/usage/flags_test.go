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

func TestPast(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"02:10":                time.Date(2026, 11, 25, 2, 10, 0, 0, time.Local),
		"13:00":                time.Date(2026, 11, 24, 13, 0, 0, 0, time.Local),
		"11:59:58":             time.Date(2026, 11, 25, 11, 59, 58, 0, time.Local),
		"90m":                  now.Add(-90 * time.Minute),
		"2026-11-20 02:10":     time.Date(2026, 11, 20, 2, 10, 0, 0, time.Local),
		"2026-11-20T02:10:00Z": time.Date(2026, 11, 20, 2, 10, 0, 0, time.UTC),
	} {
		if got, err := Past(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s is %v, want %v: %v", text, got, want, err)
		}
	}
	for _, text := range []string{"", "25:00", "-5m", "yesterday"} {
		if got, err := Past(text, now); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
