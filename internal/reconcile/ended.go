package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// agentsRequest is the agent's change as the history is to tell it: the end of overrides whose time is over and which a
// plan takes back, else what it puts right. Of the plan it gives those steps that put something right.
func agentsRequest(p plan.Plan, over []state.Override) (r api.Request, right plan.Plan) {
	r, right = api.Request{Verb: "look", By: "agent"}, p
	var whose []string
	for _, o := range over {
		takesBack := func(s plan.Step) bool { return s.Group == o.Group && s.Setting == o.Key }
		if slices.ContainsFunc(p.Steps, takesBack) {
			right.Steps = slices.DeleteFunc(slices.Clone(right.Steps), takesBack)
			r.Verb, r.Assign, whose = "end", append(r.Assign, o.Text), append(whose, o.Origin())
		}
	}
	r.Reason = strings.Join(whose, "; ")
	return r, right
}

// longAgo is the end of a pin whose end has come, whichever way the clock goes from then on.
var longAgo = time.Unix(0, 0)

// endedDocs are the documents that a look commits with what it puts right: without what has ended, which a clock that
// is set back would bring to life again. What has ended of a group that is left out stays until the group is put right.
// A pin stays as long as its process lives, which leaves its group by it.
func endedDocs(store *journal.Store, v *transaction.View, s *state.Documents) (docs map[string]any, err error) {
	all, err := state.Load(store, state.DocOverrides, state.DocPins)
	if err != nil {
		return nil, err
	}
	docs = map[string]any{}
	waits := func(group string) bool {
		return policy.Released(v.Released, group) && !policy.Released(s.Released, group)
	}
	left := slices.DeleteFunc(slices.Clone(all.Overrides), func(o state.Override) bool {
		return !slices.ContainsFunc(s.Overrides, o.SameLimit) && !waits(o.Group)
	})
	if len(left) < len(all.Overrides) {
		docs[state.DocOverrides] = left
	}
	for i, p := range all.Pins {
		ended := func(e state.Pin) bool { return e.Process == p.Process }
		if slices.ContainsFunc(s.Ended, ended) && p.Ends.After(longAgo) && !waits(p.Group) {
			all.Pins[i].Ends, docs[state.DocPins] = longAgo, all.Pins
		}
	}
	return docs, nil
}

// redo brings documents that wait for a plan up to date, once a group more is left out of it.
func redo(store *journal.Store, v *transaction.View, s *state.Documents, reply *transaction.Outcome) error {
	docs, err := endedDocs(store, v, s)
	if err != nil {
		return err
	}
	encoded, err := state.Encode(docs)
	for _, name := range []string{state.DocOverrides, state.DocPins} {
		delete(reply.Docs, name)
	}
	maps.Copy(reply.Docs, encoded)
	return err
}

// broughtBack says which processes the plan of a view puts back into the groups where they were at the last look; ""
// for none. A process that leaves a group is not brought back, and one that somebody moves again and again is told of
// every tellAgain: the history is for people.
func (m *memory) broughtBack(v *transaction.View, now time.Time) string {
	maps.DeleteFunc(m.brought, func(_ procfs.ID, at time.Time) bool { return now.Sub(at) >= tellAgain })
	var all []string
	for _, s := range v.Plan.Steps {
		id := s.PID()
		if !s.Moves() || s.Group == "" || m.members[id] != s.Group || !m.brought[id].IsZero() {
			continue
		}
		if to, ours := v.Layout.Group(s.Dir()); !ours || to != s.Group {
			continue
		}
		if m.brought == nil {
			m.brought = map[procfs.ID]time.Time{}
		}
		m.brought[id] = now
		all = append(all, fmt.Sprintf("process %d (%s) back into %s", id.PID, s.Name, s.Group))
	}
	return strings.Join(all, ", ")
}
