package journal

import (
	"cmp"
	"maps"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal/statedir"
)

// What the journal has lost, to damage or because somebody removed it, the history tells as far as it goes:
// its entries hold the same changes. Only the boot of the newest transaction matters; nothing is ever
// written back for another.

// newest is the boot of the newest transaction that the journal or the history knows.
func (s *state) newest(seen counters) string {
	last := uint64(0)
	for id := range s.txns {
		last = max(last, id)
	}
	if s.latest != "" && last >= seen.txn || seen.txn < s.summed {
		return s.latest
	}
	return cmp.Or(seen.boot, s.latest)
}

// gap says whether the log lacks a transaction of a boot: they are numbered without a hole.
func (s *state) gap(boot string, seen counters) bool {
	first := max(s.summed, 1)
	for id, of := range s.txns {
		if of != boot {
			first = max(first, id+1)
		}
	}
	for of, id := range seen.last {
		if of != boot {
			first = max(first, id+1)
		}
	}
	for id := first; id < s.next; id++ {
		if _, there := s.txns[id]; !there {
			return true
		}
	}
	return false
}

// recall completes a state, read from a log that maybe lacks records, by what the history tells.
func recall(history *statedir.Log, st *state, seen counters, damaged bool) error {
	st.next = max(st.next, seen.txn+1)
	boot := st.newest(seen)
	if boot == "" || !damaged && !st.lost[boot] && !st.gap(boot, seen) {
		return nil
	}
	st.lost[boot] = true
	h := newState().own(boot)
	var told, lasting []Change
	tuned := map[change.Target]bool{}
	d, err := history.Read(func(payload []byte) error {
		e, err := decodeEntry(payload)
		if err != nil {
			return err
		}
		if e.Txn == 0 || e.Outcome == Undone {
			return nil
		}
		for _, c := range e.Changes {
			if c.outlivesBoot() {
				lasting = original(lasting, c)
				tuned[c.Target] = true
			}
		}
		if e.Boot == boot {
			h.replay(e.Changes)
			told = append(told, e.Changes...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	b := st.own(boot)
	if d.Sound() { // else the log may know better
		b.forget(told)
		st.lasting = append(lasting, slices.DeleteFunc(slices.Clone(st.lasting),
			func(c Change) bool { return tuned[c.Target] })...)
	}
	b.complete(h)
	return nil
}

// lateEnd ends the pending transaction when the history, which comes after the journal, holds its end: the
// record of it was damaged, and undoing what was done long ago would lift limits behind everybody's back. It
// gives the line that the log lacks, nil when it lacks none.
func lateEnd(history *statedir.Log, st *state, seen counters) ([]byte, error) {
	p := st.pending
	if p == nil || !p.Recorded || p.ID > seen.txn {
		return nil, nil
	}
	var end *record
	_, err := history.Read(func(payload []byte) error {
		e, err := decodeEntry(payload)
		if err != nil {
			return err
		}
		if e.Txn == p.ID && e.Boot == p.Boot {
			end = &record{Kind: kindEnd, ID: p.ID, Outcome: e.Outcome, Note: e.Text, Time: e.Time}
		}
		return nil
	})
	if err != nil || end == nil {
		return nil, err
	}
	st.add(*end)
	return statedir.Line(end)
}

// replay takes in the changes of an entry of the history.
func (b *bootState) replay(changes []Change) {
	changes = slices.Clone(changes)
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, c := range changes {
		b.done(c)
		if _, from, to, is := c.move(); is && c.Old != "" && b.made[to] && !b.made[from] {
			b.addHome(Home{Group: c.Group, From: map[string]string{from.Hierarchy: from.Path}})
		}
	}
}

// forget drops what is known of the directories and places of changes.
func (b *bootState) forget(changes []Change) {
	for _, c := range changes {
		if d, is := cgroup.DirOf(c.Target); is {
			delete(b.made, d)
		} else if c.isValue() {
			b.originals = slices.DeleteFunc(b.originals, func(o Change) bool { return o.Target == c.Target })
		}
	}
}

// complete adds what the history tells. It goes first where both know something: with its beginning lost, the
// log takes a value that bulkhead wrote for an original, and one of its directories for a home.
func (b *bootState) complete(h *bootState) {
	maps.Copy(b.made, h.made)
	originals := slices.Clone(h.originals)
	for _, c := range b.originals {
		known := slices.ContainsFunc(h.originals, func(o Change) bool { return o.Target == c.Target })
		if !known && !b.made[c.in()] {
			originals = append(originals, c)
		}
	}
	b.originals = originals
	ours := func(hierarchy, path string) bool { return b.made[cgroup.Dir{Hierarchy: hierarchy, Path: path}] }
	both := maps.Clone(b.process)
	maps.Copy(both, h.process)
	for id := range both {
		from := map[string]string{}
		maps.Copy(from, b.process[id])
		maps.Copy(from, h.process[id])
		maps.DeleteFunc(from, ours)
		b.came(id, from)
	}
	own := b.homes
	b.homes = map[string]map[string]string{}
	for _, homes := range []map[string]map[string]string{h.homes, own} {
		for group, from := range homes {
			from = maps.Clone(from)
			maps.DeleteFunc(from, ours)
			b.addHome(Home{Group: group, From: from})
		}
	}
}

// empty says whether bulkhead has changed nothing in a boot that is still to be given back.
func (b *bootState) empty() bool {
	return len(b.made) == 0 && len(b.originals) == 0 && len(b.process) == 0
}

// warnLost says that records are missing, as long as there is something left to give back.
func warnLost(s *Store, st *state) {
	for boot, lost := range st.lost {
		if lost && (st.pending != nil || !st.boot(boot).empty() || len(st.lasting) > 0) {
			s.warnings.add(s.log.Path +
				": lacks records, which were damaged or removed; what the history tells is used in " +
				"their place, until `bulkhead release --all` or a reboot")
		}
	}
}
