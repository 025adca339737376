package conformance

import (
	"context"
	"errors"
	"strings"

	"bulkhead/internal/change"
)

// KindDial is a kind that only tests have.
const KindDial change.Kind = "dial"

// Dial is a target of it.
func Dial(name string) change.Target { return change.Target{Kind: KindDial, Addr: name} }

// Dials is the actuator of KindDial, over a map. It is all that a kind consists of.
type Dials struct {
	Values map[string]string
	Fail   int // the write that fails with ErrFault, from 1
	writes int
}

// ErrFault is how a write fails that was to.
var ErrFault = errors.New("the dial is stuck")

// Read gives the value of a dial.
func (d *Dials) Read(_ context.Context, addr string) (string, error) {
	value, there := d.Values[addr]
	if !there {
		return "", change.Gone("no such dial")
	}
	return value, nil
}

// Write turns a dial.
func (d *Dials) Write(_ context.Context, addr, value string) error {
	if d.Values[addr] == "" {
		return change.Gone("no such dial")
	}
	if d.writes++; d.writes == d.Fail {
		return ErrFault
	}
	d.Values[addr] = value
	return nil
}

// Same compares without regard to case.
func (*Dials) Same(_, want, got string) bool { return strings.EqualFold(want, got) }

// Undo gives a dial its old value back.
func (d *Dials) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, d, c)
}
