package inspect

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/transaction"
	"bulkhead/internal/verify"
)

// Verifiable is what the limits of a view are compared with.
func Verifiable(v *transaction.View) *verify.Snapshot {
	return &verify.Snapshot{
		Facts: v.Facts, Tree: v.Tree, Layout: v.Layout, Groups: v.Classified.Groups, Members: v.Members,
		Plan: v.Plan, Observed: v.Observed, Actuators: v.Actuators, Network: v.Network, Conflict: v.ConflictOf,
	}
}

// Verify reads every limit of the groups (all of them when none is named) back and compares. It starts nothing. What
// differs is read once more when no change is under way: in the middle of one a new group has no limits yet.
func Verify(ctx context.Context, c *transaction.Controller, groups []string) ([]verify.Reading, error) {
	all, err := readBack(ctx, c, groups)
	if err != nil || !slices.ContainsFunc(all, func(r verify.Reading) bool { return r.Fault() }) {
		return all, err
	}
	lock, err := c.Lock(ctx, "verify", "")
	if err != nil { // not root, or a change that takes long: then it is as it was read
		return all, nil
	}
	defer lock.Release()
	return readBack(ctx, c, groups)
}

// readBack is Verify at one moment.
func readBack(ctx context.Context, c *transaction.Controller, groups []string) ([]verify.Reading, error) {
	v, s, err := c.Current(ctx, transaction.ViewOptions{})
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if !v.HasGroup(g) {
			return nil, transaction.NoGroup(v, g)
		}
	}
	return Verifiable(v).ReadBack(groupsToVerify(v, s.Released, groups), len(groups) == 0 && !s.Released[""]), nil
}

// groupsToVerify are the groups that are not released: the named ones with those below them, or all.
func groupsToVerify(v *transaction.View, released map[string]bool, names []string) []classify.Group {
	return slices.DeleteFunc(slices.Clone(v.Classified.Groups), func(g classify.Group) bool {
		return len(names) > 0 && !policy.Covers(names, g.Path) || policy.Released(released, g.Path)
	})
}

// Probe measures what the kernel enforces of the limits of groups, with short loads of its own. What differs when it is
// read back is among the results, measured or not.
func Probe(ctx context.Context, c *transaction.Controller, o verify.Options) ([]verify.Result, error) {
	if err := o.Check(); err != nil {
		return nil, api.Errorf(api.CodeUsage, "", "%w", err)
	}
	back, err := Verify(ctx, c, o.Groups)
	if err != nil {
		return nil, err
	}
	v, s, err := c.Current(ctx, transaction.ViewOptions{})
	if err != nil {
		return nil, err
	}
	p := verify.Prober{
		Host: c.Host, Self: c.Self, Log: c.Log,
		Start: func(ctx context.Context, group string) (verify.Load, procfs.ID, error) {
			return startLoad(ctx, c, group)
		},
		Ways: func(from netip.Addr) (names []string, err error) {
			err = snapshot.WithNetwork(func(k *netshape.Kernel) error {
				names, err = k.LinksFrom(from)
				return err
			})
			return names, err
		},
		Sweep: func() error { return sweepProbes(c, v.Tree, v.Names, false) },
	}
	return p.Probe(ctx, Verifiable(v), groupsToVerify(v, s.Released, o.Groups), back, o)
}

// startLoad starts this program as a load, which enters the group, if any, as `run` does.
func startLoad(ctx context.Context, c *transaction.Controller, group string) (verify.Load, procfs.ID, error) {
	if len(c.Probe) == 0 {
		return nil, procfs.ID{}, errors.New("there is nothing to start loads with")
	}
	args := slices.Clone(c.Probe)
	if group != "" {
		args = append(args, "--enter", group)
	}
	l, err := probe.Start(ctx, c.Host, args)
	if err != nil {
		return nil, procfs.ID{}, err
	}
	return l, l.ID, nil
}

// sweepProbes removes the directories that probes left below ours, and beside outermost groups.
func sweepProbes(c *transaction.Controller, t *cgroup.Tree, names layout.Names, all bool) error {
	var tops []cgroup.Dir
	outermost := names.IsTop(unitname.TopPrefix) // else a probe at the top is of another bulkhead
	for _, h := range t.Hierarchies() {
		root := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
		children, err := t.Children(root)
		if err != nil {
			return err
		}
		for _, name := range children {
			if _, probe := verify.Maker(name); names.IsTop(name) || probe && outermost {
				tops = append(tops, root.Child(name))
			}
		}
	}
	return verify.Sweeper{Tree: t, Proc: c.Host.Proc, Self: c.Self}.Sweep(tops, all)
}

// SweepBeforeChange does so before a verb that makes or gives back groups. A release also ends probes that run.
func SweepBeforeChange(c *transaction.Controller, verb string) {
	facts, err := c.Host.Facts()
	if err != nil {
		return
	}
	names := transaction.NamesOf(transaction.StateOrNone(c, facts.BootID), c.Reader().Roots(facts))
	if err := sweepProbes(c, c.TreeOf(facts), names, verb == "release"); err != nil {
		c.Log.Warn("remove what a probe left", "err", err)
	}
}
