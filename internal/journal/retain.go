package journal

import (
	"encoding/json"
	"fmt"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal/statedir"
)

// Retain drops the entries that are more than those to be kept, the oldest first, and says how many. Entries stay that
// tell, should the journal be damaged, what is still to be given back, and the newest one, which numbers the next.
func (s *Store) Retain(r Retention) (dropped int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return 0, fmt.Errorf("shorten history: %w", ErrNotLocked)
	}
	if s.history.Sealed != nil || r == (Retention{}) {
		return 0, nil
	}
	var lines [][]byte
	var all []Entry
	d, err := s.history.Read(func(payload []byte) error {
		e, err := decodeEntry(payload)
		if err != nil {
			return err
		}
		text, err := statedir.Line(json.RawMessage(payload))
		lines, all = append(lines, text), append(all, e)
		return err
	})
	if err != nil || !d.Sound() { // a damaged one is mended first
		return 0, err
	}
	keep := make([]bool, len(all))
	for i := range all {
		old := r.Entries > 0 && len(all)-i > r.Entries || r.Age > 0 && s.o.Now().Sub(all[i].Time) > r.Age
		keep[i] = !old || i == len(all)-1
	}
	lastingTellers(all, keep)
	tellers(all, s.state.newest(s.history.seen), keep)
	var data []byte
	for i, kept := range keep {
		if kept {
			data = append(data, lines[i]...)
		} else {
			dropped++
		}
	}
	if dropped == 0 {
		return 0, nil
	}
	return dropped, s.history.Replace(data)
}

// spotOf is what a change is about: a value, a directory, or a process, wherever it is.
func spotOf(c Change) change.Target {
	if id, _, _, is := c.move(); is {
		return cgroup.Membership(id, "")
	}
	return c.Target
}

// tellers has the entries of a boot kept without which the others would tell something else of what is to be given
// back, as recall reads them: of each place the first entry since it was as before bulkhead, for it has the original,
// and the last one.
func tellers(all []Entry, boot string, keep []bool) {
	replayed := newState().own(boot)
	started, last := map[change.Target]int{}, map[change.Target]int{}
	first := make([]map[change.Target]int, len(all)) // by entry and place, the entry since which bulkhead has it
	for i, e := range all {
		if e.Boot != boot || e.Txn == 0 || e.Outcome == Undone {
			continue
		}
		replayed.replay(e.Changes)
		first[i] = map[change.Target]int{}
		for _, c := range e.Changes {
			p := spotOf(c)
			if _, has := started[p]; !has {
				started[p] = i
			}
			first[i][p], last[p] = started[p], i
		}
		for _, c := range e.Changes {
			if !replayed.holds(c) {
				delete(started, spotOf(c))
			}
		}
	}
	var todo []int
	need := func(i int) {
		if !keep[i] {
			keep[i], todo = true, append(todo, i)
		}
	}
	for i, kept := range keep {
		if kept {
			todo = append(todo, i)
		}
	}
	for _, i := range started { // those are in its hands now
		need(i)
	}
	for ; len(todo) > 0; todo = todo[1:] {
		for p, i := range first[todo[0]] {
			need(i)
			need(last[p])
		}
	}
}

// lastingTellers are those of what outlives a boot, over all boots: of each place the entry with its original, and the
// last one.
func lastingTellers(all []Entry, keep []bool) {
	var lasting []Change
	first, last := map[change.Target]int{}, map[change.Target]int{}
	for i, e := range all {
		if e.Txn == 0 || e.Outcome == Undone {
			continue
		}
		for _, c := range e.Changes {
			if !c.outlivesBoot() {
				continue
			}
			if _, has := first[c.Target]; !has {
				first[c.Target] = i
			}
			lasting, last[c.Target] = original(lasting, c), i
			if !slices.ContainsFunc(lasting, func(o Change) bool { return o.Target == c.Target }) {
				delete(first, c.Target)
			}
		}
	}
	for target, i := range first {
		keep[i], keep[last[target]] = true, true
	}
}

// holds says whether what a change is about is not as it was before bulkhead.
func (b *bootState) holds(c Change) bool {
	if d, is := cgroup.DirOf(c.Target); is {
		return b.made[d]
	}
	if id, _, _, is := c.move(); is {
		return len(b.process[id]) > 0
	}
	return slices.ContainsFunc(b.originals, func(o Change) bool { return o.Target == c.Target })
}
