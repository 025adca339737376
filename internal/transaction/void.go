package transaction

import (
	"bulkhead/internal/classify"
	"bulkhead/internal/plan"
	"bulkhead/internal/snapshot"
)

// void notes what the policy asks for and has no effect.
func void(s *snapshot.Snapshot) (notes []plan.Note) {
	for _, n := range append(classify.UnknownNames(s.Policy, s.Rules), s.Policy.Notes...) {
		if n.Void {
			notes = append(notes, plan.Note{Group: n.Group, Key: n.Key, Text: n.Text, Void: true})
		}
	}
	return notes
}
