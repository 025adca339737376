package journal

import (
	"fmt"
	"time"
)

// A transaction is committed by the record of its end, and by nothing else. Its documents and its entry of the history
// are written after that, by whoever holds the lock or takes it next, and count as written from then on: Load and
// History read them from the journal meanwhile.

// Change commits documents that need no change of the host, and gives the entry that belongs into the history.
func (s *Store) Change(t Txn, note string) (Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return Entry{}, fmt.Errorf("commit documents: %w", ErrNotLocked)
	}
	if p := s.state.pending; p != nil {
		return Entry{}, fmt.Errorf("commit documents: %w (%s, %s)", ErrPending, p.Verb, p.Time.Format(time.DateTime))
	}
	if err := s.settle(); err != nil {
		return Entry{}, err
	}
	t.ID, t.Time, t.Boot = s.state.next, s.o.Now(), s.state.latest
	end := record{Kind: kindEnd, ID: t.ID, Outcome: Committed, Note: note, Time: t.Time}
	if err := s.append(true, record{Kind: kindBegin, Txn: &t}, end); err != nil {
		return Entry{}, err
	}
	return EntryOf(&t, Committed, note), nil
}

// Settle puts the documents of committed transactions in their places. It needs the lock.
func (s *Store) Settle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return fmt.Errorf("settle documents: %w", ErrNotLocked)
	}
	return s.settle()
}

// Unsettled says whether documents of a committed transaction may not be in their places yet. While nobody holds the
// lock, that is because of a crash.
func (s *Store) Unsettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.state.docs) > 0
}
