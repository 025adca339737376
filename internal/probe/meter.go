package probe

import (
	"context"
	"sync/atomic"
	"time"

	"bulkhead/internal/metrics"
)

// meter samples a count that a load keeps.
type meter struct {
	count   *atomic.Int64
	samples metrics.Points
}

const sampleEvery = 5 * time.Millisecond

// sample reads meters of a load that was begun a moment ago, with nothing counted, from the end of the warm-up until
// the context ends, or the load; if that ends before, over all of its time. It gives how long that was.
func sample(ctx context.Context, begin time.Time, ended <-chan struct{}, warm time.Duration,
	meters ...*meter) time.Duration {
	from := begin
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	isWarm := warm <= 0
	for _, m := range meters {
		m.samples = append(m.samples, metrics.Point{})
	}
	for {
		done := false
		select {
		case <-tick.C:
		case <-ended:
			done = true
		case <-ctx.Done():
			done = true
		}
		now := time.Now()
		if !isWarm && now.Sub(begin) >= warm {
			isWarm, from = true, now
			for _, m := range meters {
				m.samples = nil
			}
		}
		for _, m := range meters {
			m.samples = append(m.samples, metrics.Point{At: now.Sub(begin).Seconds(), Count: float64(m.count.Load())})
		}
		if done {
			return now.Sub(from)
		}
	}
}
