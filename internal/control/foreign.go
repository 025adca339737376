package control

import (
	"context"
	"path"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd/unitname"
)

// hintTaken is what to do about a directory with the name of a group of ours that bulkhead did not make.
func hintTaken(v *View, d cgroup.Dir) string {
	if group, _ := v.Layout.Group(d); group == plan.RootGroup {
		return "give host.root another name, or remove that directory if nobody needs it"
	}
	return "give the group another name, or remove that directory if nobody needs it"
}

// observeOwners tells the directories that somebody else made, and the slices that systemd made by itself.
func (c *Controller) observeOwners(ctx context.Context, v *View, made map[cgroup.Dir]bool) {
	o := &v.Observed
	owns := func(d cgroup.Dir) bool {
		if v.Systemd == nil || v.Systemd.Mute {
			return false // only a release is planned then, and it leaves the directory to systemd
		}
		is, err := c.ownsSlice(ctx, v.Facts, d)
		if err != nil {
			v.unasked, v.Systemd = err, nil
		}
		return is
	}
	for d := range o.Dirs {
		if o.Foreign[d] = d.Path != "/" && !made[d] && !v.Layout.Theirs(d); o.Foreign[d] && v.Layout.Unit(d) != "" {
			o.Foreign[d] = !owns(d) || !v.ours(d)
		}
	}
	o.Made = map[cgroup.Dir]bool{}
	for d := range o.Dirs {
		if made[d] && v.Layout.Theirs(d) && unitname.TypeOf(v.Layout.Unit(d)) == "slice" {
			o.Made[d] = owns(d)
		}
	}
}

// ownsSlice says whether a slice of our name is one that systemd made by itself, for a unit that starts in it. One
// with a file is an administrator's. An error says that systemd could not be asked.
func (c *Controller) ownsSlice(ctx context.Context, f *host.Facts, d cgroup.Dir) (bool, error) {
	unit := path.Base(d.Path)
	if !f.Systemd || unitname.TypeOf(unit) == "" {
		return false, nil
	}
	m, err := c.manager(ctx, f)
	if err != nil {
		return false, err
	}
	u, err := m.Unit(ctx, unit)
	return err == nil && (u.Transient || u.FragmentPath == ""), err
}

// layOut takes over a policy and tells where its groups lie: below root, where an earlier version applied a policy
// that names no root group. former are the root groups of trees that are there.
func (v *View) layOut(resolved *policy.Policy, root string, former []string) {
	v.Policy = resolved
	if root != "" && resolved.Host.Root == "" {
		below := *resolved
		below.Host.Root = root
		v.Policy = &below
	}
	v.Names = plan.Names{Root: v.Policy.Host.Root, Former: former}
}
