package transaction

import (
	"context"
	"maps"
	"slices"

	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/disks"
	"bulkhead/internal/live"
	"bulkhead/internal/plan"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
)

// Reader takes snapshots of the host.
func (c *Controller) Reader() *snapshot.Reader {
	c.reads.once.Do(func() {
		c.reads.reader = &snapshot.Reader{
			Host: c.Host, Store: c.Store, Log: c.Log, Exe: c.exe, Local: c.IsHere(), Tree: c.TreeOf, Manager: c.Manager,
		}
	})
	return c.reads.reader
}

// View looks at the host through a policy. Problems of the policy, also against this host, come
// back as policy.Problems.
func (c *Controller) View(ctx context.Context, l ViewOptions) (*View, error) {
	v, err := c.Classify(ctx, l)
	if err != nil {
		return nil, err
	}
	if err := c.Observe(ctx, v, l); err != nil {
		return nil, err
	}
	return v, nil
}

// Observe adds to a view what the kernel holds of its groups, and plans.
func (c *Controller) Observe(ctx context.Context, v *View, l ViewOptions) error {
	seen, err := c.Reader().Observe(ctx, v.Snapshot)
	if err != nil { // v stays as it was: who has it goes on with its members
		return err
	}
	v.Snapshot, v.quick = seen, l.Cache != nil
	if err := c.ReadTuning(ctx, v); err != nil {
		c.Log.Warn("a setting of the kernel cannot be read", "err", err)
	}
	v.MakePlan()
	if err := v.ReadWanted(ctx); err != nil {
		c.Log.Warn("a value that is wanted cannot be read", "err", err)
	}
	for _, id := range slices.Sorted(maps.Keys(v.Unlaid)) {
		v.Plan.Notes = append(v.Plan.Notes, v.Unlaid[id])
	}
	if l.Shares { // somebody reads the plan
		v.Plan.Notes = append(v.Plan.Notes, overrulings(c, v)...)
		v.Plan.Notes = append(v.Plan.Notes, disks.LogNotes(c.Host, v.Snapshot)...)
	}
	if l.Cache == nil { // somebody reads it
		v.Plan.Notes = append(v.Plan.Notes, void(v.Snapshot)...)
	}
	return nil
}

// Classify does the part of a view that reads no knob: facts, processes, groups, membership.
func (c *Controller) Classify(ctx context.Context, l ViewOptions) (*View, error) {
	l.At, l.Self = c.or(l.At), c.Agent
	s, err := c.Reader().Members(ctx, l.Options)
	if s == nil {
		return nil, err
	}
	v := &View{Snapshot: s, Released: l.Released, askNodes: l.AskNodes, use: l.Use, Conflicts: l.Conflicts,
		Actuators: c.actuators(s.Tree, s.Facts, false)}
	if err != nil {
		return v, err
	}
	if l.Live {
		v.live = live.New(c.Host, s.Instances)
	}
	v.Release(l.LeftAlone...)
	v.Leave(l.At)
	return v, nil
}

// Current looks at the host through the applied policy with everything laid over it.
func (c *Controller) Current(ctx context.Context, l ViewOptions) (*View, *state.Documents, error) {
	v, s, err := belonging(ctx, c, &l)
	if err != nil {
		return nil, s, err
	}
	if err := c.Observe(ctx, v, l); err != nil {
		return nil, s, err
	}
	return v, s, nil
}

// Membership is current for who needs to know groups and their members alone: no limit is read, and nothing is planned.
func (c *Controller) Membership(ctx context.Context) (*View, *state.Documents, error) {
	return belonging(ctx, c, &ViewOptions{})
}

// belonging fills in what is applied and recorded, and looks who belongs where.
func belonging(ctx context.Context, c *Controller, l *ViewOptions) (*View, *state.Documents, error) {
	if l.Facts == nil {
		facts, err := c.Host.Facts()
		if err != nil {
			return nil, nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
		}
		l.Facts = facts
	}
	s, err := c.LoadState(l.Facts.BootID, c.or(l.At))
	if err != nil {
		return nil, nil, err
	}
	if s.Applied == nil {
		return nil, s, NotApplied()
	}
	facts, shares, at, looks := l.Facts, l.Shares, l.At, l.Live
	*l = OptionsOver(s, s.Applied.Sources)
	l.Facts, l.Shares, l.At, l.Live, l.Lenient = facts, shares, at, looks, true
	v, err := c.Classify(ctx, *l)
	if err != nil {
		return nil, s, err
	}
	return v, s, nil
}

// void notes what is asked for and has no effect, by the policy and by what is laid over it.
func void(s *snapshot.Snapshot) (notes []plan.Note) {
	for _, n := range append(classify.UnknownNames(s.Policy, s.Rules), s.Remarks()...) {
		if n.Void {
			notes = append(notes, plan.Note{Group: n.Group, Key: n.Key, Dev: n.Dev, Text: n.Text, Void: true})
		}
	}
	return notes
}
