// Package hostwide plans what groups need of the whole host: schedulers and cost models of disks, for weights on them,
// and the way in which the kernel moves processes.
package hostwide

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
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
	wishes, top := diskWishes(in, t), plan.DisksAt(in.Facts)
	for _, file := range slices.SortedFunc(maps.Keys(wishes), func(a, b cgroup.File) int {
		// What was given back last comes first: nothing throttles write-back behind the back of what weighs.
		return cmp.Or(strings.Compare(a.Key, b.Key),
			slices.Index(plan.DiskFiles, b.Name)-slices.Index(plan.DiskFiles, a.Name))
	}) {
		w := wishes[file]
		d, known := in.Facts.Device(file.Key)
		if now := diskNow(&d, file.Name); known && !knob.DiskRow(file.Name).Same(w.value, now) {
			step := diskStep(top, file, w.group, now, w.value, w.why+": "+plan.Reason(w.setting))
			step.Setting = policy.KeyIOWeight
			out.Steps = append(out.Steps, step)
		}
	}
}

// diskWishes is what the groups' weights need of the disks. One that names no disk takes them as they are.
func diskWishes(in *plan.Input, t *layout.Forest) map[cgroup.File]diskWish {
	wishes, top := map[cgroup.File]diskWish{}, plan.DisksAt(in.Facts)
	for _, n := range t.Nodes {
		for _, s := range n.Settings.All(policy.KeyIOWeight) {
			wish := func(file, value, why string) {
				at := cgroup.File{Dir: top, Name: file, Key: s.Dev}
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
	files := slices.SortedFunc(maps.Keys(in.Observed.Originals.Disks), func(a, b cgroup.File) int {
		return cmp.Or(strings.Compare(a.Key, b.Key),
			slices.Index(plan.DiskFiles, a.Name)-slices.Index(plan.DiskFiles, b.Name))
	})
	for _, f := range files {
		row, before := knob.DiskRow(f.Name), in.Observed.Originals.Disks[f]
		d, known := in.Facts.Device(f.Key)
		if _, wanted := wishes[f]; wanted || !known || row == nil {
			continue
		}
		now := diskNow(&d, f.Name)
		// The kernel itself may have changed the throttling with the scheduler: that is only known when it is back.
		if !row.Same(row.Parse(before), now) || f.Name == cgroup.QueueWriteBack {
			out.Steps = append(out.Steps, diskStep(f.Dir, f, layout.RootGroup, now, row.Parse(before), why))
		}
	}
}

func diskStep(dir cgroup.Dir, f cgroup.File, group, from, to, why string) plan.Step {
	row := knob.DiskRow(f.Name)
	return plan.Step{Op: plan.OpWrite, Group: group, Dir: dir, File: f.Name, Key: f.Key, Old: row.Parse(from), New: to,
		Undo: row.Parse(from), Reason: why}
}
