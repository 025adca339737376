package sysroot

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrNoAnswer says that a file system or a disk did not answer in time: a dead NFS server, a device-mapper device
// that is suspended, a multipath device without a path that queues. Whoever waits for one of these cannot be woken,
// not even by SIGKILL.
var ErrNoAnswer = errors.New("its file system has not answered for a while; the disk or the server below it may be " +
	"dead")

// errCrowded says that a question was not asked at all. What it is about may be well: each question to a dead disk
// keeps a thread.
var errCrowded = fmt.Errorf("it was not looked at, since %d questions to file systems that do not answer are open "+
	"already", mostWaiting)

// How long is waited for what a disk may hold up, and how many may wait at a time: each keeps a thread of the
// kernel's until the disk answers.
const (
	answerTime  = 2 * time.Second
	mostWaiting = 16
)

// waits are the questions that were not answered in time. One that is asked again while the first has no answer gets
// none either, at once.
type waits struct {
	mu   sync.Mutex
	open map[string]bool
}

// WithTimeout does something that looks at files of any file system, and waits for it only so long. What runs into its
// time goes on by itself, and its result is thrown away. Captured hosts answer always.
func WithTimeout[T any](h *FS, what string, do func() (T, error)) (T, error) {
	if !h.live {
		return do()
	}
	var none T
	w := &h.waits
	w.mu.Lock()
	asked, crowded := w.open[what], len(w.open) >= mostWaiting
	w.mu.Unlock()
	switch {
	case asked:
		return none, ErrNoAnswer
	case crowded:
		return none, errCrowded
	}
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		value, err := do()
		answered <- answer{value, err}
		w.mu.Lock()
		delete(w.open, what)
		w.mu.Unlock()
	}()
	late := time.NewTimer(answerTime)
	defer late.Stop()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-late.C:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case a := <-answered: // in this moment
		return a.value, a.err
	default:
	}
	if w.open == nil {
		w.open = map[string]bool{}
	}
	w.open[what] = true
	return none, fmt.Errorf("%w (%s)", ErrNoAnswer, answerTime)
}
