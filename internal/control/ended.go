package control

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// overdue lists the overrides whose time is over and that nothing may have taken back yet: the change that comes next
// does.
func overdue(c *transaction.Controller) []state.Override {
	docs, err := state.Load(c.Store, state.DocOverrides)
	if err != nil {
		return nil // the change says so
	}
	return slices.DeleteFunc(docs.Overrides, func(o state.Override) bool { return !o.Ended(c.Now()) })
}

// tellEnded has the history say which overrides came to their end with a change, as it does of those that the agent
// ends.
func tellEnded(c *transaction.Controller, r api.Request, reply *transaction.Outcome, over []state.Override) {
	if r.Verb == "release" {
		return
	}
	over = slices.DeleteFunc(over, func(o state.Override) bool {
		takesBack := func(s plan.Step) bool { return s.Group == o.Group && s.Setting == o.Key }
		return !slices.ContainsFunc(reply.Plan.Steps, takesBack)
	})
	if len(over) == 0 {
		return
	}
	past, err := c.Store.History()
	if err != nil {
		c.Log.Warn("the end of an override is not in the history", "err", err)
		return
	}
	var what, whose []string
	for _, o := range over {
		told := func(e journal.Entry) bool { return e.Verb == "end" && strings.Contains(e.Reason, o.Origin()) }
		if !slices.ContainsFunc(past, told) {
			what, whose = append(what, o.Text), append(whose, o.Origin())
		}
	}
	if len(what) == 0 {
		return
	}
	c.Remember(journal.Entry{Time: c.Now(), Verb: "end", What: strings.Join(what, " "), By: "bulkhead",
		Reason: strings.Join(whose, "; "), Text: fmt.Sprintf("taken back with the %s", r.Verb),
		Revision: reply.Revision, Outcome: journal.Committed}, reply)
}
