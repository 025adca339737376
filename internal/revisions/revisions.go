// Package revisions numbers the policies that were in force, finds the one to go back to, and drops those that the
// history tells of no more. It reads and writes the state directory alone.
package revisions

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// Next numbers what is applied: as before when nothing changed, else by a number that no other policy ever
// had, not even one whose apply was undone: the history names it.
func Next(store *journal.Store, s *state.Documents, same bool) (int, error) {
	if same {
		return s.Applied.Revision, nil
	}
	entries, err := store.Heads()
	if err != nil {
		return 0, api.Errorf(api.CodeFailed, "", "number the revision: %w", err)
	}
	last := 0
	if s.Applied != nil {
		last = s.Applied.Revision
	}
	d, err := state.Load(store, state.DocGone)
	if err != nil {
		return 0, api.Errorf(api.CodeFailed, "", "number the revision: %w", err)
	}
	last = max(last, d.Gone)
	for _, e := range entries {
		last = max(last, e.Revision)
	}
	for next := last + 1; ; next++ { // what was applied and the history may be lost, and its revisions still there
		kept, err := kept(store, next)
		if err != nil {
			return 0, api.Errorf(api.CodeFailed, "", "number the revision: %w", err)
		}
		if !kept {
			return next, nil
		}
	}
}

// kept says whether the sources of a revision are there, sound or damaged.
func kept(store *journal.Store, revision int) (bool, error) {
	_, err := state.Sources(store, revision)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, journal.ErrDamaged):
		return true, nil
	}
	return err == nil, err
}

// Sources reads the sources of a revision that was in force.
func Sources(store *journal.Store, s *state.Documents, entries []journal.Entry, revision int) ([]policy.Source,
	error) {
	was, err := InForce(store, entries, revision)
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

// UndoneAlready says that a change which a person may want to undo is undone, or else lifted, since a revision
// was put in force the last time; "" when there is none.
func UndoneAlready(store *journal.Store, s *state.Documents, entries []journal.Entry) (string, error) {
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
	before, err := Before(store, s, entries)
	if err != nil || before == 0 {
		return text, err
	}
	return text + fmt.Sprintf("; `bulkhead rollback --to %d` goes back to the one before", before), nil
}

// Before is the last revision that was in force before the one that is, or before the one it repeats; 0
// when there is none.
func Before(store *journal.Store, s *state.Documents, entries []journal.Entry) (int, error) {
	for n := cmp.Or(s.Applied.Like, s.Applied.Revision) - 1; n > 0; n-- {
		if was, err := InForce(store, entries, n); was || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// InForce says whether a revision ever was. Its sources are there only then; those that an older version of
// this program kept of an apply that was undone have entries which say so.
func InForce(store *journal.Store, entries []journal.Entry, revision int) (bool, error) {
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
		was, _ := InForce(store, entries, n) // one that cannot be told cannot be gone back to either
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

// isGone says whether a revision may have been in force and was dropped since.
func isGone(store *journal.Store, revision int, entries []journal.Entry) bool {
	d, err := state.Load(store, state.DocGone)
	if err != nil || revision < 1 || revision > d.Gone {
		return false
	}
	for _, e := range entries {
		if e.Revision == revision {
			return false // then it is known what became of it
		}
	}
	return true
}
