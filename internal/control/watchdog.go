package control

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
	"bulkhead/internal/netshape"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/watchdog"
)

// guard has a watchdog take the changes of interfaces back when this process dies over them, or the peers of the policy
// get out of reach. A release does without one where none can be started: what needs a release may be just that no
// process can.
func (c *Controller) guard(ctx context.Context, peers []string, releasing bool) func(apply.Guarded,
	context.CancelCauseFunc) (func(bool) error, error) {
	if len(c.watchdog) == 0 {
		return nil
	}
	return func(g apply.Guarded, stop context.CancelCauseFunc) (func(bool) error, error) {
		undo, err := json.Marshal(g)
		if err != nil {
			return nil, err
		}
		dog, err := watchdog.Start(ctx, c.watchdog, watchdog.Order{Peers: peers, Undo: undo})
		if err != nil && releasing {
			c.Log.Warn("releasing without a watchdog", "err", err)
			return func(bool) error { return nil }, nil
		}
		if err != nil {
			return nil, err
		}
		over := make(chan struct{})
		go func() {
			select {
			case <-dog.Bitten():
				stop(dog.Why())
			case <-over:
			}
		}()
		return func(failed bool) error {
			if !failed {
				if err := dog.Settle(ctx); err != nil {
					return err // it waits for the undo
				}
			}
			close(over)
			if failed {
				dog.Done()
			}
			return nil
		}, nil
	}
}

// peersOf are the peers that the policy names.
func peersOf(v *View) []string {
	if v.Policy == nil || v.releasing {
		return nil // the way out is not held up
	}
	return v.Policy.Host.Peers()
}

// lockPatience is how long a watchdog waits for the lock before it takes the changes of interfaces back without.
const lockPatience = time.Second

// Bite is what a watchdog does when the one that made a change cannot take it back: the change is undone as after a
// crash, by the journal. Where that is not to be had, in whatever way, what was done to interfaces is undone by what
// the watchdog was told.
func (c *Controller) Bite(ctx context.Context, o watchdog.Order, why string, stuck int) error {
	var g apply.Guarded
	if err := json.Unmarshal(o.Undo, &g); err != nil {
		return fmt.Errorf("read what to undo: %w", err)
	}
	if stuck > 1 {
		// It could wake up in the midst of this, and go on.
		_ = syscall.Kill(stuck, syscall.SIGKILL)
	}
	c.Log.Error("taking a change of the network back", "why", why, "transaction", g.Txn)
	err := c.biteByJournal(ctx, g)
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

func (c *Controller) biteByJournal(ctx context.Context, g apply.Guarded) error {
	if c.Store == nil {
		return errors.New("the state directory cannot be opened")
	}
	lock, err := c.lockWithin(ctx, lockPatience, "undo", "watchdog")
	if err != nil {
		if locked := (*journal.LockedError)(nil); errors.As(err, &locked) && c.ended(g.Txn) {
			return nil // who has the lock has undone it, and may be on the way to the same once more
		}
		return err
	}
	defer lock.Release()
	if t, pending := c.Store.Pending(); !pending || t.ID != g.Txn {
		return nil // it was ended in time, or undone by somebody else
	}
	return c.recover(ctx, &outcome{})
}

// ended says whether a transaction is known to have an end, by what is on the disk now.
func (c *Controller) ended(txn uint64) bool {
	now, err := journal.Open(c.Store.Dir(), journal.Options{})
	if err != nil {
		return false
	}
	defer now.Close()
	t, pending := now.Pending()
	return len(now.Warnings()) == 0 && (!pending || t.ID != txn)
}
