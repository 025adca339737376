package pagesize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/journal/statedir"
)

// recoverTime is how long a guard tries.
const recoverTime = time.Minute

// Guard is a process beside a proof that makes all as it was when the proof was killed: it says a line when it is
// ready, waits for SIGTERM, which the kernel sends it when the proof is gone (prctl(2), PR_SET_PDEATHSIG), and recovers
// as soon as the proof's lock is free.
func Guard(ctx context.Context, h *host.Host, dir string, ready io.Writer) error {
	waiting, stop := signal.NotifyContext(context.WithoutCancel(ctx), syscall.SIGTERM)
	defer stop()
	if _, err := fmt.Fprintln(ready, "ready"); err != nil {
		return err
	}
	<-waiting.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoverTime)
	defer cancel()
	for {
		err := Recover(ctx, h, dir)
		if locked := (*statedir.LockedError)(nil); !errors.As(err, &locked) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}
