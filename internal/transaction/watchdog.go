package transaction

import (
	"context"
	"encoding/json"
	"slices"

	"bulkhead/internal/apply"
	"bulkhead/internal/watchdog"
)

// guard has a watchdog take the changes of interfaces back when this process dies over them, or the peers of the policy
// get out of reach. A release does without one where none can be started: what needs a release may be just that no
// process can.
func guard(ctx context.Context, c *Controller, peers []string, releasing bool) func(apply.Guarded,
	context.CancelCauseFunc) (func(bool) error, error) {
	if len(c.Watchdog) == 0 {
		return nil
	}
	return func(g apply.Guarded, stop context.CancelCauseFunc) (func(bool) error, error) {
		undo, err := json.Marshal(g)
		if err != nil {
			return nil, err
		}
		wd, err := watchdog.Start(ctx, c.Watchdog, watchdog.Order{Peers: peers, Undo: undo})
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
			case <-wd.Fired():
				stop(wd.Why())
			case <-over:
			}
		}()
		return func(failed bool) error {
			if !failed {
				if err := wd.Settle(ctx); err != nil {
					return err // it waits for the undo
				}
			}
			close(over)
			if failed {
				wd.Done()
			}
			return nil
		}, nil
	}
}

// peersOf are the peers that the policy names.
func peersOf(v *View) []string {
	if v.Policy == nil || v.Releasing {
		return nil // the way out is not held up
	}
	return v.Policy.Host.Peers()
}

// StartAlone starts a watchdog that goes on without its maker (watchdog.Outlive): this program, with more arguments. It
// is there when this returns, and tends to what it is for once its Leave is called, or this process is dead. It is nil
// where none is wanted.
func StartAlone(ctx context.Context, c *Controller, args ...string) (*watchdog.Watchdog, error) {
	if len(c.Watchdog) == 0 {
		return nil, nil //nolint:nilnil // tests do without
	}
	return watchdog.Start(ctx, append(slices.Clone(c.Watchdog), args...), watchdog.Order{Alone: true})
}
