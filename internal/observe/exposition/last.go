package exposition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"bulkhead/internal/observe/figures"
)

// How long a scrape waits for a new sample, how long the agent may take to give one, and how long one is given again.
const (
	scrapeWaits = 40 * time.Millisecond
	fetchTime   = 5 * time.Second
	freshFor    = time.Second
	usually     = 10 * time.Second // between two samples, as far as age goes: now and then there are more
)

// tooOld is how many times as old as the time between two samples, or as 10 s, one may be.
const tooOld = 3

// errOld says that the agent answers and does not sample any more.
var errOld = errors.New("the agent's sample is too old")

// state is what a scrape has to tell.
type state struct {
	sample *figures.Set  // nil when there is none, or it is too old
	age    time.Duration // of the last one that was got
	known  bool          // whether one was got
}

// last keeps the last sample that was got, and gets a new one when somebody asks.
type last struct {
	fetch   func(context.Context, *figures.Set) (*figures.Set, error)
	changed func(error)
	wait    time.Duration // of a scrape

	mu      sync.Mutex // guards what follows
	sample  *figures.Set
	age     time.Duration // of it, when it was got the last time
	got     time.Time     // when that was
	tried   time.Time     // when it was asked for the last time and an answer came, whatever it was
	err     error         // of that answer
	said    string        // what changed was told last
	pending chan struct{}
}

// get gives what there is, after a short wait for something newer.
func (l *last) get(ctx context.Context) state {
	l.mu.Lock()
	pending := l.pending
	if pending == nil && time.Since(l.tried) > freshFor {
		pending = make(chan struct{})
		l.pending = pending
		go l.renew(context.WithoutCancel(ctx), pending)
	}
	l.mu.Unlock()
	if pending != nil {
		late := time.NewTimer(l.wait)
		defer late.Stop()
		select {
		case <-pending:
		case <-late.C:
		case <-ctx.Done():
		}
	}
	return l.now()
}

// renew asks the agent. Its answer is for all who wait.
func (l *last) renew(ctx context.Context, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	l.mu.Lock()
	had := l.sample
	l.mu.Unlock()
	sample, err := l.fetch(ctx, had)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried, l.err = time.Now(), err
	if err == nil {
		if l.sample == nil || !l.sample.At.Equal(sample.At) { // else it is the same, and so is what was made of it
			l.sample = sample
		}
		l.age, l.got = sample.Age, l.tried
	}
	l.pending = nil
	close(done)
}

// rest is for how long nobody has to ask: the last answer is young enough until then.
func (l *last) rest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.tried.Add(usually))
}

// now says what is known at this moment.
func (l *last) now() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := state{known: l.sample != nil}
	err := l.err
	if s.known {
		s.age = time.Since(l.got) + l.age
		if limit := tooOld * max(l.sample.Every, usually); s.age > limit && err == nil {
			err = fmt.Errorf("%w: %s, and one is taken every %s", errOld, s.age.Round(time.Second), l.sample.Every)
		}
	}
	if s.known && err == nil {
		s.sample = l.sample
	}
	l.say(err)
	return s
}

// say tells changed what is wrong when that is another thing than before. The caller holds the lock.
func (l *last) say(err error) {
	text := ""
	switch {
	case errors.Is(err, errOld):
		text = errOld.Error()
	case err != nil:
		text = err.Error()
	}
	if text != l.said {
		l.said = text
		l.changed(err)
	}
}
