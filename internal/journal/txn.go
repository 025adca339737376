package journal

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"
)

// Home is where the members of a group came from.
type Home struct {
	Group string            `json:"group"`
	From  map[string]string `json:"from"` // hierarchy ID → path
}

// Begin writes a transaction with its originals and returns when it is on disk. Nothing may be
// changed on the host before. ID and Time are filled in here. It refuses (ErrPending) while an
// earlier transaction has no end. One that moves processes and nothing else, for no history, into groups that
// have their homes, has nothing that must outlive a power cut: it is written and not synced, as its end is.
func (s *Store) Begin(t Txn) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return 0, fmt.Errorf("begin transaction: %w", ErrNotLocked)
	}
	if p := s.state.pending; p != nil {
		return 0, &statedir.Error{Op: "begin transaction in", Path: s.log.Path,
			Err:  fmt.Errorf("%w (%s, %s)", ErrPending, p.Verb, p.Time.Format(time.DateTime)),
			Hint: "`bulkhead rollback` undoes it"}
	}
	if err := s.settle(); err != nil {
		return 0, err
	}
	if s.log.Size >= max(s.o.CompactAt, 2*s.state.base) {
		next, err := compact(s.log, s.state, t.Boot, s.o.Alive)
		if err != nil { // the long log is as good
			s.warnings.add(fmt.Sprintf("compact journal: %v", err))
		} else {
			s.state = next
		}
	}
	if path, err := atomicfile.Room(s.o.FS, s.dir, slices.Collect(maps.Values(t.Docs))...); err != nil {
		return 0, statedir.FileError("find room in", path, err)
	}
	t.ID, t.Time = s.state.next, s.o.Now()
	t.Homes = s.state.newHomes(t.Boot, t.Homes)
	sync := len(t.Changes) > 0 || len(t.Docs) > 0 || len(t.Homes) > 0 || t.Recorded
	if err := s.append(sync, record{Kind: kindBegin, Txn: &t}); err != nil {
		return 0, err
	}
	s.light = !sync
	return t.ID, nil
}

// Moves adds processes to the open transaction, before they are moved. It is not synced: a move
// matters only as long as the machine is up, and then the page cache is as good as the disk.
func (s *Store) Moves(id uint64, moves []Change) error {
	return s.within("record moves", id, false, record{Kind: kindMoves, ID: id, Changes: moves})
}

// Forgo takes changes out of the open transaction, by their Seq: they were not made after all, or are
// undone already. Not synced, as Moves.
func (s *Store) Forgo(id uint64, seqs []int) error {
	return s.within("record what was given up", id, false, record{Kind: kindForgo, ID: id, Seqs: seqs})
}

// Leave says what of the open transaction could not be undone, before End says Failed. Without it
// everything counts as done.
func (s *Store) Leave(id uint64, left []Change) error {
	return s.within("record what is left", id, false, record{Kind: kindLeft, ID: id, Changes: left})
}

// End closes the open transaction, synced if its beginning was. The outcome is Committed, Undone or Failed.
func (s *Store) End(id uint64, outcome, note string) error {
	return end(s, record{ID: id, Outcome: outcome, Note: note})
}

// EndUntold is End for a transaction that is to leave no entry in the history, whatever it said when it began: it was
// undone, and is about to be tried again.
func EndUntold(s *Store, id uint64, outcome, note string) error {
	return end(s, record{ID: id, Outcome: outcome, Note: note, Untold: true})
}

func end(s *Store, r record) error {
	if r.Outcome != Committed && r.Outcome != Undone && r.Outcome != Failed {
		return fmt.Errorf("end transaction %d: no outcome %q", r.ID, r.Outcome)
	}
	s.mu.Lock()
	light := s.light
	s.mu.Unlock()
	r.Kind, r.Time = kindEnd, s.o.Now()
	return s.within("end transaction", r.ID, !light, r)
}

// within appends a record of the open transaction.
func (s *Store) within(op string, id uint64, sync bool, r record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return fmt.Errorf("%s: %w", op, ErrNotLocked)
	}
	if p := s.state.pending; p == nil || p.ID != id {
		return fmt.Errorf("%s: transaction %d is not open", op, id)
	}
	return s.append(sync, r)
}

// Home records where members of a group come from, by hierarchy, and returns when that is on disk.
// It does so for the first members of a group in each hierarchy; directories that bulkhead made are nobody's home.
func (s *Store) Home(boot, group string, from map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return fmt.Errorf("record home of group %q: %w", group, ErrNotLocked)
	}
	homes := s.state.newHomes(boot, []Home{{Group: group, From: from}})
	if len(homes) == 0 {
		return nil
	}
	return s.append(true, record{Kind: kindHome, Boot: boot, Home: &homes[0]})
}

// append writes records, all or none, and, once they are in the log, makes them part of the state.
func (s *Store) append(sync bool, rs ...record) error {
	if s.log.Size == 0 || s.state.version < formatVersion {
		rs = append([]record{{Kind: kindFormat, Version: formatVersion}}, rs...)
	}
	var data []byte
	for _, r := range rs {
		text, err := statedir.Line(r)
		if err != nil {
			return err
		}
		data = append(data, text...)
	}
	if err := s.log.Append(data, sync); err != nil {
		return err
	}
	for _, r := range rs {
		s.state.add(r)
	}
	return nil
}

// compact rewrites a log with only what is still needed of a boot, and returns its state.
func compact(l *statedir.Log, st *state, boot string, alive func(procfs.ID) bool) (*state, error) {
	next := st.only(boot, alive)
	var data []byte
	for _, r := range []record{{Kind: kindFormat, Version: formatVersion}, next.snapshot(boot)} {
		b, err := statedir.Line(r)
		if err != nil {
			return nil, err
		}
		data = append(data, b...)
	}
	if err := l.Replace(data); err != nil {
		return nil, err
	}
	next.base, next.version = int64(len(data)), formatVersion
	return next, nil
}

// Pending is the transaction that has no end, with its changes in order; of another boot too.
func (s *Store) Pending() (*Txn, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.pending == nil {
		return nil, false
	}
	t := *s.state.pending
	t.Changes = slices.Clone(t.Changes)
	slices.SortStableFunc(t.Changes, func(a, b Change) int { return a.Seq - b.Seq })
	return &t, true
}
