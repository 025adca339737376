package apply

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
)

// shaper is a network that takes every change.
type shaper struct{ made, undone int }

func (s *shaper) Do(netshape.Change) error { s.made++; return nil }

func (s *shaper) Undo(netshape.Change, []netshape.Change) (bool, error) { s.undone++; return true, nil }

func (s *shaper) Look(string, []string) (netshape.State, error) { return netshape.State{}, nil }

// Who guards a change of interfaces is told how it ended, once, and after the undo when it may not stay: a watchdog
// that is not told would end us. And it can stop a change that is under way.
func TestGuard(t *testing.T) {
	add := request.Of(netshape.Change{Device: "eth0", Verb: tc.Add, What: netshape.ClassOf}, nil)
	p := plan.Plan{Steps: []plan.Step{
		{Change: add, Reason: "first"},
		{Change: add, Reason: "second"},
	}}
	lost := errors.New("its peer is out of reach")
	for _, c := range []struct {
		name         string
		stops, stays bool
		made         int
		told         string
		undone       int
	}{
		{"stays", false, true, 2, "[settle]", 0},
		{"may not stay", false, false, 2, "[settle failed]", 2},
		{"stopped", true, true, 1, "[failed]", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, net := newWorld(t, v1), &shaper{}
			var told []string
			var stop context.CancelCauseFunc
			r := w.runner(t)
			r.Network = net
			r.Guard = func(_ Guarded, s context.CancelCauseFunc) (func(bool) error, error) {
				stop = s
				return func(failed bool) error {
					if failed {
						if net.undone != c.undone {
							t.Errorf("told after %d changes were undone", net.undone)
						}
						told = append(told, "failed")
						return nil
					}
					if told = append(told, "settle"); !c.stays {
						return lost
					}
					return nil
				}, nil
			}
			r.AfterStep = func(int, plan.Step) {
				if c.stops {
					stop(lost)
				}
			}
			_, err := r.Run(soon(t), p, Options{Verb: "apply"})
			if want := c.stops || !c.stays; errors.Is(err, lost) != want || !want && err != nil {
				t.Error(err)
			}
			if fmt.Sprint(told) != c.told || net.made != c.made || net.undone != c.undone {
				t.Errorf("told %q, %d made, %d undone", told, net.made, net.undone)
			}
			if _, pending := r.Journal.Pending(); pending {
				t.Error("the change is still open")
			}
		})
	}
}
