package transaction

import (
	"context"
	"maps"

	"bulkhead/internal/apply"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/systemd/unitfiles"
)

// actuators are those of a host, for a release or another change. systemd is asked for settings of services alone. A
// kind that is new has its line here.
func (c *Controller) actuators(t *cgroup.Tree, f *host.Facts, releasing bool) change.Actuators {
	h := c.Host
	all := change.Actuators{
		cgroup.KindFile: knob.Files{Tree: t}, cgroup.KindControllers: cgroup.Controllers{Tree: t},
		cgroup.KindOwner: cgroup.Owners{Tree: t}, cgroup.KindOption: cgroup.MountOptions{Tree: t},
		blockdev.KindQueue:      blockdev.Queues{Block: h.Block},
		procfs.KindScore:        procfs.Scores{Processes: h.Proc},
		unitfiles.KindDropIn:    unitfiles.DropIns{Files: unitfiles.Mute{}},
		unitfiles.KindOverrides: unitfiles.Overrides{Files: unitfiles.Mute{}},
	}
	tuned := c.tunable()
	tuned.Systemd, tuned.SetLimit, tuned.Outside = services{c, f, releasing}, c.SetLimit, sandbox{c, f}
	maps.Copy(all, tuned.Actuators())
	return all
}

// tunable is the host as actuators of settings need it, but for what asks systemd.
func (c *Controller) tunable() tunable.Host {
	return tunable.Host{Root: c.Host.Root, Dir: c.writable(), Remount: c.Remount, UpdateLoader: c.UpdateLoader,
		Reread: c.Reread, ChangePolicy: c.ChangePolicy, Labels: c.Labels}
}

// writable is the directory of the host's files that may be written: "/", that of a test's host, or none.
func (c *Controller) writable() string {
	if c.IsHere() || c.model {
		return c.Root
	}
	return ""
}

// Runner is the executor of plans on this host.
func (c *Controller) Runner(ctx context.Context, v *View) *apply.Runner {
	store := c.Store
	if c.Scratch != nil {
		store = c.Scratch
	}
	r := &apply.Runner{
		Files: v.Tree, Dirs: v.Tree, Members: v.Tree, Processes: c.Host.Proc,
		Actuators: c.actuators(v.Tree, v.Facts, v.Releasing), Journal: store, Boot: v.Facts.BootID, Log: c.Log,
		AfterStep: c.AfterStep,
	}
	if m, err := c.Manager(ctx, v.Facts); m != nil && err == nil && (v.Systemd == nil || !v.Systemd.Mute) {
		u := units{m, v.Tree, v.Facts}
		r.Units = u
		r.Actuators[unitfiles.KindDropIn] = unitfiles.DropIns{Files: unitfiles.Files{Manager: m}}
		r.Actuators[unitfiles.KindOverrides] = unitfiles.Overrides{Files: unitfiles.Files{Manager: m}}
	}
	if c.IsHere() {
		r.Network, r.Guard = &network{}, guard(ctx, c, peersOf(v), v.Releasing)
	}
	return r
}
