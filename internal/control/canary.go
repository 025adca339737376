package control

import (
	"context"

	"bulkhead/internal/api"
	"bulkhead/internal/confirm"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// applyCanary puts what a policy asks of one group in force, and leaves the rest to the supervisor of the trial.
func applyCanary(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	facts, s, err := c.Recorded()
	if err != nil {
		return err
	}
	if s.Applied == nil {
		return api.Errorf(api.CodeUsage, "apply a policy with that group alone first",
			"a canary goes before the others of a policy in force, and none is")
	}
	if err := refuseForbidden(c, r, s, r.Sources); err != nil {
		return err
	}
	// The whole of it has to be sound before a part of it is tried.
	whole := transaction.OptionsOver(s, r.Sources)
	whole.Released, whole.Lifted, whole.Conflicts, whole.Facts = nil, nil, nil, facts
	whole.AskNodes = !r.Migrate
	next, err := c.View(ctx, whole)
	if err != nil {
		return err
	}
	if err := transaction.Refused(next.Plan, r.Force); err != nil {
		return err
	}
	l := transaction.OptionsOver(s, s.Applied.Sources)
	canary := state.Canary{Group: r.Canary, Sources: r.Sources, By: r.By, Reason: r.Reason, Force: r.Force,
		ConfirmWithin: r.ConfirmWithin, Migrate: r.Migrate}
	l.AskNodes = !r.Migrate
	l.Canary, l.Lenient = &canary, true
	l.GoBy(next)
	v, err := c.View(ctx, l)
	if err != nil {
		return err
	}
	switch {
	case !v.HasGroup(r.Canary):
		return transaction.NoGroup(v, r.Canary)
	case !next.HasGroup(r.Canary):
		return api.Errorf(api.CodeUsage, "choose a group that both policies have",
			"the policy to apply has no group %q", r.Canary)
	}
	if err := transaction.RefuseReleased(s, r.Canary); err != nil {
		return err
	}
	reply.Revision = s.Applied.Revision
	r.Verb, r.Of, r.Sources = "canary", r.Canary, nil
	watch, left := confirm.CanaryWatch(next, v, r)
	run := func() error { return c.Run(ctx, v, r, reply.Revision, reply) }
	if r.DryRun {
		return run()
	}
	if len(v.Plan.Steps) == 0 {
		return api.Errorf(api.CodeUsage, "apply without --canary, or choose a group of which it asks something else",
			"the policy asks of group %q what is in force", r.Canary)
	}
	err = confirm.CommitWatched(ctx, c, v, r, reply, s, map[string]any{state.DocCanary: canary}, watch, run)
	reply.Notes = append(left, reply.Notes...)
	return err
}

// ApplyRest gives what applies the rest of a policy that a canary went before.
func ApplyRest(c *transaction.Controller) confirm.ApplyRest {
	return func(ctx context.Context, canary *state.Canary) (revision int, err error) {
		r := api.Request{Verb: "apply", By: canary.By, Reason: canary.Reason, Force: canary.Force,
			Sources:       canary.Sources,
			ConfirmWithin: canary.ConfirmWithin, Migrate: canary.Migrate}
		reply := &transaction.Outcome{}
		err = applySources(ctx, c, r, reply, r.Sources)
		return reply.Revision, err
	}
}
