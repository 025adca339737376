package journal

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
)

// Home is where the members of a group came from.
type Home struct {
	Group string            `json:"group"`
	From  map[string]string `json:"from"` // hierarchy ID → path
}

// Txn is a set of changes that is done as a whole or undone.
type Txn struct {
	ID       uint64    `json:"id"`
	Boot     string    `json:"boot"` // /proc/sys/kernel/random/boot_id when it began
	Time     time.Time `json:"time"`
	Verb     string    `json:"verb"`
	What     string    `json:"what,omitempty"` // was asked for: the verb's arguments
	By       string    `json:"by,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Revision int       `json:"revision,omitempty"` // of the policy
	// Recorded asks for a history entry: when a crash comes between End and Record, the next
	// Lock writes it.
	Recorded bool     `json:"recorded,omitempty"`
	Changes  []Change `json:"changes,omitempty"`
	// Docs are documents that take effect with the transaction: once its end says that it is committed.
	Docs map[string]json.RawMessage `json:"docs,omitempty"`
	// Homes of the groups that this transaction moves processes into; those already known, and
	// directories that bulkhead made, are left out when it is written.
	Homes []Home `json:"homes,omitempty"`
}

// Outcomes of a transaction.
const (
	Committed = "committed"
	Undone    = "undone"
	Failed    = "failed" // undoing it failed too; what is left stays in Made and Originals
)

// Begin writes a transaction with its originals and returns when it is on disk. Nothing may be
// changed on the host before. ID and Time are filled in here. It refuses (ErrPending) while an
// earlier transaction has no end. One that moves processes and nothing else, for no history, from places that
// are known already, has nothing that must outlive a power cut: it is written and not synced, as its end is.
func (s *Store) Begin(t Txn) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return 0, fmt.Errorf("begin transaction: %w", ErrNotLocked)
	}
	if p := s.state.pending; p != nil {
		return 0, &Error{Op: "begin transaction in", Path: s.log.path,
			Err:  fmt.Errorf("%w (%s, %s)", ErrPending, p.Verb, p.Time.Format(time.DateTime)),
			Hint: "`bulkhead rollback` undoes it"}
	}
	if err := s.settle(); err != nil {
		return 0, err
	}
	s.compact(t.Boot)
	if path, err := atomicfile.Room(s.o.FS, s.dir, slices.Collect(maps.Values(t.Docs))...); err != nil {
		return 0, fileError("find room in", path, err)
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
	if outcome != Committed && outcome != Undone && outcome != Failed {
		return fmt.Errorf("end transaction %d: no outcome %q", id, outcome)
	}
	s.mu.Lock()
	light := s.light
	s.mu.Unlock()
	return s.within("end transaction", id, !light,
		record{Kind: kindEnd, ID: id, Outcome: outcome, Note: note, Time: s.o.Now()})
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
// It does so once per source and group; directories that bulkhead made are nobody's home.
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
	if s.log.size == 0 || s.state.version < formatVersion {
		rs = append([]record{{Kind: kindFormat, Version: formatVersion}}, rs...)
	}
	var data []byte
	for _, r := range rs {
		text, err := line(r)
		if err != nil {
			return err
		}
		data = append(data, text...)
	}
	if err := s.log.append(data, sync); err != nil {
		return err
	}
	for _, r := range rs {
		s.state.add(r)
	}
	return nil
}

// compact rewrites a log that has grown large. A failure is only a warning: the long log is as good.
func (s *Store) compact(boot string) {
	if s.log.size < max(s.o.CompactAt, 2*s.state.base) {
		return
	}
	next := s.state.only(boot, s.o.Alive)
	var data []byte
	for _, r := range []record{{Kind: kindFormat, Version: formatVersion}, next.snapshot(boot)} {
		b, err := line(r)
		if err != nil {
			s.warn(fmt.Sprintf("compact %q: %v", s.log.path, err))
			return
		}
		data = append(data, b...)
	}
	if err := s.log.replace(data); err != nil {
		s.warn(fmt.Sprintf("compact journal: %v", err))
		return
	}
	next.base, next.version = int64(len(data)), formatVersion
	s.state = next
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

// Made is the directories that bulkhead made in this boot and has not removed, those of an open
// transaction included.
func (s *Store) Made(boot string) map[cgroup.Dir]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	made := maps.Clone(s.state.boot(boot).made)
	if p := s.state.pending; p != nil && p.Boot == boot {
		for _, c := range p.Changes {
			if d, is := cgroup.DirOf(c.Target); is && c.New != "" {
				made[d] = true
			}
		}
	}
	return made
}

// Originals is what was changed in this boot outside the directories that bulkhead made, and not
// given back since: for each place the first change, whose Old is what was there before bulkhead.
func (s *Store) Originals(boot string) []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.state.boot(boot).originals)
}

// Scores is the oom_score_adj that processes had before bulkhead first changed it in this boot.
func (s *Store) Scores(boot string) map[procfs.ID]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	scores := map[procfs.ID]int{}
	for _, c := range s.state.boot(boot).originals {
		if id, is := c.scored(); is {
			if n, err := strconv.Atoi(c.Old); err == nil {
				scores[id] = n
			}
		}
	}
	return scores
}

// Subtree is the controllers that bulkhead added to cgroup.subtree_control in this boot, outside the
// directories it made. Changes of that file hold lists: Old and New are names separated by spaces.
func (s *Store) Subtree(boot string) map[cgroup.Dir][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	enabled := map[cgroup.Dir][]string{}
	for _, c := range s.state.boot(boot).originals {
		if c.Kind != cgroup.KindControllers {
			continue
		}
		before := strings.Fields(c.Old)
		for _, name := range strings.Fields(c.New) {
			if !slices.Contains(before, name) {
				enabled[c.in()] = append(enabled[c.in()], name)
			}
		}
	}
	return enabled
}

// Changed says whether a value outside the directories that bulkhead made is, in this boot, another one than before
// bulkhead first wrote it.
func (s *Store) Changed(boot string, t change.Target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.state.boot(boot).originals, func(c Change) bool { return c.Target == t })
}

// Homes says where released members go, in this boot: by process, and by group for processes that
// were born inside. Both map on to hierarchy ID → path. The maps are the caller's own.
func (s *Store) Homes(boot string) (process map[procfs.ID]map[string]string, group map[string]map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.state.boot(boot)
	process = make(map[procfs.ID]map[string]string, len(b.process))
	for id, from := range b.process {
		process[id] = maps.Clone(from)
	}
	return process, b.groupHomes()
}
