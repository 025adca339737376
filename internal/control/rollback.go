package control

import (
	"context"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
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
		if r.To, err = before(c, s, entries); err != nil {
			return err
		}
	}
	sources, err := revisions.Sources(c.Store, s, entries, r.To)
	if err != nil {
		return err
	}
	return applySources(ctx, c, r, reply, sources)
}

// before is the revision before the one in force: a second rollback goes further back, not forth again.
func before(c *transaction.Controller, s *state.Documents, entries []journal.Entry) (int, error) {
	to, err := revisions.Before(c.Store, s, entries)
	if err != nil || to > 0 {
		return to, err
	}
	hint := "`bulkhead release --all` gives the host back as it was before bulkhead"
	switch {
	case len(s.Overrides) > 0:
		hint = "`bulkhead unset GROUP:KEY` takes back what `set` laid over it"
	case len(s.Tuned) > 0:
		hint = "`bulkhead tune rollback` takes back what `tune apply` set"
	}
	if like := s.Applied.Like; like > 0 {
		return 0, api.Errorf(api.CodeUsage, hint, "there is no revision before %d, which revision %d repeats", like,
			s.Applied.Revision)
	}
	return 0, api.Errorf(api.CodeUsage, hint, "there is no revision before %d", s.Applied.Revision)
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
