package zfslayout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"bulkhead/internal/api"
)

// Rollback puts all back as it was before a move. What the server has written on ZFS since is copied back first, unless
// it is to be lost.
func (m *Mover) Rollback(ctx context.Context, instance string, lose bool) (*Record, error) {
	rec, err := m.Begun(instance)
	if err != nil {
		return nil, err
	}
	switch {
	case rec.Phase == Finishing:
		return rec, api.Errorf(api.CodeRefused, "`bulkhead zfs finish "+instance+"` ends it",
			"the old directories of %s are being removed, and some of their files may be gone", instance)
	case lose && rec.CopyingBack && !rec.Restored:
		return rec, api.Errorf(api.CodeRefused, "`bulkhead zfs rollback "+instance+"` without the flag ends it",
			"the new data of %s is being copied back: the old directories are a mixture", instance)
	}
	if rec.Newer && !lose && !rec.Restored {
		if err := (checks{m, rec}).ready(ctx); err != nil {
			return rec, err
		}
	}
	if err := m.back(ctx, rec, lose); err != nil {
		return rec, api.Errorf(api.CodeOf(err), "`bulkhead zfs rollback "+instance+"` goes on from there",
			"roll %s back: %w", instance, err)
	}
	return rec, nil
}

// Begun reads the record of a move that has begun; it is an error that there is none.
func (r Records) Begun(instance string) (*Record, error) {
	rec, err := r.Load(instance)
	if err == nil && rec == nil {
		err = api.Errorf(api.CodeFailed, "`bulkhead zfs plan` and `apply` begin one", "no move of %s was begun",
			instance)
	}
	return rec, err
}

// back takes a move back, from wherever it is.
func (m *Mover) back(ctx context.Context, rec *Record, lose bool) error {
	if err := rec.whole(); err != nil {
		return err
	}
	if rec.Phase = Back; !rec.Restored { // a flag of an earlier call that came to nothing does not count
		rec.Lose = lose
	}
	if err := m.save(rec); err != nil {
		return err
	}
	m.at("rollback begun")
	if !rec.Restored {
		if err := m.restore(ctx, rec); err != nil {
			return err
		}
	}
	if err := m.putBack(rec); err != nil {
		return err
	}
	if err := m.start(ctx, rec); err != nil {
		return err
	}
	m.at("started again")
	stayed, err := m.destroySets(ctx, rec)
	if err != nil {
		return err
	}
	for _, name := range stayed {
		m.warn("the data set %s stays, unmounted: it has snapshots, or files that were not copied back, or was not "+
			"made by this move. `zfs destroy -r %s` removes it with all of them", name, name)
	}
	if rec.PoolMade {
		m.warn("the pool %s stays: no pool is ever destroyed. `zpool destroy %s` removes it", rec.Plan.Pool.Name,
			rec.Plan.Pool.Name)
	}
	return m.remove(rec.Plan.Instance)
}

// restore makes the old directories whole: what is on ZFS does not count after that.
func (m *Mover) restore(ctx context.Context, rec *Record) error {
	if rec.Newer && !rec.CopyingBack {
		if err := m.stop(ctx, rec); err != nil {
			return err
		}
		m.at("stopped for the way back")
	}
	for _, s := range rec.Plan.filled() { // the data comes first: after that no server can start
		if err := m.takeOff(ctx, rec, s); err != nil {
			return err
		}
		m.at("taken off " + s.Name)
	}
	if rec.Newer && !rec.Lose {
		rec.CopyingBack = true
		if err := m.save(rec); err != nil {
			return err
		}
		m.at("copying back begun")
		for _, s := range rec.Plan.filled() {
			at, err := m.reach(ctx, rec, s)
			if err != nil {
				return err
			}
			m.say("copying what is new in %s back to %s", s.Name, s.From)
			old, err := rec.source(s)
			if err != nil {
				return err
			}
			if _, err := m.copied(ctx, old.In(at), old); err != nil {
				return err
			}
			if err := m.takeOff(ctx, rec, s); err != nil {
				return err
			}
			m.at("copied back " + s.Name)
		}
	}
	rec.Restored = true
	err := m.save(rec)
	m.at("restored")
	return err
}

// putBack gives directories and option files back their names and texts.
func (m *Mover) putBack(rec *Record) error {
	for _, o := range rec.Originals {
		note, err := o.undo()
		if err != nil {
			return fmt.Errorf("give %s back: %w", o.File, err)
		}
		if note != "" {
			m.warn("%s", note)
		}
		m.at("given back " + o.File)
	}
	for _, s := range slices.Backward(rec.Plan.Sets) { // the data comes last: before that no server can start
		if s.Point == "" {
			continue
		}
		if s.Aside != "" {
			if dir, err := rec.old(s); err != nil {
				return err
			} else if dir == s.Point {
				continue
			}
		}
		if there(s.Point) {
			if err := takeAway(s.Point); err != nil {
				return err
			}
			m.at("taken away " + s.Point)
		}
		if s.Aside == "" {
			continue
		}
		m.say("renaming %s to %s", s.Aside, s.Point)
		if err := rename(s.Aside, s.Point); err != nil {
			return err
		}
		m.at("renamed back " + s.Point)
	}
	return nil
}

// Finish removes the old directories, and nothing else: the server has to answer on its data sets.
func (m *Mover) Finish(ctx context.Context, instance string) (*Record, error) {
	rec, err := m.Begun(instance)
	if err != nil {
		return nil, err
	}
	if rec.Phase != Applied && rec.Phase != Finishing {
		return rec, api.Errorf(api.CodeRefused, cmp.Or(after[rec.Phase], "`bulkhead zfs apply "+instance+
			"` or `rollback` ends it"), "the move of %s is not done: it is %s", instance, rec.Phase)
	}
	if err := m.onSets(ctx, rec); err != nil {
		return rec, err
	}
	for _, s := range rec.Plan.Sets {
		if s.Aside == "" || !there(s.Aside) {
			continue
		}
		if err := (checks{m, rec}).idle(ctx, s); err != nil {
			return rec, err
		}
	}
	rec.Phase = Finishing
	if err := m.save(rec); err != nil {
		return rec, err
	}
	m.at("finish begun")
	for _, s := range rec.Plan.Sets {
		if s.Aside == "" || !there(s.Aside) {
			continue
		}
		if err := (checks{m, rec}).idle(ctx, s); err != nil { // once more: much time may have passed
			return rec, err
		}
		m.say("removing %s", s.Aside)
		if err := os.RemoveAll(s.Aside); err != nil {
			return rec, err
		}
		m.at("removed " + s.Aside)
	}
	m.clear(rec)
	return rec, m.remove(instance)
}

// onSets sees that the server answers, with its data sets in their places.
func (m *Mover) onSets(ctx context.Context, rec *Record) error {
	for _, s := range rec.Plan.Sets {
		d, err := m.dataset(ctx, rec, s.Name)
		if err != nil {
			return err
		}
		if s.Point == "" {
			continue
		}
		if d == nil {
			return fmt.Errorf("the data set %s is gone", s.Name)
		}
		if err := m.MountTable.onlyAt(s.Name, s.Point); err != nil {
			return err
		}
	}
	running, err := m.Server.Running(ctx)
	if err == nil && !running {
		err = errors.New("it does not run")
	}
	if err == nil {
		err = m.Server.Answers(ctx)
	}
	if err != nil {
		return api.Errorf(api.CodeRefused, "start it, and look at its data, before the old directories go",
			"%s does not answer on its data sets: %w", rec.Plan.Instance, err)
	}
	return nil
}
