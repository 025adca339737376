package control

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// canaryTime is how long a canary is watched unless the request says.
const canaryTime = time.Minute

// What is watched of a canary when the policy's guard does not name it.
const (
	canaryFalls    = 0.5 // of its throughput
	canaryPressure = 0.5 // of the time
)

// applyCanary puts what a policy asks of one group in force, and leaves the rest to the tender of the trial.
func (c *Controller) applyCanary(ctx context.Context, r api.Request, reply *outcome) error {
	facts, s, err := c.recorded()
	if err != nil {
		return err
	}
	if s.Applied == nil {
		return api.Errorf(api.CodeUsage, "apply a policy with that group alone first",
			"a canary goes before the others of a policy in force, and none is")
	}
	// The whole of it has to be sound before a part of it is tried.
	whole := lookOver(s, r.Sources)
	whole.released, whole.lifted, whole.conflicts, whole.facts = nil, nil, nil, facts
	whole.askNodes = !r.Migrate
	next, err := c.view(ctx, whole)
	if err != nil {
		return err
	}
	if err := refusals(next.Plan, r.Force); err != nil {
		return err
	}
	l := lookOver(s, s.Applied.Sources)
	canary := state.Canary{Group: r.Canary, Sources: r.Sources, By: r.By, Reason: r.Reason, Force: r.Force,
		ConfirmWithin: r.ConfirmWithin, Migrate: r.Migrate}
	l.askNodes = !r.Migrate
	l.canary, l.lenient = &canary, true
	l.goBy(next)
	v, err := c.view(ctx, l)
	if err != nil {
		return err
	}
	switch {
	case !v.HasGroup(r.Canary):
		return errNoGroup(v, r.Canary)
	case !next.HasGroup(r.Canary):
		return api.Errorf(api.CodeUsage, "choose a group that both policies have",
			"the policy to apply has no group %q",
			r.Canary)
	}
	if err := refuseReleased(s, r.Canary); err != nil {
		return err
	}
	reply.Revision = s.Applied.Revision
	r.Verb, r.Of, r.Sources = "canary", r.Canary, nil
	watch, left := canaryWatch(next, v, r)
	run := func() error { return c.run(ctx, v, r, reply.Revision, reply) }
	if r.DryRun {
		return run()
	}
	if len(v.Plan.Steps) == 0 {
		return api.Errorf(api.CodeUsage, "apply without --canary, or choose a group of which it asks something else",
			"the policy asks of group %q what is in force", r.Canary)
	}
	err = c.standTrial(ctx, v, r, reply, s, map[string]any{state.DocCanary: canary}, watch, run)
	reply.Notes = append(left, reply.Notes...)
	return err
}

// canaryWatch is what is watched of a canary: what the guard of the new policy says, else what this host counts.
func canaryWatch(next, v *View, r api.Request) (w *state.Watch, left []string) {
	w = &state.Watch{Window: 10 * time.Second, For: cmp.Or(r.CanaryFor, canaryTime), Before: time.Minute}
	if g := next.Policy.Guard; g != nil {
		w.Window, w.Before = g.Window, g.Before
	}
	w.Window = min(w.Window, w.For)
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

// ApplyRest gives what applies the rest of a policy that a canary went before.
func (c *Controller) ApplyRest() ApplyRest {
	return func(ctx context.Context, canary *state.Canary) (revision int, err error) {
		r := api.Request{Verb: "apply", By: canary.By, Reason: canary.Reason, Force: canary.Force,
			Sources:       canary.Sources,
			ConfirmWithin: canary.ConfirmWithin, Migrate: canary.Migrate}
		reply := &outcome{}
		err = c.applySources(ctx, r, reply, r.Sources)
		return reply.Revision, err
	}
}
