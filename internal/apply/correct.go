package apply

import (
	"context"
	"fmt"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
)

// Correct does writes that the journal and the history leave out, each of which leaves a valid state: the parts of a
// limit that several devices share. It reads every write back and stops at the first failure. The journal has the
// originals of these files since their first write, and a release lifts whatever they hold.
func (r *Runner) Correct(ctx context.Context, p plan.Plan) (done int, err error) {
	if _, pending := r.Journal.Pending(); pending {
		return 0, fmt.Errorf("correct limits: %w", journal.ErrPending)
	}
	n := &run{Runner: r, ctx: ctx, plan: p}
	for _, s := range p.Steps {
		if s.Kind != cgroup.KindFile {
			return 0, fmt.Errorf("correct limits: to change %s is no correction", s.Target)
		}
	}
	if err := (&preparer{n}).prepare(); err != nil {
		return 0, fmt.Errorf("correct limits: %w", err)
	}
	for i, a := range n.actions {
		if err := ctx.Err(); err != nil {
			return done, fmt.Errorf("correct limits: %w", err)
		}
		n.tried = i + 1
		if err := n.step(a); err != nil {
			return done, fmt.Errorf("correct limits: %w", err)
		}
		done++
	}
	return done, nil
}
