package reconcile

import (
	"time"

	"bulkhead/internal/revisions"
	"bulkhead/internal/transaction"
)

// retainEvery is how often the agent shortens the history.
const retainEvery = time.Hour

// retainDue shortens the history when it is time, for the agent. It needs the lock.
func (c *Reconciler) retainDue(v *transaction.View) {
	if now := time.Now(); now.Sub(c.memory.retained) >= retainEvery {
		c.memory.retained = now
		if err := revisions.Retain(c.Store, v.Policy.Host.History); err != nil {
			c.Log.Warn("the history is longer than it is to be", "err", err)
		}
	}
}
