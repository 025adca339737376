// Package conformance holds an actuator of package change against what its callers rely on. The room that declares a
// kind calls Run from a test, on its model and, with root, on the kernel.
package conformance

import (
	"errors"
	"testing"

	"bulkhead/internal/change"
)

// Case is one target of a kind.
type Case struct {
	Actuator change.Actuator
	Target   change.Target
	// Values can be written one after the other.
	Values []string
	// Refused is a value that cannot be written; "" leaves that out.
	Refused string
	// Gone is the address of a target of the kind that does not exist; "" leaves that out.
	Gone string
}

// Run writes the values, reads them back and undoes them.
func Run(t *testing.T, c Case) {
	t.Helper()
	a, ctx := c.Actuator, t.Context()
	old, err := a.Read(ctx, c.Target.Addr)
	if err != nil {
		t.Fatalf("%s: %v", c.Target, err)
	}
	if !a.Same(c.Target.Addr, old, old) {
		t.Errorf("%s: %q is not the same as itself", c.Target, old)
	}
	undo := func(value string, want bool) {
		t.Helper()
		ch := change.Change{Target: c.Target, Old: old, New: value, Undo: old}
		if undone, err := a.Undo(ctx, ch); undone != want || err != nil {
			t.Errorf("%s: undo of %q: %t, %v; want %t", c.Target, value, undone, err, want)
		}
		if err := change.Check(ctx, a, c.Target, old); err != nil {
			t.Errorf("%s: undo of %q: %v", c.Target, value, err)
		}
	}
	undo("what was never written", false)
	for _, value := range c.Values {
		if a.Same(c.Target.Addr, value, old) {
			t.Errorf("%s: %q is what it holds already", c.Target, value)
		}
		if err := change.Set(ctx, a, c.Target, value); err != nil {
			t.Errorf("%s: set %q: %v", c.Target, value, err)
			continue
		}
		undo(value, true)
		undo(value, false)
	}
	if c.Refused != "" {
		if err := a.Write(ctx, c.Target.Addr, c.Refused); err == nil {
			t.Errorf("%s: %q was taken", c.Target, c.Refused)
		}
		undo(c.Refused, false)
	}
	if c.Gone == "" {
		return
	}
	gone := change.Change{Target: change.Target{Kind: c.Target.Kind, Addr: c.Gone}, Old: old, New: old, Undo: old}
	if _, err := a.Read(ctx, c.Gone); !errors.Is(err, change.ErrGone) {
		t.Errorf("%s: read: %v", gone.Target, err)
	}
	if err := a.Write(ctx, c.Gone, old); !errors.Is(err, change.ErrGone) {
		t.Errorf("%s: write: %v", gone.Target, err)
	}
	if undone, err := a.Undo(ctx, gone); undone || err != nil {
		t.Errorf("%s: undo: %t, %v", gone.Target, undone, err)
	}
}
