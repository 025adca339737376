package plan

import (
	"slices"
	"testing"

	"bulkhead/internal/policy"
)

// What classification has to say is among the notes of the plan: that a helper limits itself as well, say.
func TestNotesOfClassification(t *testing.T) {
	in := input(legacyHost(), group("a", nil))
	in.Classified.Notes = []policy.Note{{Group: "a", Text: "pg_basebackup limits itself"}}
	if notes := Make(in).Notes; !slices.ContainsFunc(notes, func(n Note) bool { return n.Group == "a" && n.Text == "pg_basebackup limits itself" && !n.NotEnforced }) {
		t.Errorf("notes %+v", notes)
	}
}
