package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"bulkhead/internal/access"
	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/freeze"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// move places running processes by hand and holds them there against the rules.
func move(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	v, s, err := c.Membership(ctx)
	if err != nil {
		return err
	}
	if !v.HasGroup(r.Group) {
		return transaction.NoGroup(v, r.Group)
	}
	procs, err := chosen(v.Observed.Processes, r.PIDs, r.Tree)
	if err != nil {
		return err
	}
	if err := errors.Join(transaction.RefuseReleased(s, r.Group), freeze.RefuseFrozen(s, r.Group),
		access.May(r.Caller, v.Snapshot, r.Group, policy.MayMove),
		access.MayTake(r.Caller, v.Snapshot, c.Host, procs...), freeze.MayLeave(c, v.Facts, s, procs...)); err != nil {
		return err
	}
	if err := fits(c.Host, v, r.Group, procs, r.Force); err != nil {
		return err
	}
	if err := unclaimed(v, r, procs); err != nil {
		return err
	}
	pins := slices.Clone(s.Pins)
	for _, p := range procs {
		if reason := classify.Protected(p.PID, v.Rules); reason != "" {
			return api.Errorf(api.CodeRefused, "", "move process %d (%s): %s", p.PID, p.Comm, reason)
		}
		pins = slices.DeleteFunc(pins, func(pin state.Pin) bool { return pin.Process == p.ID })
		pin := state.Pin{Process: p.ID, Boot: v.Facts.BootID, Group: r.Group, By: "move by " + r.By, Alone: !r.Tree ||
			r.Caller != nil}
		if r.For > 0 {
			pin.Ends = time.Now().Add(r.For)
		}
		pins = append(pins, pin)
	}
	return repin(ctx, c, r, reply, s, pins, procs...)
}

// fits refuses to put processes into a group whose memory limit, or that of a group above it, is below what
// they hold and cannot give back: what they hold stays charged where it is, but the next they ask for ends
// in an OOM kill.
func fits(h *host.Host, v *transaction.View, group string, procs []procfs.Process, force bool) error {
	if force {
		return nil
	}
	var held policy.Bytes
	for _, p := range procs {
		if m, err := h.Proc.Memory(p.PID); err == nil {
			held += policy.Bytes(m.Anon + m.Shmem)
		}
	}
	for _, g := range v.Classified.Groups {
		s, ok := g.Settings.Get(policy.KeyMemoryMax, "")
		limit, isBytes := s.Value.(policy.Bytes)
		if !policy.Covers([]string{g.Path}, group) || !ok || !isBytes || held <= limit {
			continue
		}
		return api.Errorf(api.CodeRefused, "raise memory.max first, or --force --reason TEXT",
			"what is to be moved holds %s that cannot be reclaimed, more than memory.max of group %q allows (%s)",
			held.Human(), g.Path, limit.Human())
	}
	return nil
}

// moveBack lets processes go that move or run had pinned; the rules, or their home, take them.
func moveBack(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	facts, s, err := c.Recorded()
	if err != nil {
		return err
	}
	procs, err := c.Host.Proc.Processes(procfs.Options{PIDs: r.PIDs})
	if err != nil {
		return api.Errorf(api.CodeFailed, "", "read the process table: %w", err)
	}
	if err := errors.Join(mayTakeBack(ctx, c, r, procs), freeze.MayLeave(c, facts, s, procs...)); err != nil {
		return err
	}
	pins := slices.Clone(s.Pins)
	for _, pid := range r.PIDs {
		i := slices.IndexFunc(procs, func(p procfs.Process) bool { return p.PID == pid })
		before := len(pins)
		pins = slices.DeleteFunc(pins, func(p state.Pin) bool { return i >= 0 && p.Process == procs[i].ID })
		if len(pins) < before {
			continue
		}
		// One that no rule claims, and that only stays where it was born, can be sent back too.
		p, ok := resident(ctx, c, pid, s)
		if !ok || i < 0 || p != procs[i].ID {
			return api.Errorf(api.CodeUsage,
				"only processes placed by `move` or `run`, and those that no rule claims, can go back",
				"process %d was not placed by hand", pid)
		}
		s.Ended = append(s.Ended, state.Pin{Process: p})
	}
	return repin(ctx, c, r, reply, s, pins)
}

// resident finds a process that is in a group without being claimed.
func resident(ctx context.Context, c *transaction.Controller, pid int, s *state.Documents) (procfs.ID, bool) {
	if s.Applied == nil {
		return procfs.ID{}, false
	}
	l := transaction.OptionsOver(s, s.Applied.Sources)
	l.Lenient = true
	v, err := c.Classify(ctx, l)
	if err != nil {
		return procfs.ID{}, false
	}
	for _, m := range v.Members {
		if m.Process.PID == pid && m.By == snapshot.ByResidence {
			return m.Process.ID, true
		}
	}
	return procfs.ID{}, false
}

// repin records a new list of pins and makes the host follow. Nothing is done when one of the processes named
// could not be moved. The process table is read anew: what was forked since comes along.
func repin(
	ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome, s *state.Documents,
	pins []state.Pin, named ...procfs.Process,
) error {
	if s.Applied == nil {
		return transaction.NotApplied()
	}
	l := transaction.OptionsOver(s, s.Applied.Sources)
	l.Pins, l.Lenient = pins, true
	for _, p := range s.Pins { // one that is no longer pinned goes back
		if !slices.ContainsFunc(pins, func(kept state.Pin) bool { return kept.Process == p.Process }) {
			l.Ended = append(l.Ended, p)
		}
	}
	v, err := c.View(ctx, l)
	if err != nil {
		return err
	}
	for _, p := range named {
		if err := movable(v, p, r.Group); err != nil {
			return err
		}
	}
	if r.DryRun {
		return c.Run(ctx, v, r, 0, reply)
	}
	return c.Commit(r, reply, map[string]any{state.DocPins: pins}, func() error {
		if r.Group == "" { // back
			return c.Run(ctx, v, r, 0, reply)
		}
		return c.RunOthers(ctx, v, r, 0, reply, nil, r.Group)
	})
}

// movable says why a plan leaves a process where it is although it is to be in a group.
func movable(v *transaction.View, p procfs.Process, group string) error {
	if unit := v.Layout.Stuck(&p, group); unit != "" {
		return api.Errorf(api.CodeRefused, "nothing was moved",
			"move process %d (%s): it is the main process of %s, which would take its end for the unit's", p.PID,
			p.Comm, unit)
	}
	if v.Layout.Placed(&p, group) || slices.ContainsFunc(v.Plan.Steps,
		func(s plan.Step) bool { return s.Moves() && s.PID() == p.ID }) {
		return nil
	}
	why := "the group is not in force on this host"
	for _, n := range v.Plan.Notes {
		if n.PID == p.PID {
			why = n.Text
		}
	}
	return api.Errorf(api.CodeRefused, "nothing was moved", "move process %d (%s): %s", p.PID, p.Comm, why)
}

// chosen finds the processes a person named, with all their descendants if asked.
func chosen(all []procfs.Process, pids []int, tree bool) ([]procfs.Process, error) {
	children := map[int][]procfs.Process{}
	byPID := map[int]procfs.Process{}
	for _, p := range all {
		byPID[p.PID] = p
		children[p.PPID] = append(children[p.PPID], p)
	}
	var found []procfs.Process
	seen := map[int]bool{}
	var add func(p procfs.Process)
	add = func(p procfs.Process) {
		if seen[p.PID] {
			return
		}
		seen[p.PID] = true
		found = append(found, p)
		if tree {
			for _, child := range children[p.PID] {
				add(child)
			}
		}
	}
	for _, pid := range pids {
		p, ok := byPID[pid]
		if !ok {
			return nil, api.Errorf(api.CodeUsage, "`bulkhead status --orphans` and ps(1) list processes",
				"no process %d", pid)
		}
		add(p)
	}
	return found, nil
}

// mayTakeBack refuses an owner to let processes go that are not its own.
func mayTakeBack(ctx context.Context, c *transaction.Controller, r api.Request, procs []procfs.Process) error {
	if r.Caller == nil {
		return nil
	}
	v, _, err := c.Membership(ctx)
	if err != nil {
		return err
	}
	return access.MayTake(r.Caller, v.Snapshot, c.Host, procs...)
}
