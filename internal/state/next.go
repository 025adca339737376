package state

import (
	"encoding/json"

	"bulkhead/internal/journal"
)

// Next is what older versions of bulkhead kept of a change while its plan ran: the documents that take effect once it
// is done. A crash of such a version may have left one.
type Next struct {
	// Last is the number of the last entry of the history before the plan ran: a newer one says that it
	// was done.
	Last int                        `json:"last"`
	Docs map[string]json.RawMessage `json:"docs"`
	// Entry is the entry of the history when there is no plan to write one.
	Entry journal.Entry `json:"entry,omitzero"`
}

// Done says that the newest entry of the history tells of the end of the change's plan.
func (n Next) Done(last journal.Entry) bool {
	return last.N > n.Last && last.Outcome == journal.Committed
}

// Failed says that the newest entry of the history tells that the change failed and undid itself.
func (n Next) Failed(last journal.Entry) bool {
	return last.N > n.Last && last.Outcome != journal.Committed
}
