package sampling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
	"bulkhead/internal/observe/record"
)

// between is the time between two readings of threads in Twice: one that begins and ends meanwhile is not counted.
const between = 500 * time.Millisecond

// Twice has collectors read at once, and again after a time, without an agent. Each may fail: then its figures are not
// there. It ends early, with an error, when ctx does.
func Twice(ctx context.Context, h *host.Host, w *Watched, parts []observe.Part, span time.Duration,
) (before, after record.Tick, err error) {
	k := New(h)
	k.Watch(w)
	return k.twice(ctx, k.Sources(), parts, span)
}

// twice is Twice of some sources.
func (k *Kernel) twice(ctx context.Context, sources map[observe.Part]collect.Source, parts []observe.Part,
	span time.Duration) (before, after record.Tick, err error) {
	defer k.blame.stop()
	k.blame.keep = span + endAfter // nobody reads in between
	if slices.Contains(parts, observe.Blamed) {
		// To load programs takes a quarter of a second, which is no part of the time in which they count.
		_, _ = sources[observe.Blamed](ctx, noMeter()) // it is read once more, and says then what it lacks
	}
	first, err := take(ctx, k, sources, parts)
	if err != nil {
		return before, after, err
	}
	end := time.NewTimer(span)
	defer end.Stop()
	tick := time.NewTicker(between)
	defer tick.Stop()
	threads := sources[observe.Threads]
	for {
		select {
		case <-ctx.Done():
			return before, after, context.Cause(ctx)
		case <-tick.C:
			if !slices.Contains(parts, observe.Threads) {
				continue
			}
			if _, err := threads(ctx, noMeter()); err != nil {
				return before, after, fmt.Errorf("read threads: %w", err)
			}
		case <-end.C:
			last, err := take(ctx, k, sources, parts)
			if err != nil {
				return before, after, err
			}
			fromZero(first, last)
			return record.TickOf(first, parts), record.TickOf(last, parts), nil
		}
	}
}

// fromZero has threads of the first sample count from zero on CPUs on which they were seen later only.
func fromZero(first, last *observe.Sample) {
	for i := range first.Groups {
		was, is := first.Groups[i].Threads, last.Groups[i].Threads
		if was == nil || is == nil {
			continue
		}
		all := map[int]time.Duration{}
		for id := range is.RanOn {
			all[id] = was.RanOn[id]
		}
		was.RanOn = all
	}
}

// take has collectors read.
func take(ctx context.Context, k *Kernel, sources map[observe.Part]collect.Source, parts []observe.Part,
) (*observe.Sample, error) {
	s := &observe.Sample{}
	k.Begin(s)
	var failed error
	read := map[observe.Part]time.Time{}
	for _, p := range parts {
		began := time.Now()
		put, err := sources[p](ctx, noMeter())
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("read %s: %w", p, err))
			continue
		}
		read[p] = began.Add(time.Since(began) / 2)
		put(s)
	}
	s.At = time.Now()
	for p, at := range read {
		s.Collectors = append(s.Collectors, observe.Reading{Name: p, On: true, Told: true, Age: s.At.Sub(at)})
	}
	if len(read) == 0 {
		return nil, failed
	}
	return s, nil
}

// noMeter counts nothing.
func noMeter() *collect.Meter {
	return collect.NewMeter(func() (int, time.Duration) { return 0, 0 })
}
