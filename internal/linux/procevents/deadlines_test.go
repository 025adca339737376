package procevents

import (
	"testing"
	"time"
)

func TestSummons(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	var s deadlines
	wants := func(what string, want time.Time) {
		t.Helper()
		if err := s.until(at(1000), func(got time.Time) error {
			if !got.Equal(want) {
				t.Errorf("%s: a reader waits until %v, want %v", what, got, want)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	add := func(ms int) { s.add(at(ms), func(time.Time) {}) }
	passed := func(ms int) { s.passed(at(ms), func(time.Time) {}) }
	wants("nobody asked", at(1000))
	add(20)
	add(30)
	add(40)
	wants("asked three times", at(20))
	passed(10)
	wants("read before", at(20))
	passed(25)
	wants("the first was heeded", at(40))
	add(35)
	wants("an earlier one came", at(35))
	passed(50)
	wants("all were heeded", at(1000))
	add(5)
	wants("one is over already", at(5))
}
