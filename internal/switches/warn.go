package switches

import (
	"fmt"

	"bulkhead/internal/dblogin"
)

// The document's thresholds: a tenth of the CPU for switching, so many switches of a CPU where the maximum is not
// known, so many for each query.
const (
	ShareOfMaximum = 0.10
	PerCPU         = 50_000
	PerQuery       = 10
	LeastPerQuery  = 2 // one to the thread of the client, one for the answer
)

// Warnings says where a report is above what is held for harmless. max is nil where it was not measured.
func (r *Report) Warnings(max *Maximum) (all []string) {
	busy := CPU{-1, r.PerCPU}
	for _, c := range r.CPUs {
		if c.Rate > busy.Rate {
			busy = c
		}
	}
	who := "a CPU switches"
	if busy.ID >= 0 {
		who = fmt.Sprintf("CPU %d switches", busy.ID)
	}
	if busy.Rate > PerCPU {
		all = append(all, fmt.Sprintf("%s %.0f times a second: more than %d, the usual bound", who, busy.Rate, PerCPU))
	}
	if max != nil && max.Stale == "" && busy.Rate > ShareOfMaximum*max.Rate {
		all = append(all, fmt.Sprintf("%s %.0f times a second: %.0f %% of the measured maximum of %.0f, more than "+
			"%.0f %%", who, busy.Rate, 100*busy.Rate/max.Rate, max.Rate, 100*ShareOfMaximum))
	}
	if max != nil && max.Stale != "" {
		all = append(all, fmt.Sprintf("the maximum of %s is stale: %s changed since; `bulkhead switches "+
			"--measure-maximum` measures it anew", max.When.Format("2006-01-02"), max.Stale))
	}
	return all
}

// Verdict says what switches for each query tell, for an engine of package dblogin.
func (q Queries) Verdict(engine string) string {
	switch {
	case q.Trouble != "":
		return "not known: " + q.Trouble
	case q.Done == 0:
		return "it counted none meanwhile"
	case q.PerQuery >= PerQuery:
		return "many: its threads may wait for each other, for the disk or for the CPU"
	case engine == dblogin.MySQL:
		return "contention is unlikely, but InnoDB spins before it waits: look at its own figures, and at its CPU use"
	case q.PerQuery < LeastPerQuery:
		return "contention is unlikely; fewer than 2: many queries come at a time, or are no round trips"
	}
	return "contention is unlikely"
}
