package resolve

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
)

// spreadWeights gives the weights of roles, and those for all devices, to the disks on which some group asks for one by
// name: no disk gets another scheduler for a default. A role's holds, too, where a weight for all devices found a disk
// that weighs already.
func spreadWeights(groups []*policy.Group) {
	var asked policy.Settings // one for each disk, one that names it before one that found it
	policy.EachGroup(groups, func(g *policy.Group) {
		for _, s := range g.Settings.All(policy.KeyIOWeight) {
			at := slices.IndexFunc(asked, func(o policy.Setting) bool { return o.Dev == s.Dev })
			switch {
			case s.Dev == "":
			case at < 0:
				asked = append(asked, s)
			case asked[at].On == "":
				asked[at] = s
			}
		}
	})
	if len(asked) == 0 {
		return
	}
	policy.EachGroup(groups, func(g *policy.Group) {
		i := slices.IndexFunc(g.Settings, func(s policy.Setting) bool {
			return s.Key == policy.KeyIOWeight && s.On == "" && s.Dev == ""
		})
		if i < 0 {
			return
		}
		defaults := g.Settings[i]
		kept := slices.Delete(slices.Clone(g.Settings), i, i+1)
		for _, of := range asked {
			if _, has := kept.Get(policy.KeyIOWeight, of.Dev); !has && (of.On != "" || defaults.FromRole()) {
				one := defaults
				one.Dev, one.Via, one.On = of.Dev, of.Via, of.On
				kept = append(kept, one)
			}
		}
		kept.Sort()
		g.Settings = kept
	})
}

// resolveWeight finds the disks that a weight is for, and what holds it there. A role's is left for spreadWeights.
func (r weights) resolveWeight(s policy.Setting, group string) policy.Settings {
	switch {
	case s.FromRole():
		return policy.Settings{s}
	case s.On == "":
		return r.weighing(s, group)
	}
	var all policy.Settings
	for _, l := range r.weighed(s) {
		one := s
		via, why, hint := r.weigh(l)
		if via == "" {
			r.Fail(s.TargetPos(), hint, "io.weight on %s: %s", s.On, why)
			one.Lost = r.Last()
			return policy.Settings{one}
		}
		one.Dev, one.Via, one.Why = l.Device.Number, via, why
		r.note(s.TargetPos(), group, "io.weight on %s is held at %s: %s", s.On, l, why)
		all = append(all, one)
	}
	if len(all) == 0 {
		s.Lost = r.Last()
		return policy.Settings{s}
	}
	return all
}

// weighing gives a weight that names no disk to those that weigh already, whoever made them. It changes no disk, and
// what is left of it, without a device, is for spreadWeights.
func (r weights) weighing(s policy.Setting, group string) policy.Settings {
	all := policy.Settings{s}
	var others []string
	for _, l := range r.allDisks(s) {
		via, why, _ := r.weigh(l)
		d := l.Device
		switch {
		case via == policy.ViaIOCost && d.Cost.On(), via == policy.ViaBFQ && d.Scheduler == blockdev.BFQ,
			via == policy.ViaCFQ && d.Scheduler == blockdev.CFQ:
			one := s
			one.Dev, one.Via, one.Why = d.Number, via, why
			all = append(all, one)
		case via != "":
			others = append(others, l.Name)
		}
	}
	if len(others) > 0 && len(all) > 1 { // where none weighs, the table of limits says so
		r.note(s.Pos, group, "io.weight without `on` changes no disk, and is not held on %s: `on: DISK` chooses one, "+
			"and plan then says what changes there", strings.Join(others, ", "))
	}
	return all
}

// allDisks are all disks that requests go to.
func (r weights) allDisks(s policy.Setting) []*blockdev.Layer {
	storage := r.storage(s)
	if storage == nil {
		return nil
	}
	var disks []*blockdev.Layer
	targets := r.targets()
	for _, d := range r.facts.Devices {
		if targets[d.Number] {
			disks = append(disks, storage.Of(d.Number))
		}
	}
	return disks
}

// weighed are the disks of a target at which requests can be weighed: those at the bottom. nil after a problem.
func (r weights) weighed(s policy.Setting) []*blockdev.Layer {
	l := r.layer(s)
	if l == nil {
		return nil
	}
	tops, ok := r.tops(s, l)
	if !ok {
		return nil
	}
	var disks []*blockdev.Layer
	for _, top := range tops {
		below := []*blockdev.Layer{top}
		if top.Kind.Layered() && top.Kind != blockdev.Multipath {
			if s.Layer == policy.LayerTop {
				r.Fail(s.TargetPos(), "leave `layer` out: the disks below are weighed",
					"io.weight on %s: neither iocost nor BFQ weighs at %s: it has no queue of requests", s.On, top)
				return nil
			}
			below = top.Drives(auxiliary...)
		}
		for _, b := range below {
			disk := r.whole(s, b)
			if disk == nil {
				return nil
			}
			if !slices.Contains(disks, disk) {
				disks = append(disks, disk)
			}
		}
	}
	if len(disks) == 0 {
		r.Fail(s.TargetPos(), r.disksHint(), "io.weight on %s: the disks below %s cannot be told", s.On, l)
	}
	return disks
}

// weigh chooses what holds weights on a disk, and says why; via is "" where nothing can.
func (r weights) weigh(l *blockdev.Layer) (via, why, hint string) {
	d := l.Device
	h, mounted := r.facts.HierarchyOf("blkio")
	switch {
	case !mounted:
		return "", "there is no io controller on this host", ""
	case d.Schedulers == nil:
		return "", fmt.Sprintf("%s has no queue of requests, at which iocost or BFQ could weigh", l.Name), "name a disk"
	}
	iocost := h.Version == 2 && r.facts.IOCost
	if model := r.modelOf(l); iocost && model != nil {
		if d.Scheduler == blockdev.BFQ {
			return "", fmt.Sprintf("host.io has a model of %s, for iocost, and its scheduler is BFQ, which weighs too",
					l.Name),
				"take the model out, or give the disk another scheduler"
		}
		return policy.ViaIOCost, "iocost weighs there, as host.io has a model of the disk", ""
	}
	if iocost && d.Cost.On() {
		return policy.ViaIOCost, "iocost weighs there, which somebody has set up", ""
	}
	return r.byScheduler(d, h.Version, iocost)
}

// byScheduler is weigh where it is left to the disk's scheduler.
func (r weights) byScheduler(d *blockdev.Device, version int, iocost bool) (via, why, hint string) {
	const limit = "limit the others instead: `read: {…}`, `write: {…}`"
	switch {
	case d.Scheduler == blockdev.BFQ:
		return policy.ViaBFQ, "its scheduler is BFQ, which weighs", ""
	case r.facts.BFQ && iocost:
		return policy.ViaBFQ,
			fmt.Sprintf("BFQ becomes its scheduler in place of %s and weighs, as host.io has no model of the "+
				"disk for iocost", d.Scheduler), ""
	case r.facts.BFQ:
		return policy.ViaBFQ, fmt.Sprintf("BFQ becomes its scheduler in place of %s and weighs", d.Scheduler), ""
	case version == 1 && slices.Contains(d.Schedulers, blockdev.CFQ):
		return policy.ViaCFQ, "the scheduler CFQ weighs", ""
	case iocost:
		return "", "this kernel has no BFQ, and host.io has no model of the disk for iocost",
			"`bulkhead discover disks --measure PATH` prints a model for host.io, with which iocost can weigh"
	case version == 1:
		return "", "this kernel has neither BFQ nor CFQ, and iocost is of cgroup v2", limit
	}
	return "", "this kernel has neither iocost nor BFQ", limit
}

// modelOf is the model that the policy has of one disk.
func (r weights) modelOf(l *blockdev.Layer) *policy.Model {
	if r.Host == nil || r.disks == nil {
		return nil
	}
	for _, c := range r.Host.IO {
		if c.Model == nil {
			continue
		}
		of := r.layer(policy.Setting{Key: "host.io", On: c.On, Pos: c.Pos})
		if of == nil {
			continue // reported
		}
		if drives := of.Drives(auxiliary...); len(drives) == 1 && drives[0] == l {
			return c.Model
		}
	}
	return nil
}
