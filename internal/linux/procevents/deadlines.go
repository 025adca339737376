package procevents

import (
	"sync"
	"time"
)

// deadlines are the times at which a reader is asked to read, whatever it waits for: the first that is to come, and the
// one asked for last. A time between those two is not kept: a reading that was asked for then comes at the last.
type deadlines struct {
	mu    sync.Mutex
	first time.Time // zero: none is to come
	last  time.Time
}

// add asks for a reading, and calls set with the time of the first that is to come.
func (s *deadlines) add(at time.Time, set func(first time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = at
	if s.first.IsZero() || at.Before(s.first) {
		s.first = at
	}
	set(s.first)
}

// until calls set with the time until which a reader may wait: that of the first, also one that is over, or end.
func (s *deadlines) until(end time.Time, set func(time.Time) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.first.IsZero() && s.first.Before(end) {
		end = s.first
	}
	return set(end)
}

// passed forgets those that a reading now has done, and calls set with the time of the next one, if there is one.
func (s *deadlines) passed(now time.Time, set func(next time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first.IsZero() || now.Before(s.first) {
		return
	}
	if !now.Before(s.last) {
		s.first = time.Time{}
		return
	}
	s.first = s.last
	set(s.first)
}
