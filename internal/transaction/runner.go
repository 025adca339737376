package transaction

import (
	"context"

	"bulkhead/internal/apply"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/systemd/unitfiles"
)

// Runner is the executor of plans on this host.
func (c *Controller) Runner(ctx context.Context, v *View) *apply.Runner {
	store := c.Store
	if c.Scratch != nil {
		store = c.Scratch
	}
	r := &apply.Runner{
		Files: v.Tree, Dirs: v.Tree, Members: v.Tree, Processes: c.Host.Proc,
		Actuators: change.Actuators{
			cgroup.KindFile: knob.Files{Tree: v.Tree}, cgroup.KindControllers: cgroup.Controllers{Tree: v.Tree},
			cgroup.KindOwner: cgroup.Owners{Tree: v.Tree}, cgroup.KindOption: cgroup.MountOptions{Tree: v.Tree},
			blockdev.KindQueue:      blockdev.Queues{Block: c.Host.Block},
			procfs.KindScore:        procfs.Scores{Processes: c.Host.Proc},
			unitfiles.KindDropIn:    unitfiles.DropIns{Files: unitfiles.Mute{}},
			unitfiles.KindOverrides: unitfiles.Overrides{Files: unitfiles.Mute{}},
		},
		Journal: store, Boot: v.Facts.BootID, Log: c.Log, AfterStep: c.AfterStep,
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
