package agent

import (
	"math"
	"time"

	"bulkhead/internal/control"
)

// loadEvery is the time between two samples of the load averages, as in the kernel (LOAD_FREQ).
const loadEvery = 5 * time.Second

// loads keeps the load average of each group.
type loads map[string]control.Load

// next gives the averages one sample later, as calc_load of the kernel does: each moves towards the sample
// by 1-exp(-elapsed/window). Groups that are gone are forgotten.
func (l loads) next(sample map[string]control.TaskStates, elapsed time.Duration) loads {
	averages := make(loads, len(sample))
	for group, tasks := range sample {
		load := l[group]
		for i, window := range []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute} {
			keep := math.Exp(-float64(elapsed) / float64(window))
			load[i] = load[i]*keep + float64(tasks.Running+tasks.Blocked)*(1-keep)
		}
		averages[group] = load
	}
	return averages
}
