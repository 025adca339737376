package journal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
)

// formatVersion of journal.log; a larger one is refused. From 2 on a change is a target with its values.
const formatVersion = 2

// Kinds of record in journal.log.
const (
	kindFormat = "format" // Version; the first record, and where a newer version goes on with an older log
	kindState  = "state"  // State: everything before is summed up here
	kindBegin  = "begin"  // Txn
	kindMoves  = "moves"  // ID, Changes
	kindForgo  = "forgo"  // ID, Seqs: of changes that were given up
	kindLeft   = "left"   // ID, Changes: those that could not be undone
	kindEnd    = "end"    // ID, Outcome, Note, Time, Untold
	kindHome   = "home"   // Boot, Home
	kindLost   = "lost"   // records before this one were damaged and are gone
)

// record is one line of journal.log.
type record struct {
	Kind    string    `json:"kind"`
	Version int       `json:"version,omitempty"`
	ID      uint64    `json:"id,omitempty"`
	Boot    string    `json:"boot,omitempty"`
	Txn     *Txn      `json:"txn,omitempty"`
	Changes []Change  `json:"changes,omitempty"`
	Seqs    []int     `json:"seqs,omitempty"`
	Outcome string    `json:"outcome,omitempty"`
	Note    string    `json:"note,omitempty"`
	Untold  bool      `json:"untold,omitempty"` // it leaves no entry in the history
	Time    time.Time `json:"time,omitzero"`
	Home    *Home     `json:"home,omitempty"`
	State   *snapshot `json:"state,omitempty"`
}

// snapshot is the state of one boot, as compaction writes it.
type snapshot struct {
	Next      uint64        `json:"next"`
	Made      []cgroup.Dir  `json:"made,omitempty"`
	Originals []Change      `json:"originals,omitempty"`
	Processes []processHome `json:"processes,omitempty"`
	Homes     []Home        `json:"homes,omitempty"`
	Last      *ended        `json:"last,omitempty"`
	Lost      bool          `json:"lost,omitempty"` // some of what it sums up was damaged
	Lasting   []Change      `json:"lasting,omitempty"`
}

type processHome struct {
	PID  procfs.ID         `json:"pid"`
	From map[string]string `json:"from"`
}

// ended is a transaction with its outcome.
type ended struct {
	Txn     Txn       `json:"txn"`
	Outcome string    `json:"outcome"`
	Note    string    `json:"note,omitempty"`
	Time    time.Time `json:"time"`
}

// state is what the log says, summed up.
type state struct {
	version int
	next    uint64 // ID of the next transaction; the first is 1
	boots   map[string]*bootState
	lasting []Change // as the originals of a boot: those that outlive it
	pending *Txn
	left    []Change // of the pending transaction
	hasLeft bool
	last    *ended
	docs    map[string]json.RawMessage // of committed transactions, and maybe not in their places yet
	base    int64                      // bytes of the log right after it was compacted

	latest string            // boot of the last transaction, or of the snapshot
	txns   map[uint64]string // boot of each transaction since the snapshot
	summed uint64            // transactions before this one are in the snapshot
	lost   map[string]bool   // by boot: records are missing
}

// bootState is what bulkhead did to the kernel since one boot.
type bootState struct {
	made      map[cgroup.Dir]bool
	originals []Change // at most one per place
	process   map[procfs.ID]map[string]string
	same      map[string]map[string]string // those of process, by their text: many share one, and none changes
	homes     map[string]map[string]string // of each group the first one in each hierarchy
}

func newState() *state {
	return &state{next: 1, boots: map[string]*bootState{}, txns: map[uint64]string{}, lost: map[string]bool{}}
}

// boot gives the state of a boot; one that nothing was recorded for is empty.
func (s *state) boot(id string) *bootState {
	if b := s.boots[id]; b != nil {
		return b
	}
	return &bootState{made: map[cgroup.Dir]bool{}, process: map[procfs.ID]map[string]string{},
		same: map[string]map[string]string{}, homes: map[string]map[string]string{}}
}

// own is boot for writing.
func (s *state) own(id string) *bootState {
	b := s.boot(id)
	s.boots[id] = b
	return b
}

// use takes in the JSON of one record of the log.
func (s *state) use(payload []byte) error {
	var r record
	if err := json.Unmarshal(payload, &r); err != nil {
		return fmt.Errorf("decode record: %w", err)
	}
	if err := r.check(s.version); err != nil {
		return err
	}
	s.add(r)
	if r.Kind == kindState {
		s.base = int64(len(payload))
	}
	return nil
}

// check says whether a record has what its kind needs. In a log of a newer format anything goes:
// the whole log is refused.
func (r *record) check(version int) error {
	ok := version > formatVersion
	switch r.Kind {
	case kindFormat, kindMoves, kindForgo, kindLeft, kindEnd, kindLost:
		ok = true
	case kindState:
		ok = r.State != nil
	case kindBegin:
		ok = r.Txn != nil
	case kindHome:
		ok = r.Home != nil
	}
	if !ok {
		return fmt.Errorf("record of kind %q makes no sense", r.Kind)
	}
	return nil
}

// add takes in one record. Records of a transaction that is not open are ignored: their beginning
// was lost to damage.
func (s *state) add(r record) {
	switch r.Kind {
	case kindFormat:
		s.version = max(s.version, r.Version)
	case kindState:
		s.restore(r.Boot, r.State)
	case kindLost:
		s.lost[s.latest] = true
	case kindHome:
		s.own(r.Boot).addHome(*r.Home)
	case kindBegin:
		s.begin(*r.Txn)
	case kindMoves:
		if s.open(r.ID) {
			s.pending.Changes = append(s.pending.Changes, r.Changes...)
		}
	case kindForgo:
		if s.open(r.ID) {
			s.pending.Changes = slices.DeleteFunc(s.pending.Changes,
				func(c Change) bool { return slices.Contains(r.Seqs, c.Seq) })
		}
	case kindLeft:
		if s.open(r.ID) {
			s.left, s.hasLeft = append(s.left, r.Changes...), true
		}
	case kindEnd:
		switch {
		case r.Outcome == settled:
			s.docs = nil
		case s.open(r.ID):
			s.end(r)
		}
	}
}

func (s *state) open(id uint64) bool { return s.pending != nil && s.pending.ID == id }

func (s *state) begin(t Txn) {
	if s.pending != nil {
		// Its end was lost to damage. Taking it as done keeps its originals.
		s.end(record{Outcome: Failed, Note: "its end is missing in the journal"})
	}
	b := s.own(t.Boot)
	for _, h := range t.Homes {
		b.addHome(h)
	}
	t.Changes = slices.Clone(t.Changes)
	s.pending = &t
	s.next = max(s.next, t.ID+1)
	s.latest, s.txns[t.ID] = t.Boot, t.Boot
}

func (s *state) end(r record) {
	t := *s.pending
	slices.SortStableFunc(t.Changes, func(a, b Change) int { return cmp.Compare(a.Seq, b.Seq) })
	done := t.Changes
	switch {
	case r.Outcome == Undone:
		done = nil
	case r.Outcome == Failed && s.hasLeft:
		done = s.left
	}
	b := s.own(t.Boot)
	for _, c := range done {
		if b.done(c); c.outlivesBoot() {
			s.lasting = original(s.lasting, c)
		}
	}
	if r.Outcome == Committed && len(t.Docs) > 0 {
		if s.docs == nil {
			s.docs = map[string]json.RawMessage{}
		}
		maps.Copy(s.docs, t.Docs)
	}
	t.Docs, t.Recorded = nil, t.Recorded && !r.Untold
	s.last = &ended{Txn: t, Outcome: r.Outcome, Note: r.Note, Time: r.Time}
	s.pending, s.left, s.hasLeft = nil, nil, false
}

// done takes in a change that was made.
func (b *bootState) done(c Change) {
	d, isDir := cgroup.DirOf(c.Target)
	switch {
	case isDir && c.New != "":
		b.made[d] = true
	case isDir:
		delete(b.made, d)
	case c.Kind == cgroup.KindMembership:
		b.moved(c)
	case c.isValue() && !c.outlivesBoot() && !b.made[c.in()]:
		b.originals = original(b.originals, c)
	}
}

// original keeps the first value of a place, and the last one written, until the first is written back.
func original(all []Change, c Change) []Change {
	i := slices.IndexFunc(all, func(o Change) bool { return o.Target == c.Target })
	switch {
	case i < 0 && c.New != c.Old:
		return append(all, c)
	case i >= 0 && c.New == all[i].Old:
		return slices.Delete(all, i, i+1)
	case i >= 0:
		all[i].New = c.New
	}
	return all
}

// moved keeps where a process was before bulkhead first moved it, until it leaves our directories.
func (b *bootState) moved(c Change) {
	id, from, to, ok := c.move()
	home := b.process[id]
	if !b.made[to] {
		if _, there := home[to.Hierarchy]; there {
			home = maps.Clone(home)
			delete(home, to.Hierarchy)
			b.came(id, home)
		}
		return
	}
	if !ok || home[to.Hierarchy] != "" || c.Old == "" || b.made[from] {
		return
	}
	if home = maps.Clone(home); home == nil {
		home = map[string]string{}
	}
	home[to.Hierarchy] = c.Old
	b.came(id, home)
}

// came says where a process was before bulkhead first moved it. Nobody may change home any more.
func (b *bootState) came(id procfs.ID, home map[string]string) {
	if len(home) == 0 {
		delete(b.process, id)
		return
	}
	text := textOf(home)
	if known := b.same[text]; known != nil {
		home = known
	}
	b.same[text], b.process[id] = home, home
}

// addHome takes in a home of a group, where it has none yet: those that came later are no group's home.
func (b *bootState) addHome(h Home) {
	if len(h.From) > 0 && b.homes[h.Group] == nil {
		b.homes[h.Group] = map[string]string{}
	}
	for hierarchy, path := range h.From {
		if b.homes[h.Group][hierarchy] == "" {
			b.homes[h.Group][hierarchy] = path
		}
	}
}

// textOf names places by hierarchy.
func textOf(from map[string]string) string {
	var sb strings.Builder
	for _, hierarchy := range slices.Sorted(maps.Keys(from)) {
		sb.WriteString("\x00" + hierarchy + "\x00" + from[hierarchy])
	}
	return sb.String()
}

// newHomes gives the homes of groups that have none yet, without directories that are ours.
func (s *state) newHomes(boot string, homes []Home) (fresh []Home) {
	b, seen := s.boot(boot), newState().own(boot)
	for _, h := range homes {
		from := maps.Clone(h.From)
		maps.DeleteFunc(from, func(hierarchy, path string) bool {
			return path == "" || b.made[cgroup.Dir{Hierarchy: hierarchy, Path: path}] ||
				b.homes[h.Group][hierarchy] != "" || seen.homes[h.Group][hierarchy] != ""
		})
		if h.From = from; len(from) > 0 {
			seen.addHome(h)
			fresh = append(fresh, h)
		}
	}
	return fresh
}

// groupHomes gives each group the first home it had in each hierarchy. The maps are the caller's own.
func (b *bootState) groupHomes() map[string]map[string]string {
	group := maps.Clone(b.homes)
	for name := range group {
		group[name] = maps.Clone(group[name])
	}
	return group
}

// only gives the state without other boots and, if alive is set, without processes that exited.
func (s *state) only(boot string, alive func(procfs.ID) bool) *state {
	next := newState()
	next.restore(boot, s.snapshot(boot).State)
	if alive == nil {
		return next
	}
	b := next.own(boot)
	maps.DeleteFunc(b.process, func(id procfs.ID, _ map[string]string) bool { return !alive(id) })
	b.originals = slices.DeleteFunc(b.originals, func(c Change) bool {
		id, is := c.scored()
		return is && !alive(id)
	})
	return next
}

// snapshot sums up one boot. There must be no pending transaction.
func (s *state) snapshot(boot string) record {
	b := s.boot(boot)
	snap := &snapshot{Next: s.next, Originals: slices.Clone(b.originals), Last: s.last,
		Lost: s.lost[boot], Lasting: slices.Clone(s.lasting)}
	for _, group := range slices.Sorted(maps.Keys(b.homes)) {
		snap.Homes = append(snap.Homes, Home{Group: group, From: b.homes[group]})
	}
	snap.Made = slices.SortedFunc(maps.Keys(b.made), func(a, b cgroup.Dir) int {
		return cmp.Or(cmp.Compare(a.Hierarchy, b.Hierarchy), cmp.Compare(a.Path, b.Path))
	})
	for _, id := range slices.SortedFunc(maps.Keys(b.process), func(a, b procfs.ID) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Start, b.Start))
	}) {
		snap.Processes = append(snap.Processes, processHome{id, b.process[id]})
	}
	return record{Kind: kindState, Boot: boot, State: snap}
}

// restore takes in a snapshot.
func (s *state) restore(boot string, snap *snapshot) {
	s.next = max(s.next, snap.Next)
	s.last, s.lasting = snap.Last, slices.Clone(snap.Lasting)
	s.latest, s.summed, s.lost[boot] = boot, s.next, snap.Lost
	clear(s.txns)
	delete(s.boots, boot)
	b := s.own(boot)
	for _, d := range snap.Made {
		b.made[d] = true
	}
	b.originals = slices.Clone(snap.Originals)
	for _, p := range snap.Processes {
		b.came(p.PID, p.From)
	}
	for _, h := range snap.Homes {
		b.addHome(h)
	}
}

// settled is the outcome of a record that says that the documents of all transactions before it are in their places.
const settled = "settled"

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
