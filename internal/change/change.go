// Package change is the vocabulary for what bulkhead changes on a host. A Target names one value: its kind, and an
// address that only the kind can read. An Actuator reads, writes, compares and gives back the values of one kind. The
// room that owns a kernel interface declares the actuators of its kinds; those who plan, journal, apply, undo and show
// changes hand Targets on and know no kind.
//
// To add a kind, implement Actuator in the room that writes (Set and Restore do the usual order), and register it where
// package transaction lists those of a host. A plan.Step and a plan.Wanted then name its Targets.
//
//	got, err := a.Read(ctx, target.Addr) // the original, for the journal
//	err = change.Set(ctx, a, target, "1")
//	_, err = a.Undo(ctx, change.Change{Target: target, Old: got, Undo: got})
//
// Targets and Changes are plain values. An Actuator is called by one goroutine at a time.
package change

import (
	"context"
	"errors"
	"fmt"
)

// Kind names what sort of thing a Target is: "disk queue". The journal stores it, so it never changes its meaning.
type Kind string

// Target is one thing of the host that has a value.
type Target struct {
	Kind Kind   `json:"kind"`
	Addr string `json:"addr"` // in the form that the kind's Actuator reads
}

// String gives kind and address: `disk queue "8:0/scheduler"`.
func (t Target) String() string { return fmt.Sprintf("%s %q", t.Kind, t.Addr) }

// Change is a Target with its value before and after.
type Change struct {
	Target
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
	Do   string `json:"do,omitempty"`   // what to write to have New; "" is New itself
	Undo string `json:"undo,omitempty"` // what to write to have Old again
}

// Of is a change of a target that its old value takes back.
func Of(t Target, from, to string) Change { return Change{Target: t, Old: from, New: to, Undo: from} }

// Actuator reads and writes the targets of one kind.
type Actuator interface {
	// Read gives the value now, in the form in which values are written. The error matches ErrGone when the target does
	// not exist any more.
	Read(ctx context.Context, addr string) (string, error)
	// Write sets the value. It does not read it back.
	Write(ctx context.Context, addr, value string) error
	// Same compares a value as it was written with one as it was read.
	Same(addr, want, got string) bool
	// Undo gives the old value back if the target differs from it. It does not assume that the change was made.
	Undo(ctx context.Context, c Change) (undone bool, err error)
}

// Loaded is implemented by actuators whose values count only once a Loader has read them: files of systemd's. Several
// in a row are read once.
type Loaded interface{ Loader() Loader }

// Loader reads what was written about some addresses. Kinds with one Loader give equal values.
type Loader interface {
	Reload(ctx context.Context, addrs ...string) error
}

// Lasting is implemented by actuators whose values outlive a boot: a line of a file, a drop-in. The changes of other
// kinds end with the boot that they were made in, and are not undone after it.
type Lasting interface {
	// AfterBoot is the change as it is to be undone in a later boot.
	AfterBoot(c Change) Change
}

// Actuators are those of a host, by kind.
type Actuators map[Kind]Actuator

// ErrDiffers is matched by errors that say that a target does not hold what was written to it.
var ErrDiffers = errors.New("read back")

// ErrCaptured says that a host is a copy of another one's files, of which none is written.
var ErrCaptured = errors.New("a captured host cannot be changed")

// ErrGone is matched by errors that say that a target does not exist any more: nothing is left to undo there.
var ErrGone = errors.New("it is gone")

// Gone makes an error with a text of its own that matches ErrGone.
func Gone(text string) error { return &gone{text} }

type gone struct{ text string }

func (g *gone) Error() string        { return g.text }
func (g *gone) Is(target error) bool { return target == ErrGone }

// Of gives the actuator of a target.
func (a Actuators) Of(t Target) (Actuator, error) {
	if known := a[t.Kind]; known != nil {
		return known, nil
	}
	return nil, fmt.Errorf("change %s: this host has no actuator of that kind", t)
}

// Same compares a value as it was written with one as it was read; values of a kind that is not known as texts.
func (a Actuators) Same(t Target, want, got string) bool {
	if known := a[t.Kind]; known != nil {
		return known.Same(t.Addr, want, got)
	}
	return want == got
}

// Set writes a value and reads it back. Of a target that is gone "" is no error: there is nothing to take away.
func Set(ctx context.Context, a Actuator, t Target, value string) error {
	if err := a.Write(ctx, t.Addr, value); value == "" && errors.Is(err, ErrGone) {
		return nil
	} else if err != nil {
		return err
	}
	return Check(ctx, a, t, value)
}

// Check reads a value and compares it with what it should be. Of a target that is gone nothing is wanted ("").
func Check(ctx context.Context, a Actuator, t Target, want string) error {
	got, err := a.Read(ctx, t.Addr)
	if want == "" && errors.Is(err, ErrGone) {
		return nil
	}
	if err == nil && !a.Same(t.Addr, want, got) {
		err = fmt.Errorf("%w %s: wrote %q, found %q", ErrDiffers, t, want, got)
	}
	return err
}

// Restore is the Undo of most kinds: it looks first, writes only where the value differs, and reads back. A target that
// is gone needs no undo.
func Restore(ctx context.Context, a Actuator, c Change) (undone bool, err error) {
	got, err := a.Read(ctx, c.Addr)
	switch {
	case errors.Is(err, ErrGone):
		return false, nil
	case err != nil:
		return false, err
	case a.Same(c.Addr, c.Undo, got) || a.Same(c.Addr, c.Old, got):
		return false, nil
	}
	if err = Set(ctx, a, c.Target, c.Undo); errors.Is(err, ErrGone) {
		err = nil
	}
	return true, err
}
