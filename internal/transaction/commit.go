package transaction

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/plan"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
)

// errInForce says that a change was made although an error follows.
var errInForce = errors.New("the change is in force")

// Commit runs a plan together with the documents that belong to it: both or none. The transaction of the plan has the
// documents with it; when nothing on the host had to change they get one of their own, and an entry in the history.
func (c *Controller) Commit(r api.Request, reply *Outcome, docs map[string]any, run func() error) (err error) {
	if reply.Docs, err = state.Encode(docs); err != nil {
		return err
	}
	err = run()
	if err == nil && reply.Docs != nil && !sameDocs(c.Store, reply.Docs) {
		err = record(c, r, reply, "")
	}
	reply.Docs = nil
	if errors.Is(err, apply.ErrInForce) {
		return api.Errorf(api.CodeFailed,
			"mend the disk below the state directory; the next change either records this one or undoes it first",
			"%w, but is not known to be recorded: %w", errInForce, err)
	}
	if unsettled := c.Store.Settle(); unsettled != nil {
		return api.Errorf(api.CodeFailed, "free space below the state directory; the next change records it",
			"%w, but is not recorded yet: %w", errInForce, errors.Join(err, unsettled))
	}
	return err
}

// record commits the documents of a reply without a plan.
func record(c *Controller, r api.Request, reply *Outcome, text string) error {
	t := journal.Txn{
		Verb: r.Verb, What: r.What(), By: r.By, Reason: r.Reason, Revision: reply.Revision, Recorded: true,
		Docs: reply.Docs,
	}
	e, err := c.Store.Change(t, text)
	switch {
	case err != nil && reply.Ran:
		return api.Errorf(api.CodeFailed, "mend the disk below the state directory and do it again",
			"%w, but could not be recorded: %w", errInForce, err)
	case err != nil:
		return api.Errorf(api.CodeFailed,
			"nothing was changed; free space below the state directory, or give another one with --state",
			"record the change: %w", err)
	}
	reply.Docs, reply.Recorded = nil, true
	c.Remember(e, reply)
	return nil
}

// Withhold does a part of a change that more follows: the documents take effect with the last one.
func (r *Outcome) Withhold(more bool, part func() error) error {
	if !more {
		return part()
	}
	docs := r.Docs
	r.Docs = nil
	err := part()
	r.Docs = docs
	return err
}

// sameDocs says whether documents are as they are kept already.
func sameDocs(s *journal.Store, docs map[string]json.RawMessage) bool {
	for name, doc := range docs {
		var kept json.RawMessage
		if found, err := s.Load(name, &kept); err != nil || !found || !bytes.Equal(kept, doc) {
			return false
		}
	}
	return true
}

// Remember writes an entry of the history. That it cannot be written undoes nothing.
func (c *Controller) Remember(e journal.Entry, reply *Outcome) {
	if _, err := c.Store.Record(e); err != nil {
		c.Log.Warn("record history", "err", err)
		reply.Notes = append(reply.Notes, fmt.Sprintf("the history could not be written: %v", err))
	}
}

// Recover undoes a change that was cut off (a crash, kill -9) before anything else is done.
func (c *Controller) Recover(ctx context.Context, reply *Outcome) error {
	txn, pending := c.Store.Pending()
	if !pending {
		return Finish(c, false, reply)
	}
	facts, err := c.Host.Facts()
	if err != nil {
		return api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
	}
	v := &View{Snapshot: &snapshot.Snapshot{Facts: facts, Tree: c.TreeOf(facts)}}
	runner := c.Runner(ctx, v)
	defer closeNetwork(runner)
	if _, _, err := runner.Recover(ctx); err != nil {
		return api.Errorf(api.CodeFailed, "`bulkhead release --all` gives the host back", "undo the interrupted %s: %w",
			txn.Verb, err)
	}
	reply.Recovered = fmt.Sprintf("undid the %s that was interrupted at %s", txn.Verb,
		txn.Time.Local().Format(time.DateTime))
	c.Log.Info("undid an interrupted change", "verb", txn.Verb, "started", txn.Time)
	return Finish(c, true, reply)
}

// Finish settles or drops what a crash left of a change. The interrupted plan, if there was one, is
// undone already.
func Finish(c *Controller, undone bool, reply *Outcome) error {
	if err := state.Mend(c.Store, c.Log, state.DocNext); err != nil {
		return err
	}
	d, err := state.Load(c.Store, state.DocNext)
	if err != nil {
		return err
	}
	n := d.Next
	if len(n.Docs) == 0 {
		return nil
	}
	last, err := lastEntry(c.Store)
	if err != nil {
		return err
	}
	switch {
	case undone || n.Failed(last):
	case n.Done(last):
		for name, doc := range n.Docs {
			if err := c.Store.Save(name, doc); err != nil {
				return err
			}
		}
	case n.Entry.Verb != "": // killed before its first step
		e := n.Entry
		e.Time, e.Outcome, e.Text = time.Time{}, journal.Undone, journal.CutOff+"nothing had been changed yet"
		c.Remember(e, reply)
		reply.Recovered = fmt.Sprintf("dropped the %s that was interrupted at %s, before it changed anything", e.Verb,
			n.Entry.Time.Local().Format(time.DateTime))
		c.Log.Warn("dropped an interrupted change", "verb", e.Verb, "started", n.Entry.Time)
	}
	return c.Store.Save(state.DocNext, state.Next{})
}

// lastEntry is the newest entry of the history; the zero value of an empty one.
func lastEntry(store *journal.Store) (journal.Entry, error) {
	entries, err := store.Heads()
	if err != nil {
		return journal.Entry{}, api.Errorf(api.CodeFailed, "", "read the history: %w", err)
	}
	if len(entries) == 0 {
		return journal.Entry{}, nil
	}
	return entries[len(entries)-1], nil
}

// Unfinished says what a crash left of a change that the next one undoes; "" when there is nothing. Nobody may
// be changing anything meanwhile.
func Unfinished(c *Controller) (string, error) {
	if t, pending := c.Store.Pending(); pending {
		return begun(t.Verb, t.Time), nil
	}
	d, err := state.Load(c.Store, state.DocNext)
	if err != nil || len(d.Next.Docs) == 0 || d.Next.Entry.Verb == "" {
		return "", nil //nolint:nilerr // a damaged one is put aside by the next change, with a warning
	}
	n := d.Next
	last, err := lastEntry(c.Store)
	if err != nil || last.N > n.Last {
		return "", err
	}
	return begun(n.Entry.Verb, n.Entry.Time), nil
}

// leftBehind says whether a crash left anything of a change: one that is not committed, or one that is, with documents
// that are not in their places. Nobody may be changing anything meanwhile.
func leftBehind(store *journal.Store) (bool, error) {
	if _, pending := store.Pending(); pending || store.Unsettled() {
		return true, nil
	}
	d, err := state.Load(store, state.DocNext)
	if errors.Is(err, journal.ErrDamaged) {
		return true, nil
	}
	return err == nil && len(d.Next.Docs) > 0, err
}

// TakeOver finishes or undoes what a crash left of a change, unless somebody else has the lock and is about it. Done
// says that there was something.
func TakeOver(ctx context.Context, c *Controller, verb, who string) (done bool, err error) {
	left := false
	busy, err := c.Store.Quiet(func() (err error) {
		left, err = leftBehind(c.Store)
		return err
	})
	if err != nil || busy != nil || !left {
		return busy != nil, err
	}
	lock, err := c.Lock(ctx, verb, who)
	if locked := (*statedir.LockedError)(nil); errors.As(err, &locked) { // whoever has it is about it, or does it first
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer lock.Release()
	return true, c.Recover(ctx, &Outcome{})
}

func begun(verb string, at time.Time) string {
	return verb + " begun at " + at.Local().Format(time.DateTime)
}

// Note writes the one history entry of a verb that is done. That it cannot be written undoes nothing: a freeze
// in force needs its end all the more.
func Note(c *Controller, r api.Request, reply *Outcome, text string) {
	c.Remember(journal.Entry{Time: time.Now(), Verb: r.Verb, What: r.What(), By: r.By, Reason: r.Reason,
		Outcome: journal.Committed, Text: text}, reply)
}

// ReleaseAnyway says whether what could not be recorded before a verb does not keep it from being done: the
// emergency exit works from what can be read.
func ReleaseAnyway(c *Controller, r api.Request, err error) bool {
	if r.Verb != "release" || !CannotRecord(err) {
		return false
	}
	c.Log.Warn("releasing although it cannot be recorded", "err", err)
	return true
}

// CannotRecord says whether a change failed because the state directory takes no more.
func CannotRecord(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) ||
		errors.Is(err, syscall.EIO)
}

// Outcome is what a verb has done so far: its reply, and what only the rest of the verb needs.
type Outcome struct {
	api.Reply

	Ran     bool                       // a plan, which has its own entry in the history
	Docs    map[string]json.RawMessage // to be committed with the next plan
	LeftOut []plan.Step                // optional steps that failed, as Notes says
}
