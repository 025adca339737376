package freeze

import (
	"cmp"
	"context"
	"slices"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// lateness is how long past its end a freeze may be before its watchdog ends it: whose work that is may be about it.
const lateness = 2 * time.Second

// Outlast ends the freezes of one request when their time is over and whose work that is has not: the agent, or without
// one the command that waits for it. It returns when none of them is left, or with the cause of ctx's end.
func Outlast(ctx context.Context, c *transaction.Controller, id string) error {
	for {
		over, err := outlastOnce(ctx, c, id)
		if over {
			return nil
		}
		if err != nil {
			c.Log.Error("a freeze that is over could not be ended; trying again", "err", err)
		}
		if err := transaction.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// outlastOnce looks once. Over says that none of the freezes is left.
func outlastOnce(ctx context.Context, c *transaction.Controller, id string) (over bool, err error) {
	d, err := state.Load(c.Store, state.DocFreezes)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(d.Freezes, func(f state.Freeze) bool { return idOf(f.Ends) == id })
	if i < 0 {
		return true, nil
	}
	now := time.Now()
	if !d.Freezes[i].Ended(now.Add(-lateness), procfs.SinceBoot()-lateness) {
		return false, nil
	}
	return false, thawDueWithin(ctx, c, cmp.Or(c.LockWait, transaction.DefaultLockWait), now)
}
