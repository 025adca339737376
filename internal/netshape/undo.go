package netshape

import (
	"errors"
	"io/fs"
	"slices"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"

	"golang.org/x/sys/unix"
)

// Undo takes a change back, by the changes that its step names. It assumes nothing about whether the change was made,
// nor about how far an earlier attempt to take it back came: it looks, and does what is missing. What went with its
// interface or directory needs nothing.
func (k *Kernel) Undo(c Change, undo []Change) (undone bool, err error) { return takeBack(k, c, undo) }

// changer is what changes are made in: the kernel, or what a test has in its place.
type changer interface {
	Do(c Change) error
	there(c Change) (bool, error)
}

func takeBack(k changer, c Change, undo []Change) (undone bool, err error) {
	made, err := inEffect(k, c)
	if err != nil || len(undo) == 0 {
		return false, gone(err)
	}
	if !made {
		// The first of several puts another qdisc into the place of ours; the others follow it.
		if made, err = inEffect(k, undo[0]); err != nil || !made {
			return false, gone(err)
		}
	}
	for _, u := range undo {
		there, err := inEffect(k, u)
		if err == nil && (!there || u.Verb == tc.Alter) {
			err = k.Do(u)
			// What a change hangs on a class, classes and filters, is taken back before the class. One that has some is
			// that of before the change, which makes it anew when its parent moves.
			if u.What == ClassOf && u.Verb == tc.Delete && errors.Is(err, unix.EBUSY) {
				return undone, nil
			}
			undone = true
		}
		if err != nil {
			return undone, gone(err)
		}
	}
	return undone, nil
}

// gone forgives that what a change is about is not there any more.
func gone(err error) error {
	if errors.Is(err, tc.ErrNoDevice) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// inEffect says whether what a change would bring about is so. A change in place counts as such when its object is
// there.
func inEffect(k changer, c Change) (bool, error) {
	there, err := k.there(c)
	if c.Verb == tc.Delete {
		there = !there
	}
	return there && err == nil, err
}

// there says whether the object of a change exists.
func (k *Kernel) there(c Change) (bool, error) {
	switch c.What {
	case NIC:
		l, err := k.Link(c.Device)
		if errors.Is(err, tc.ErrNoDevice) {
			return false, nil
		}
		return err == nil && ourNIC(l), err
	case Sorter, Policer, Counter:
		return bpf.There(c.Program)
	}
	l, err := k.at(c)
	if err != nil {
		if c.Index == 0 && errors.Is(err, tc.ErrNoDevice) { // a virtual NIC that was not made
			return false, nil
		}
		return false, err
	}
	d, err := k.Device(l, noFilters)
	if err != nil {
		return false, err
	}
	return has(&d, c), nil
}

// has says whether an object of traffic control is on the device.
func has(d *tc.Device, c Change) bool {
	switch c.What {
	case Qdisc:
		return slices.ContainsFunc(d.Qdiscs, func(r tc.Record) bool {
			return r.Handle == c.Record.Handle && r.Parent == c.Record.Parent && r.Kind == c.Record.Kind
		})
	case ClassOf:
		return slices.ContainsFunc(d.Classes, func(r tc.Record) bool { return r.Handle == c.Record.Handle })
	case FilterOf:
		return slices.ContainsFunc(d.Filters, func(r tc.Record) bool {
			// One of ours has its preference to itself; others may have several of one, told apart by their handles.
			return r.Real() && r.Parent == c.Record.Parent && r.Info == c.Record.Info && r.Chain == c.Record.Chain &&
				r.Kind == c.Record.Kind &&
				(c.Filter != nil || tc.Writable(r).Handle == tc.Writable(c.Record).Handle)
		})
	}
	return false
}
