package journal

import (
	"bulkhead/internal/journal/statedir"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Entry is one line of history: who did what to the host, when and why. Changes and what follows them are the bulk of
// a long history; what is asked for at every start stands before them.
type Entry struct {
	N        int       `json:"n"` // counts from 1
	Time     time.Time `json:"time"`
	Verb     string    `json:"verb"`
	What     string    `json:"what,omitempty"` // was asked for: the verb's arguments
	By       string    `json:"by,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Boot     string    `json:"boot,omitempty"`
	Outcome  string    `json:"outcome,omitempty"`
	Revision int       `json:"revision,omitempty"` // of the policy, 0 if it has none
	Txn      uint64    `json:"txn,omitempty"`      // of journal.log, 0 if it changed nothing on the host
	Changes  []Change  `json:"changes,omitempty"`  // with old and new values
	Text     string    `json:"text,omitempty"`
}

// CutOff begins the Text of an entry whose change was cut off, by a crash or kill -9, and undone later.
const CutOff = "interrupted; "

// WasCutOff says that the change did not come to its end, and was undone later as far as that could be done.
func (e Entry) WasCutOff() bool {
	return (e.Outcome == Undone || e.Outcome == Failed) && strings.HasPrefix(e.Text, CutOff)
}

// Title names the change: "the apply of revision 3", "the set".
func (e Entry) Title() string {
	if e.Revision > 0 && (e.Verb == "apply" || e.Verb == "rollback") {
		return fmt.Sprintf("the %s of revision %d", e.Verb, e.Revision)
	}
	return "the " + e.Verb
}

// counters are what the end of the history says.
type counters struct {
	n    int
	txn  uint64
	boot string            // of txn
	last map[string]uint64 // by boot
}

func (c *counters) use(payload []byte) error {
	e, err := decodeHead(payload)
	if err != nil {
		return err
	}
	c.n = max(c.n, e.N)
	c.took(e.Boot, e.Txn)
	return nil
}

// took takes in the transaction of an entry.
func (c *counters) took(boot string, txn uint64) {
	if txn == 0 {
		return
	}
	if txn >= c.txn {
		c.txn, c.boot = txn, boot
	}
	if c.last == nil {
		c.last = map[string]uint64{}
	}
	c.last[boot] = max(c.last[boot], txn)
}

// decodeEntry reads a whole entry.
func decodeEntry(payload []byte) (e Entry, err error) {
	if err = json.Unmarshal(payload, &e); err != nil {
		err = fmt.Errorf("decode entry: %w", err)
	}
	return e, err
}

// decodeHead reads an entry as far as its Changes, without these and Text: a history of 7 MiB takes 15 ms, not 80
// (BenchmarkOpen).
func decodeHead(payload []byte) (e Entry, err error) {
	d := json.NewDecoder(bytes.NewReader(payload))
	fields := map[string]any{
		"n": &e.N, "time": &e.Time, "verb": &e.Verb, "what": &e.What, "by": &e.By, "reason": &e.Reason, "boot": &e.Boot,
		"outcome": &e.Outcome, "revision": &e.Revision, "txn": &e.Txn,
	}
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return e, fmt.Errorf("decode entry: it is no JSON object")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return e, fmt.Errorf("decode entry: %w", err)
		}
		key, _ := name.(string)
		if key == "changes" {
			break
		}
		into := fields[key]
		if into == nil {
			into = new(json.RawMessage)
		}
		if err := d.Decode(into); err != nil {
			return e, fmt.Errorf("decode entry: %w", err)
		}
	}
	return e, nil
}

// History gives every entry, oldest first. Entries that cannot be read are left out and mentioned
// in Warnings.
func (s *Store) History() ([]Entry, error) { return readEntries(s, decodeEntry) }

// Heads is History without Changes and Text.
func (s *Store) Heads() ([]Entry, error) { return readEntries(s, decodeHead) }

func readEntries(s *Store, decode func(payload []byte) (Entry, error)) ([]Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var entries []Entry
	d, err := s.history.Read(func(payload []byte) error {
		e, err := decode(payload)
		if err == nil {
			entries = append(entries, e)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if !d.Sound() {
		s.warnings.add(s.history.Describe(d))
	}
	if e := s.history.late(s.state.last); e != nil {
		e.N = s.history.seen.n + 1
		entries = append(entries, *e)
	}
	return entries, nil
}

// Record adds an entry to the history and returns its number when it is on disk. N is filled in,
// Time too if it is zero.
func (s *Store) Record(e Entry) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return 0, fmt.Errorf("record history: %w", ErrNotLocked)
	}
	return s.history.record(e, s.o.Now())
}

// historyLog is history.log.
type historyLog struct {
	*statedir.Log
	warnings *warnings
	seen     counters
	full     int64 // bytes at which the older half is dropped
}

// record adds an entry, with its number, and returns when it is on disk. Where the older half cannot be dropped, the
// long history is as good.
func (h *historyLog) record(e Entry, now time.Time) (int, error) {
	e.N = h.seen.n + 1
	if e.Time.IsZero() {
		e.Time = now
	}
	data, err := statedir.Line(e)
	if err != nil {
		return 0, err
	}
	if h.Size > h.full {
		if err := h.halve(); err != nil {
			h.warnings.add(fmt.Sprintf("shorten history: %v", err))
		}
	}
	if err := h.Append(data, true); err != nil {
		return 0, err
	}
	h.seen.n = e.N
	h.seen.took(e.Boot, e.Txn)
	return e.N, nil
}

// late is the entry of the last transaction if a crash between End and Record kept it back; nil when none is missing:
// then its changes, which nothing else needs, are dropped.
func (h *historyLog) late(last *ended) *Entry {
	if last == nil {
		return nil
	}
	if !last.Txn.Recorded || last.Txn.ID <= h.seen.txn {
		last.Txn.Changes = nil
		return nil
	}
	e := EntryOf(&last.Txn, last.Outcome, last.Note)
	e.Time = last.Time
	return &e
}

// halve drops the older half.
func (h *historyLog) halve() error {
	data, err := h.FS.ReadFile(h.Path)
	if err != nil {
		return err
	}
	half := data[len(data)/2:]
	return h.Replace(half[bytes.IndexByte(half, '\n')+1:])
}

// EntryOf is the history entry of a transaction. Writes whose old and new value are the same are left
// out: they are in a transaction only to be undone, because another change takes the value with it.
func EntryOf(t *Txn, outcome, note string) Entry {
	changes := slices.DeleteFunc(slices.Clone(t.Changes), func(c Change) bool { return c.isValue() && c.Old == c.New })
	return Entry{
		Verb: t.Verb, What: t.What, By: t.By, Reason: t.Reason, Boot: t.Boot, Outcome: outcome,
		Revision: t.Revision, Txn: t.ID, Changes: changes, Text: note,
	}
}

// Retention says how much of the history is kept; a zero value sets no bound.
type Retention struct {
	Entries int
	Age     time.Duration
}
