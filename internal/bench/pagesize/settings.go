// Package pagesize gives a database of a proof pages of a size, and shows that it has them.
//
// [Open] puts the originals of what it changes on disk, synced, before it changes anything: transparent huge pages are
// off from then on, and Reserve makes the pools, or switches them on. What it changed is one open transaction in a
// journal of the proof's own: Close takes it back, and after a run that was killed [Recover] does. Nothing is written
// for the next boot.
// [Prove] and [Tables] read what a server has, [Need] what it will take of a pool. A Settings is for one goroutine.
package pagesize

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/hugepool"
)

// Usual is the size of pages that are no huge ones, in bytes.
const Usual = 4 << 10

// Transparent stands for the size of pages that are made huge by the kernel, without a pool.
const Transparent = 0

// Settings are the page sizes of the host while a proof runs.
type Settings struct {
	store     *journal.Store
	txn       uint64
	actuators change.Actuators
	pools     map[int64]change.Change // by page size: with what there was before
	thp       *change.Change          // of transparent huge pages; nil where the kernel has none
}

// stateIn is where the journal is in the work directory of a proof.
func stateIn(dir string) string { return filepath.Join(dir, "page-sizes") }

// actuatorsOf are those of the running kernel.
func actuatorsOf(h *host.Host) change.Actuators {
	return tunable.Host{Root: h.Root, Dir: "/"}.Actuators()
}

// Open records the originals in a work directory and switches transparent huge pages off. Sizes are those of pages of
// which pools will be reserved, in bytes; one that the kernel does not have is left out.
func Open(ctx context.Context, h *host.Host, dir string, sizes []int64) (s *Settings, err error) {
	facts, err := h.Facts()
	if err != nil {
		return nil, err
	}
	s = &Settings{actuators: actuatorsOf(h), pools: map[int64]change.Change{}}
	var changes []journal.Change
	add := func(t change.Target, value string) (c change.Change, err error) {
		a, err := s.actuators.Of(t)
		if err != nil {
			return c, err
		}
		got, err := a.Read(ctx, t.Addr)
		if err != nil {
			return c, err
		}
		c = change.Of(t, got, value)
		changes = append(changes, journal.Change{Seq: len(changes) + 1, Change: c})
		return c, nil
	}
	for _, file := range tunable.Transparent {
		if _, err := add(tunable.Attribute(file), "never"); err != nil && !errors.Is(err, change.ErrGone) {
			return nil, err
		}
	}
	off := slices.Clone(changes)
	if len(off) > 0 && off[0].Addr == tunable.Transparent[0] {
		s.thp = &off[0].Change
	}
	for _, size := range sizes {
		c, err := add(tunable.Attribute(hugepool.OfSize(size)), "")
		switch {
		case errors.Is(err, change.ErrGone):
		case err != nil:
			return nil, err
		default:
			s.pools[size] = c
		}
	}
	if s.store, err = journal.Open(stateIn(dir), journal.Options{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(ctx))
		}
	}()
	if _, err := s.store.Lock("bench", "the proof"); err != nil {
		return nil, err
	}
	if s.txn, err = s.store.Begin(journal.Txn{Boot: facts.BootID, Verb: "bench", Changes: changes}); err != nil {
		return nil, err
	}
	for _, c := range off {
		if err := change.Set(ctx, s.actuators[c.Kind], c.Target, c.New); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Reserve makes the pool of pages of a size so much larger than it was before the proof, and the other pools as they
// were. Of the usual size there is no pool, nor of [Transparent], with which all memory may get transparent huge pages
// (else none does). Where the kernel gives too few pages, all pools are as they were.
func (s *Settings) Reserve(ctx context.Context, size, pages int64) error {
	for other, c := range s.pools {
		if other == size {
			continue
		}
		if _, err := s.actuators[c.Kind].Undo(ctx, c); err != nil {
			return err
		}
	}
	word := "never"
	if size == Transparent {
		word = "always"
	}
	switch {
	case s.thp != nil:
		if err := change.Set(ctx, s.actuators[s.thp.Kind], s.thp.Target, word); err != nil {
			return err
		}
	case size == Transparent:
		return errors.New("the kernel has no transparent huge pages")
	}
	if size == Usual || size == Transparent {
		return nil
	}
	c, has := s.pools[size]
	if !has {
		return fmt.Errorf("the kernel has no pages of %d KiB", size>>10)
	}
	before, err := strconv.ParseInt(c.Old, 10, 64)
	if err != nil {
		return fmt.Errorf("read %s: %w", c.Target, err)
	}
	if err := change.Set(ctx, s.actuators[c.Kind], c.Target, strconv.FormatInt(before+pages, 10)); err != nil {
		_, undo := s.actuators[c.Kind].Undo(context.WithoutCancel(ctx), c)
		var short *hugepool.ShortError
		if errors.As(err, &short) {
			err = fmt.Errorf("the kernel gave %d of %d pages of %d KiB: too much memory is in use, or in pieces",
				max(short.Got-before, 0), pages, size>>10)
		}
		return errors.Join(err, undo)
	}
	return nil
}

// Close makes all as it was before Open.
func (s *Settings) Close(ctx context.Context) error {
	err := undo(ctx, s.store, s.actuators, "")
	return errors.Join(err, s.store.Close())
}

// Recover makes all as it was before a proof that was killed, by what it recorded in its work directory. Where nothing
// is recorded, or the host has been booted since, there is nothing to do. While the proof runs the error says so.
func Recover(ctx context.Context, h *host.Host, dir string) error {
	if _, err := os.Stat(stateIn(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	facts, err := h.Facts()
	if err != nil {
		return err
	}
	store, err := journal.Open(stateIn(dir), journal.Options{})
	if err != nil {
		return err
	}
	if _, err = store.Lock("bench", "after a proof that was killed"); err == nil {
		err = undo(ctx, store, actuatorsOf(h), facts.BootID)
	}
	return errors.Join(err, store.Close())
}

// undo takes the open transaction back, if there is one, the last change first. Boot is the one that runs, "" the one
// that the transaction is of.
func undo(ctx context.Context, store *journal.Store, actuators change.Actuators, boot string) error {
	t, pending := store.Pending()
	if !pending {
		return nil
	}
	var errs []error
	for _, c := range slices.Backward(t.Changes) {
		if boot != "" && boot != t.Boot {
			break // what there was before it ended with that boot, and so did what the proof made of it
		}
		a, err := actuators.Of(c.Target)
		if err == nil {
			_, err = a.Undo(ctx, c.Change)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w; hint: write %q to %s by hand", err, c.Old, c.Addr))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return store.End(t.ID, journal.Undone, "")
}
