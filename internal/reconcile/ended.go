package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
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
