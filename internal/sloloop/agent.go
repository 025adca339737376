package sloloop

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/control"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/fsinfo"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
	"bulkhead/internal/watchdog"
)

// Of makes the loops of an agent. changed asks it for a full look.
func Of(c *transaction.Controller, s Sampler, changed func(), log *slog.Logger) *Loops {
	o := Options{Sampler: s, Changed: changed, Log: log, Size: fsinfo.Size,
		Squeeze: func(ctx context.Context, want []state.Override, tell ...journal.Entry) error {
			return control.Squeeze(ctx, c, 0, want, tell...)
		},
		Without: func(v *transaction.View) []classify.Group {
			return c.Reader().Without(v.Snapshot, state.Override.IsSLO)
		},
		OnTrial: func() bool {
			t, err := state.OnTrial(c.Store)
			return err != nil || t != nil
		},
	}
	if len(c.Watchdog) > 0 {
		o.Guard = func(ctx context.Context) (Guard, error) {
			return watchdog.Start(ctx, append(slices.Clone(c.Watchdog), WatchdogFlag), watchdog.Order{})
		}
	}
	return New(o)
}

// WatchdogFlag has `bulkhead watchdog` be the guard of the loops.
const WatchdogFlag = "--squeezed"

// How long the guard tries, and pauses between two attempts.
const (
	tries      = 10 * time.Minute
	lockWait   = 5 * time.Second
	tryingSoon = time.Second
)

// GiveBack takes away everything that the loops of an agent have laid over the policy. It tries for 10 minutes.
func GiveBack(ctx context.Context, c *transaction.Controller, why string) (err error) {
	for end := time.Now().Add(tries); ; {
		now := c.Now()
		err = control.Squeeze(ctx, c, lockWait, nil, journal.Entry{Time: now, Verb: "slo", By: "watchdog", Reason: why,
			What: "give back", Outcome: journal.Committed,
			Text: "everything that was lowered has the policy's value again"})
		if err == nil || !time.Now().Before(end) || transaction.Sleep(ctx, tryingSoon) != nil {
			return err
		}
		c.Log.Warn("what was squeezed could not be given back; trying again", "err", err)
	}
}
