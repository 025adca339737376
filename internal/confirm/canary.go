package confirm

import (
	"cmp"
	"fmt"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// canaryTime is how long a canary is watched unless the request says.
const canaryTime = time.Minute

// What is watched of a canary when the policy's guard does not name it.
const (
	canaryFalls    = 0.5 // of its throughput
	canaryPressure = 0.5 // of the time
)

// CanaryWatch is what is watched of a canary: what the guard of the new policy says, else what this host counts.
func CanaryWatch(next, v *transaction.View, r api.Request) (w *state.Watch, left []string) {
	w = &state.Watch{Window: 10 * time.Second, For: cmp.Or(r.CanaryFor, canaryTime), Before: time.Minute}
	if g := next.Policy.Guard; g != nil {
		w.Window, w.Before = g.Window, g.Before
	}
	w.Window = min(w.Window, max(w.For/2, SampleEvery)) // a fall of throughput counts when it lasts for two windows
	if one, named := next.Policy.Guard.Of(r.Canary); named {
		w.Clauses = []policy.Guarded{one}
		return w, nil
	}
	kills, falls, pressure := int64(0), canaryFalls, canaryPressure
	one := policy.Guarded{Group: r.Canary}
	for _, try := range []struct {
		what string
		with policy.Guarded
		take func()
	}{
		{"kills for want of memory", policy.Guarded{Group: r.Canary, OOMKills: &kills},
			func() { one.OOMKills = &kills }},
		{"memory pressure", policy.Guarded{Group: r.Canary, MemoryPressure: &pressure},
			func() { one.MemoryPressure = &pressure }},
		{"throughput", policy.Guarded{Group: r.Canary, Throughput: &falls}, func() { one.Throughput = &falls }},
	} {
		if sourced(v, try.with) == nil {
			try.take()
		} else {
			left = append(left, fmt.Sprintf("canary: %s of group %s is not watched: nothing here counts it", try.what,
				r.Canary))
		}
	}
	w.Clauses = []policy.Guarded{one}
	return w, left
}
