package control

import (
	"context"

	"bulkhead/internal/api"
	"bulkhead/internal/revisions"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// rollback undoes an interrupted change, or goes back to an earlier revision of the policy. Without a revision it
// never does both, nor the second in place of the first: whoever was told that `rollback` undoes an interrupted
// change may come too late for it, because the agent or another change did it meanwhile, and must not lose the
// policy that is sound.
func rollback(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	if r.DryRun {
		if err := wouldUndo(c, r, reply); err != nil || reply.Text != "" {
			return err
		}
	} else if err := c.Recover(ctx, reply); err != nil {
		return err
	}
	if r.To == 0 && reply.Recovered != "" {
		reply.Changed = true
		transaction.Note(c, r, reply, reply.Recovered)
		return nil
	}
	_, s, err := c.Recorded()
	if err != nil {
		return err
	}
	entries, err := c.Store.History()
	if err != nil {
		return api.Errorf(api.CodeFailed, "", "read the history: %w", err)
	}
	if r.To == 0 {
		if reply.Text, err = revisions.UndoneAlready(c.Store, s, entries); err != nil || reply.Text != "" {
			return err
		}
	}
	if s.Applied == nil {
		return transaction.NotApplied()
	}
	if r.To == 0 {
		// One before what is in force: a second rollback goes further back, not forth again.
		if r.To, err = revisions.Before(c.Store, s, entries); err != nil {
			return err
		}
	}
	if r.To == 0 && len(s.Overrides) > 0 {
		return api.Errorf(api.CodeUsage, "`bulkhead unset GROUP:KEY` takes back what `set` laid over it",
			"there is no revision before %d", s.Applied.Revision)
	}
	if r.To == 0 {
		return api.Errorf(api.CodeUsage, "`bulkhead release --all` gives the host back as it was before bulkhead",
			"there is no revision before %d", s.Applied.Revision)
	}
	sources, err := revisions.Sources(c.Store, s, entries, r.To)
	if err != nil {
		return err
	}
	return applySources(ctx, c, r, reply, sources)
}

// wouldUndo says what a rollback without a revision undoes before anything else: an interrupted change, or the one on
// trial.
func wouldUndo(c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	text, err := transaction.Unfinished(c)
	if err != nil || r.To > 0 {
		return err
	}
	if text != "" {
		reply.Text = "would undo the interrupted change: " + text
		return nil
	}
	t, err := state.OnTrial(c.Store)
	if err == nil && t != nil {
		reply.Text = "would undo " + t.Named()
	}
	return err
}
