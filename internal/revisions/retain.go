package revisions

import (
	"fmt"

	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// Retain shortens the history to what host.history keeps, and drops the sources of revisions that nothing tells of any
// more. What is in force, what it goes back to without a number, and what a change on trial is undone to stays. That it
// cannot be done undoes nothing.
func Retain(store *journal.Store, h policy.History) error {
	if h == (policy.History{}) {
		return nil
	}
	if _, err := store.Retain(journal.Retention{Entries: h.Entries, Age: h.Age}); err != nil {
		return fmt.Errorf("shorten the history: %w", err)
	}
	entries, err := store.Heads()
	if err != nil {
		return err
	}
	d, err := state.Load(store, state.DocApplied, state.DocBefore)
	if err != nil || d.Prune(state.Moment{}).Applied == nil {
		return err
	}
	a, b := d.Applied, d.Before
	needed := map[int]bool{a.Revision: true, a.Like: true}
	for _, e := range entries {
		needed[e.Revision] = true
	}
	last, err := Before(store, &state.Documents{Applied: a}, entries)
	if err != nil {
		return err
	}
	needed[last] = true
	if b.Applied != nil {
		needed[b.Applied.Revision], needed[b.Applied.Like] = true, true
		if last, err = Before(store, &state.Documents{Applied: b.Applied}, entries); err != nil {
			return err
		}
		needed[last] = true
	}
	return dropVersions(store, needed)
}

// dropVersions forgets the sources of all revisions but those needed, once it is written down which went.
func dropVersions(store *journal.Store, needed map[int]bool) error {
	all, err := store.Versions()
	if err != nil {
		return err
	}
	var gone []int
	for _, n := range all {
		if !needed[n] {
			gone = append(gone, n)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	d, err := state.Load(store, state.DocGone)
	if err != nil {
		return err
	}
	if err := store.Save(state.DocGone, max(d.Gone, gone[len(gone)-1])); err != nil {
		return err
	}
	for _, n := range gone {
		if err := store.DropVersion(n); err != nil {
			return err
		}
	}
	return nil
}
