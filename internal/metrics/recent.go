package metrics

import (
	"context"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/cgroup"
)

// Recent keeps the samples of some groups of the last while. The zero value is empty. It is safe for concurrent use.
type Recent struct {
	mu      sync.Mutex
	of      map[string][]Sample // by group, the oldest first
	last    time.Time
	busy    bool    // somebody takes samples
	sampler Sampler // of whoever does
}

// Sample takes a sample of each group, unless the last ones are younger than every, and keeps it for a time. It returns
// at once: databases may take long to answer.
func (r *Recent) Sample(ctx context.Context, t *cgroup.Tree, groups map[string]Group, now time.Time,
	every, keep time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy || now.Sub(r.last) < every {
		return
	}
	r.last = now
	if r.busy = len(groups) > 0; r.busy {
		go r.take(ctx, t, groups, keep)
	}
}

func (r *Recent) take(ctx context.Context, t *cgroup.Tree, groups map[string]Group, keep time.Duration) {
	for group, g := range groups {
		one := r.sampler.Take(ctx, t, g)
		r.mu.Lock()
		r.add(group, one, keep)
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.busy = false
	r.mu.Unlock()
}

// add keeps a sample, and forgets those that are too old. The caller holds the lock.
func (r *Recent) add(group string, one Sample, keep time.Duration) {
	if r.of == nil {
		r.of = map[string][]Sample{}
	}
	all := r.of[group]
	if one.WorkErr != nil { // how much it did meanwhile is not known
		all = nil
	} else {
		all = append(all, one)
	}
	r.of[group] = slices.DeleteFunc(all, func(o Sample) bool { return one.At.Sub(o.At) > keep })
}

// Windows are what a group did between each sample and the next; none when the newest is older than within.
func (r *Recent) Windows(group string, within time.Duration) (all []Delta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	samples := r.of[group]
	if len(samples) == 0 || time.Since(samples[len(samples)-1].At) > within {
		return nil
	}
	for i := range len(samples) - 1 {
		all = append(all, samples[i+1].Since(samples[i]))
	}
	return all
}
