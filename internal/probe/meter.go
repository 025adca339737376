package probe

import (
	"context"
	"sync/atomic"
	"time"
)

// meter tells how fast a count grows. A limit lets through much at a time, then nothing for as long as a slice of it lasts (100 ms in
// blk-throttle): what is counted between two moments may be one such slice too much. So it is the slope of the line that fits best to many
// samples (least squares), in which the ends weigh little.
type meter struct {
	count   *atomic.Int64
	samples []reading
}

type reading struct {
	at    float64 // seconds
	count float64
}

const sampleEvery = 5 * time.Millisecond

// sample reads meters of a load that was begun a moment ago, with nothing counted, from the end of the warm-up until the context ends, or the load; if that ends before, over all of its time. It gives
// how long that was.
func sample(ctx context.Context, begin time.Time, ended <-chan struct{}, warm time.Duration, meters ...*meter) time.Duration {
	from := begin
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	isWarm := warm <= 0
	for _, m := range meters {
		m.samples = append(m.samples, reading{})
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
			m.samples = append(m.samples, reading{now.Sub(begin).Seconds(), float64(m.count.Load())})
		}
		if done {
			return now.Sub(from)
		}
	}
}

// in gives by how much the count grows in so long.
func (m *meter) in(span time.Duration) int64 {
	n := float64(len(m.samples))
	if n == 0 {
		return 0
	}
	if n < 8 { // over in no time
		first, last := m.samples[0], m.samples[len(m.samples)-1]
		if last.at <= first.at {
			return int64(last.count)
		}
		return int64((last.count - first.count) / (last.at - first.at) * span.Seconds())
	}
	var at, count float64
	for _, s := range m.samples {
		at, count = at+s.at/n, count+s.count/n
	}
	var above, below float64
	for _, s := range m.samples {
		above += (s.at - at) * (s.count - count)
		below += (s.at - at) * (s.at - at)
	}
	return int64(max(0, above/below*span.Seconds()))
}
