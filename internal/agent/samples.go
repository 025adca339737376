package agent

import (
	"log/slog"
	"sync"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/observe"
)

// samples takes samples on the agent's clock, beside its loop, and keeps the last one. Nothing is read because somebody
// asks.
type samples struct {
	every   time.Duration
	log     *slog.Logger
	sampler inspect.Sampler // of the goroutine that takes a sample
	next    time.Time       // when the next one is due; the loop's alone
	watched *inspect.Watched

	mu      sync.Mutex // guards what follows
	last    *observe.Sample
	begun   time.Time // when the one under way began; zero when none is
	skipped int64
	said    string // the trouble that was logged last
}

// begin says whether a sample may begin.
func (s *samples) begin(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun.IsZero() {
		s.begun = now
		return true
	}
	s.skipped++
	if s.said == "" {
		s.said = "late"
		s.log.Warn("a sample of what groups use takes too long; the next ones wait for it", "since", s.begun)
	}
	return false
}

// end takes in a sample, or why there is none.
func (s *samples) end(one *observe.Sample, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = time.Time{}
	switch {
	case err == nil:
		s.last, s.said = one, ""
	case err.Error() != s.said:
		s.said = err.Error()
		s.log.Warn("what groups use could not be sampled; trying again", "err", err)
	}
}

// answer gives the last sample with its age.
func (s *samples) answer() answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		return answer{Error: &wireError{Code: api.CodeFailed, Message: "the agent has taken no sample yet",
			Hint: "it takes the first one after its first look; ask again in a few seconds"}}
	}
	one := *s.last
	one.Age, one.Skipped = time.Since(one.At), s.skipped
	if !s.begun.IsZero() {
		one.Waiting = time.Since(s.begun)
	}
	return answer{Sample: &one}
}
