package confirm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"bulkhead/internal/apply"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/netshape"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/transaction"
	"bulkhead/internal/watchdog"
)

// lockWait is how long a watchdog waits for the lock before it takes the changes of interfaces back without.
const lockWait = time.Second

// TakeBack is what a watchdog does when the one that made a change cannot take it back: the change is undone as after a
// crash, by the journal. Where that is not to be had, in whatever way, what was done to interfaces is undone by what
// the watchdog was told.
func TakeBack(ctx context.Context, c *transaction.Controller, o watchdog.Order, why string, stuck int) error {
	var g apply.Guarded
	if err := json.Unmarshal(o.Undo, &g); err != nil {
		return fmt.Errorf("read what to undo: %w", err)
	}
	if stuck > 1 {
		// It could wake up in the midst of this, and go on.
		_ = syscall.Kill(stuck, syscall.SIGKILL)
	}
	c.Log.Error("taking a change of the network back", "why", why, "transaction", g.Txn)
	err := takeBackByJournal(ctx, c, g)
	if err == nil {
		return nil
	}
	c.Log.Error("the journal does not help; taking back what was done to interfaces alone", "err", err)
	return snapshot.WithNetwork(func(k *netshape.Kernel) error {
		var failed []error
		for _, u := range slices.Backward(g.Undo) {
			if _, err := k.Undo(u.Change, u.Undo); err != nil {
				failed = append(failed, err)
			}
		}
		return errors.Join(failed...)
	})
}

func takeBackByJournal(ctx context.Context, c *transaction.Controller, g apply.Guarded) error {
	if c.Store == nil {
		return errors.New("the state directory cannot be opened")
	}
	lock, err := c.LockWithin(ctx, lockWait, "undo", "watchdog")
	if err != nil {
		if locked := (*statedir.LockedError)(nil); errors.As(err, &locked) && ended(c, g.Txn) {
			return nil // who has the lock has undone it, and may be on the way to the same once more
		}
		return err
	}
	defer lock.Release()
	if t, pending := c.Store.Pending(); !pending || t.ID != g.Txn {
		return nil // it was ended in time, or undone by somebody else
	}
	return c.Recover(ctx, &transaction.Outcome{})
}

// ended says whether a transaction is known to have an end, by what is on the disk now.
func ended(c *transaction.Controller, txn uint64) bool {
	now, err := journal.Open(c.Store.Dir(), journal.Options{})
	if err != nil {
		return false
	}
	defer now.Close()
	t, pending := now.Pending()
	return len(now.Warnings()) == 0 && (!pending || t.ID != txn)
}
