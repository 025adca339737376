package control

import (
	"encoding/json"
	"errors"
	"fmt"

	"bulkhead/internal/journal"
)

// docNext holds the documents of a change while its plan runs.
const docNext = "next"

// next is what becomes of the documents once the plan that runs now is done. It is on disk before the
// plan begins, so that a crash, or a disk that fills up, never leaves limits in force that no document
// knows of, nor a document that asks for what was undone.
type next struct {
	// Last is the number of the last entry of the history before the plan ran: a newer one says that it
	// was done.
	Last int                        `json:"last"`
	Docs map[string]json.RawMessage `json:"docs"`
}

// commit runs a plan together with the documents that belong to it: both or none.
func (c *Controller) commit(docs map[string]any, run func() error) error {
	n := next{Docs: map[string]json.RawMessage{}}
	entries, err := c.Store.History()
	if err != nil {
		return fail(CodeFailed, "", "read the history: %w", err)
	}
	n.Last = lastOf(entries).N
	for name, doc := range docs {
		if n.Docs[name], err = json.Marshal(doc); err != nil {
			return fmt.Errorf("encode %s: %w", name, err)
		}
	}
	if err := c.Store.Save(docNext, n); err != nil {
		return fail(CodeFailed, "nothing was changed; free space below the state directory, or give another one with --state", "record the change: %w", err)
	}
	if err := run(); err != nil {
		return errors.Join(err, c.Store.Save(docNext, next{}))
	}
	if err := c.settle(n); err != nil {
		return fail(CodeFailed, "free space below the state directory; the next change records it", "the change is in force, but is not recorded yet: %w", err)
	}
	return nil
}

// lastOf is the newest entry of a history; the zero value of an empty one.
func lastOf(entries []journal.Entry) journal.Entry {
	if len(entries) == 0 {
		return journal.Entry{}
	}
	return entries[len(entries)-1]
}

// settle makes the documents of a plan that is done the ones in force.
func (c *Controller) settle(n next) error {
	for name, doc := range n.Docs {
		if err := c.Store.Save(name, doc); err != nil {
			return err
		}
	}
	return c.Store.Save(docNext, next{})
}

// finish settles or drops what a crash left of a change. The interrupted plan, if there was one, is
// undone already.
func (c *Controller) finish(undone bool) error {
	var n next
	if err := c.loadOrSetAside(docNext, &n); err != nil {
		return err
	}
	if len(n.Docs) == 0 {
		return nil
	}
	entries, err := c.Store.History()
	if err != nil {
		return fail(CodeFailed, "", "read the history: %w", err)
	}
	if last := lastOf(entries); !undone && last.N > n.Last && last.Outcome == "committed" {
		return c.settle(n)
	}
	return c.Store.Save(docNext, next{})
}

// loadOrSetAside reads a document; a damaged one is put aside with a warning and counts as not there. It
// needs the lock.
func (c *Controller) loadOrSetAside(name string, v any) error {
	_, err := c.Store.Load(name, v)
	if !errors.Is(err, journal.ErrDamaged) {
		return err
	}
	aside, moved := c.Store.SetAside(name)
	if moved != nil {
		return errors.Join(err, moved)
	}
	c.Log.Warn("a damaged document was put aside and counts as empty", "document", name, "now", aside, "err", err)
	return nil
}
