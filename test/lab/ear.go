package lab

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"
)

// lockups is how many times in a row a kernel says that one of its CPUs does not move on, every 28 seconds or so, until
// it counts as stuck for good. A busy host makes it say so once or twice.
const lockups = 5

// Ear says when something was written last by a machine that moves on.
type Ear struct {
	last  atomic.Int64
	stuck atomic.Int32 // reports of lockups with nothing else between them
}

// Write never fails.
func (e *Ear) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("BUG: soft lockup")) {
		e.stuck.Add(1)
		return len(b), nil
	}
	e.stuck.Store(0)
	e.last.Store(time.Now().UnixNano())
	return len(b), nil
}

// Listen calls done when nothing was written for so long, or when the machine is stuck, and ends with the context.
func (e *Ear) Listen(ctx context.Context, most time.Duration, done func()) {
	e.last.Store(time.Now().UnixNano())
	for {
		left := most - time.Since(time.Unix(0, e.last.Load()))
		if left <= 0 || e.stuck.Load() >= lockups {
			done()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(left, time.Second)):
		}
	}
}
