package load

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"time"
)

// sleeper is a thread that sleeps 1 ms again and again, outside of all groups: in the run's own process. A transaction
// is a sleep, and its latency how long after it was due the thread ran again.
var sleeper = &loader{
	Native: func(ctx context.Context, _ *Driver, length time.Duration, live func(float64)) (Outcome, error) {
		const nap = time.Millisecond
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		began := time.Now()
		all := newSeries(began, live)
		for time.Since(began) < length && ctx.Err() == nil {
			asleep, span := time.Now(), syscall.NsecToTimespec(int64(nap))
			if err := syscall.Nanosleep(&span, nil); err == syscall.EINTR {
				continue // a signal for this process ended the sleep too early
			} else if err != nil {
				return Outcome{}, fmt.Errorf("sleep: %w", err)
			}
			all.add(time.Since(asleep) - nap)
		}
		return all.outcome(nap), context.Cause(ctx)
	},
}
