package reconcile

import (
	"context"
	"time"

	"bulkhead/internal/snapshot"
	"bulkhead/internal/transaction"
)

// members looks who belongs where, as classify does, and takes in what became of forks.
func (c *Reconciler) members(ctx context.Context, l transaction.ViewOptions) (*transaction.View, error) {
	l.Cache = &c.memory.Cache
	v, err := c.Classify(ctx, l)
	if err != nil {
		return nil, err
	}
	c.memory.view = v
	c.Admitted.Open(v.Snapshot)
	c.memory.inherit(v, c.memory.forks, time.Now())
	return v, nil
}

// whole looks at every limit too.
func (c *Reconciler) whole(ctx context.Context, l transaction.ViewOptions) (*transaction.View, error) {
	v, err := c.members(ctx, l)
	if err == nil {
		err = c.limits(ctx, v)
	}
	return v, err
}

// limits adds to a look at members what the kernel holds of their groups, and plans.
func (c *Reconciler) limits(ctx context.Context, v *transaction.View) error {
	cached := snapshot.Options{Cache: &c.memory.Cache}
	if err := c.Observe(ctx, v, transaction.ViewOptions{Options: cached}); err != nil {
		return err
	}
	seen := v.Observed
	seen.Processes = nil
	c.memory.observed = &seen
	return nil
}
