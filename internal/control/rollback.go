package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// rollback undoes an interrupted change, or goes back to an earlier revision of the policy. Without a revision it
// never does both, nor the second in place of the first: whoever was told that `rollback` undoes an interrupted
// change may come too late for it, because the agent or another change did it meanwhile, and must not lose the
// policy that is sound.
func (c *Controller) rollback(ctx context.Context, r api.Request, reply *outcome) error {
	if r.DryRun {
		if err := c.wouldUndo(r, reply); err != nil || reply.Text != "" {
			return err
		}
	} else if err := c.recover(ctx, reply); err != nil {
		return err
	}
	if r.To == 0 && reply.Recovered != "" {
		reply.Changed = true
		c.note(r, reply, reply.Recovered)
		return nil
	}
	_, s, err := c.recorded()
	if err != nil {
		return err
	}
	entries, err := c.Store.History()
	if err != nil {
		return api.Errorf(api.CodeFailed, "", "read the history: %w", err)
	}
	if r.To == 0 {
		if reply.Text, err = undoneAlready(c.Store, s, entries); err != nil || reply.Text != "" {
			return err
		}
	}
	if s.Applied == nil {
		return errNotApplied()
	}
	if r.To == 0 {
		// One before what is in force: a second rollback goes further back, not forth again.
		if r.To, err = revisionBefore(c.Store, s, entries); err != nil {
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
	sources, err := sourcesOf(c.Store, s, entries, r.To)
	if err != nil {
		return err
	}
	return c.applySources(ctx, r, reply, sources)
}

// wouldUndo says what a rollback without a revision undoes before anything else: an interrupted change, or the one on
// trial.
func (c *Controller) wouldUndo(r api.Request, reply *outcome) error {
	text, err := c.unfinished()
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

// sourcesOf reads the sources of a revision that was in force.
func sourcesOf(store *journal.Store, s *state.Documents, entries []journal.Entry, revision int) ([]policy.Source,
	error) {
	was, err := wasInForce(store, entries, revision)
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "go back to revision %d: %w", revision, err)
	}
	if !was && isGone(store, revision, entries) {
		return nil, api.Errorf(api.CodeUsage, revisionsHint(store, s, entries),
			"go back to revision %d: it is gone, as host.history keeps no more", revision)
	}
	if !was {
		return nil, api.Errorf(api.CodeUsage, revisionsHint(store, s, entries),
			"go back to revision %d: it was never in force",
			revision)
	}
	sources, err := state.Sources(store, revision)
	if err != nil {
		return nil, api.Errorf(api.CodeUsage, revisionsHint(store, s, entries), "go back to revision %d: %w", revision,
			err)
	}
	return sources, nil
}

// undoneAlready says that a change which a person may want to undo is undone, or else lifted, since a revision
// was put in force the last time; "" when there is none.
func undoneAlready(store *journal.Store, s *state.Documents, entries []journal.Entry) (string, error) {
	for _, e := range slices.Backward(entries) {
		switch {
		case e.Outcome == journal.Committed && e.Verb == "release":
			return "", api.Errorf(api.CodeUsage,
				"`bulkhead apply` or `bulkhead rollback --to N` puts limits in force again",
				"the last change was a release, by %s at %s: say which revision to go back to", e.By,
				e.Time.Local().Format(time.DateTime))
		case e.Outcome == journal.Committed && e.Verb == "revert":
			return nothingToDo(store, s, entries, e)
		case e.Outcome == journal.Committed && e.Revision > 0 && (e.Verb == "apply" || e.Verb == "rollback"):
			return "", nil
		case e.Outcome == journal.Failed && e.WasCutOff():
			return "", api.Errorf(api.CodeFailed,
				"`bulkhead apply` or `bulkhead rollback --to N` puts a whole revision in force, `bulkhead release "+
					"--all` gives the host back",
				"%s was not undone wholly: %s", e.Title(), e.Text)
		case e.Outcome == journal.Undone && (e.WasCutOff() || e.Verb == "apply"):
			return nothingToDo(store, s, entries, e)
		}
	}
	return "", nil
}

// nothingToDo says which change was undone already, and how to go back further.
func nothingToDo(store *journal.Store, s *state.Documents, entries []journal.Entry, e journal.Entry) (string, error) {
	how := "failed"
	if e.WasCutOff() {
		how = "was interrupted"
	}
	text := fmt.Sprintf("already undone: nothing to do; %s, which %s, was undone by %s", e.Title(), how,
		e.Time.Local().Format(time.DateTime))
	if e.Verb == "revert" {
		text = fmt.Sprintf("already undone: nothing to do; %s was undone at %s (%s)", e.What,
			e.Time.Local().Format(time.DateTime), cmp.Or(e.Reason, "by "+e.By))
	}
	if s.Applied == nil {
		return text + "; no policy is in force", nil
	}
	text += fmt.Sprintf("; revision %d is in force", s.Applied.Revision)
	before, err := revisionBefore(store, s, entries)
	if err != nil || before == 0 {
		return text, err
	}
	return text + fmt.Sprintf("; `bulkhead rollback --to %d` goes back to the one before", before), nil
}

// revisionBefore is the last revision that was in force before the one that is, or before the one it repeats; 0
// when there is none.
func revisionBefore(store *journal.Store, s *state.Documents, entries []journal.Entry) (int, error) {
	for n := cmp.Or(s.Applied.Like, s.Applied.Revision) - 1; n > 0; n-- {
		if was, err := wasInForce(store, entries, n); was || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// wasInForce says whether a revision ever was. Its sources are there only then; those that an older version of
// this program kept of an apply that was undone have entries which say so.
func wasInForce(store *journal.Store, entries []journal.Entry, revision int) (bool, error) {
	kept, err := kept(store, revision)
	if err != nil || !kept {
		return false, err
	}
	undone := false
	for _, e := range entries {
		if e.Revision != revision {
			continue
		}
		if e.Outcome == journal.Committed {
			return true, nil
		}
		undone = true
	}
	return !undone, nil
}

// revisionsHint lists the revisions to which rollback can go.
func revisionsHint(store *journal.Store, s *state.Documents, entries []journal.Entry) string {
	var spans []string
	from := 0
	for n := 1; n <= s.Applied.Revision+1; n++ {
		was, _ := wasInForce(store, entries, n) // one that cannot be told cannot be gone back to either
		switch {
		case was && from == 0:
			from = n
		case was || from == 0:
		case from == n-1:
			spans, from = append(spans, fmt.Sprint(from)), 0
		default:
			spans, from = append(spans, fmt.Sprintf("%d to %d", from, n-1)), 0
		}
	}
	return "the revisions that were in force are " + strings.Join(spans, ", ") +
		"; `bulkhead history` says what they were"
}
