package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"bulkhead/internal/journal"
)

// A verb that waits for the lock of the state directory ends with its context.
func TestWaitForLockEndsWithContext(t *testing.T) {
	c := newBook(t)
	c.LockWait = time.Minute
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	begun := time.Now()
	_, err := c.Do(ctx, Request{Verb: "release", All: true})
	var locked *journal.LockedError
	took := time.Since(begun)
	if !errors.Is(err, context.Canceled) || !errors.As(err, &locked) || took > 5*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
}
