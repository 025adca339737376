// Package reconcile brings the host back to the applied policy, pass after pass, for the agent: new processes into
// their groups (a fast path where one is plain), values back that others changed, overrides and windows ended in time,
// limits split anew by demand, and memory.high lifted where a group is stuck at it. A pass that finds nothing to do
// writes nothing.
package reconcile

import (
	"context"
	"time"

	"bulkhead/internal/access"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/transaction"
)

// Reconciler brings the host back to the applied policy, again and again, for the agent. Its methods are for one
// goroutine.
type Reconciler struct {
	*transaction.Controller

	known  *host.Facts
	memory memory
	used   ioSamples // when limits were split by demand the last time
	due    due
	// Admitted is who may ask the agent, as of the last pass.
	Admitted access.List
	disks    shape
	links    shape // of interfaces
}

// New makes this process the agent, which no rule may match.
func New(c *transaction.Controller) *Reconciler {
	c.Agent = c.Self
	return &Reconciler{Controller: c}
}

// Close lets go of what it holds of the state directory. The controller stays open.
func (c *Reconciler) Close() {
	if c.memory.lock != nil {
		c.memory.lock.Close()
	}
}

// memory is what one look leaves to the next. It is for one goroutine.
type memory struct {
	snapshot.Cache
	view *transaction.View // of the last look
	// classifier places what comes until the next look, by the rules of classified.
	classifier *classify.Classifier
	classified *transaction.View
	// observed is what the last full look saw of the groups, nil when it may have changed since. Only place
	// uses it, which writes no limit.
	observed *plan.Observation
	movers   map[int]mover
	members  map[procfs.ID]string       // at the last look that classified; the group where it was, "" outside of it
	governed map[string]layout.Governed // units at the last full look
	recorded recorded
	lock     *journal.SharedLock // for the short way into a group; nil until it is taken
	// refused are the groups that the last look at every limit could not put in force.
	refused map[string]bool
	barred  map[string]bar // by group
	told    map[told]time.Time
	// highs are the directories that have a memory.high, by the last full look; watches is what was read at highAt.
	highs   map[cgroup.Dir]string
	watches map[cgroup.Dir]*stallWatch
	highAt  time.Time
	// retained is when the history was shortened the last time.
	retained time.Time
	settled  *standing // by the last full look; nil when not known
	// forks that events told of since the look before.
	forks []Fork
}

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
	if err := c.Observe(ctx, v, transaction.ViewOptions{Cache: &c.memory.Cache}); err != nil {
		return err
	}
	seen := v.Observed
	seen.Processes = nil
	c.memory.observed = &seen
	return nil
}
