package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bulkhead/internal/journal"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
)

var errNoNetwork = errors.New("the plan shapes interfaces, and nothing here can")

func (r *Runner) network() (Network, error) {
	if r.Network == nil {
		return nil, errNoNetwork
	}
	return r.Network, nil
}

// shape does one change of an interface.
func (n *run) shape(c journal.Change) error {
	k, err := n.network()
	if err != nil {
		return err
	}
	do, _, err := request.Parse(c.Change)
	if err != nil {
		return err
	}
	return k.Do(do)
}

// unshape takes one back.
func (u *undoing) unshape(c journal.Change) error {
	k, err := u.network()
	if err != nil {
		return err
	}
	do, undo, err := request.Parse(c.Change)
	if err != nil {
		return err
	}
	undone, err := k.Undo(do, undo)
	if undone {
		u.undone++
	}
	return err
}

// guard calls Guard when the plan has to do with interfaces.
func (n *run) guard(stop context.CancelCauseFunc) (settle func(failed bool) error, err error) {
	nothing := func(bool) error { return nil }
	var g Guarded
	for _, a := range n.actions {
		if a.skip || a.step.Kind != request.Kind {
			continue
		}
		do, undo, err := request.Parse(a.step.Change)
		if err != nil {
			return nothing, err
		}
		g.Undo = append(g.Undo, NetworkUndo{do, undo})
		for _, device := range []string{do.For, do.Device} {
			if device != "" && !slices.Contains(g.Devices, device) {
				g.Devices = append(g.Devices, device)
			}
		}
	}
	if n.Guard == nil || len(g.Undo) == 0 {
		return nothing, nil
	}
	g.Txn = n.txn.ID
	done, err := n.Guard(g, stop)
	if err != nil {
		return nothing, &StepError{Index: 0, Of: len(n.actions), Step: n.actions[0].step, Err: err}
	}
	return func(failed bool) error {
		if err := done(failed); err != nil && !failed {
			return &StepError{Index: len(n.actions), Of: len(n.actions), Err: err}
		}
		return nil
	}, nil
}

// readShapes looks at the interfaces once more when all steps were done: a plan over what is there now must be empty.
func (n *run) readShapes() error {
	var h netshape.Host
	last := -1
	for i, a := range n.actions {
		if a.step.Kind == request.Kind && !a.skip && !a.step.Optional {
			last = i
		}
	}
	if last < 0 || len(n.plan.Network) == 0 {
		return nil
	}
	k, err := n.network()
	if err != nil {
		return err
	}
	h.Wanted, h.Count = n.plan.Network, n.plan.Counted
	for _, w := range n.plan.Network {
		s, err := k.Look(w.Device, n.plan.Directories)
		if err != nil {
			return n.failed(last, fmt.Errorf("read back: %w", err))
		}
		h.States, h.Programs, h.Counters = append(h.States, s), s.Programs, s.Counters
	}
	steps, err := netshape.PlanHost(h)
	if err == nil && len(steps) > 0 {
		err = fmt.Errorf("%d differ, first: to %s", len(steps), steps[0].Do)
	}
	if err != nil {
		return n.failed(last, fmt.Errorf("read back interfaces: %w", err))
	}
	return nil
}
