// Package hostwide plans what groups need of the whole host: schedulers and cost models of disks, for weights on them,
// and the way in which the kernel moves processes.
package hostwide

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// diskNow is what a file holds of a disk.
func diskNow(d *blockdev.Device, file string) string {
	switch file {
	case knob.CostQoS:
		return d.Cost.QoS
	case knob.CostModel:
		return d.Cost.Model
	case cgroup.QueueScheduler:
		return d.Scheduler
	}
	return d.WriteBack
}

// diskWish is what a file is to hold of a disk, and who asks.
type diskWish struct {
	value   string
	setting policy.Setting
	group   string
	why     string
}

// WeighDisks gives disks what the weights of the groups need.
func WeighDisks(in *plan.Input, t *layout.Forest, out *plan.Plan) {
	wishes := diskWishes(in, t)
	// What was given back last comes first: nothing throttles write-back behind the back of what weighs.
	for _, target := range inOrder(wishes, -1) {
		w, file := wishes[target], plan.FileOf(target)
		d, known := in.Facts.Device(file.Key)
		if now := diskNow(&d, file.Name); known && !knob.DiskRow(file.Name).Same(w.value, now) {
			step := diskStep(target, w.group, now, w.value, w.why+": "+plan.Reason(w.setting))
			step.Setting = policy.KeyIOWeight
			out.Steps = append(out.Steps, step)
		}
	}
}

// diskWishes is what the groups' weights need of the disks. One that names no disk takes them as they are.
func diskWishes(in *plan.Input, t *layout.Forest) map[change.Target]diskWish {
	wishes := map[change.Target]diskWish{}
	h, _ := in.Facts.HierarchyOf("blkio") // files of disks stand at its top
	for _, n := range t.Nodes {
		for _, s := range n.Settings.All(policy.KeyIOWeight) {
			wish := func(file, value, why string) {
				at := cgroup.File{Dir: cgroup.Dir{Hierarchy: h.ID, Path: "/"}, Name: file, Key: s.Dev}.Target()
				if _, asked := wishes[at]; !asked {
					wishes[at] = diskWish{value, s, n.Path, why}
				}
			}
			d, known := in.Facts.Device(s.Dev)
			if !known || s.On == "" {
				continue
			}
			model := modelOf(in, s.Dev)
			switch {
			case s.Via == policy.ViaIOCost && model != nil:
				wish(knob.CostModel, model.Parameters(), "the model of the disk that host.io has, for iocost")
				wish(knob.CostQoS, "enable=1", "iocost weighs requests to the disk")
			case s.Via == policy.ViaBFQ:
				wish(cgroup.QueueScheduler, blockdev.BFQ, "the scheduler BFQ weighs requests to the disk")
			case s.Via == policy.ViaCFQ:
				wish(cgroup.QueueScheduler, blockdev.CFQ, "the scheduler CFQ weighs requests to the disk")
			default:
				continue
			}
			if d.WriteBack != "" {
				wish(cgroup.QueueWriteBack, "0", "the kernel's own write-back throttling goes by no weights")
			}
		}
	}
	return wishes
}

// modelOf is the model that the policy has of a device.
func modelOf(in *plan.Input, dev string) *policy.Model {
	for _, c := range in.Host.IO {
		if c.Model != nil && slices.Contains(c.Devices, dev) {
			return c.Model
		}
	}
	return nil
}

// GiveDisksBack puts back what was there before bulkhead first changed it, of the disks that no weight needs any more.
// While one is asked for whose disk cannot be told, all stay as they are.
func GiveDisksBack(in *plan.Input, t *layout.Forest, out *plan.Plan, why string) {
	wishes := diskWishes(in, t)
	for _, n := range t.Nodes {
		for _, s := range n.Settings {
			if s.Key == policy.KeyIOWeight && s.Lost != "" {
				return
			}
		}
	}
	for _, target := range inOrder(in.Observed.Originals.Disks, 1) {
		f, before := plan.FileOf(target), in.Observed.Originals.Disks[target]
		row := knob.DiskRow(f.Name)
		d, known := in.Facts.Device(f.Key)
		if _, wanted := wishes[target]; wanted || !known || row == nil {
			continue
		}
		now := diskNow(&d, f.Name)
		// The kernel itself may have changed the throttling with the scheduler: that is only known when it is back.
		if !row.Same(row.Parse(before), now) || f.Name == cgroup.QueueWriteBack {
			out.Steps = append(out.Steps, diskStep(target, layout.RootGroup, now, row.Parse(before), why))
		}
	}
}

func diskStep(t change.Target, group, from, to, why string) plan.Step {
	from = knob.DiskRow(plan.FileOf(t).Name).Parse(from)
	return plan.Step{Change: change.Of(t, from, to), Group: group, Reason: why}
}

// inOrder sorts what belongs to disks by disk, then in the order of plan.DiskFiles, or for -1 against it.
func inOrder[V any](of map[change.Target]V, direction int) []change.Target {
	return slices.SortedFunc(maps.Keys(of), func(a, b change.Target) int {
		x, y := plan.FileOf(a), plan.FileOf(b)
		return cmp.Or(strings.Compare(x.Key, y.Key),
			direction*(slices.Index(plan.DiskFiles, x.Name)-slices.Index(plan.DiskFiles, y.Name)))
	})
}
