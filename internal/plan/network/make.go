package network

import (
	"maps"
	"slices"

	"bulkhead/internal/netshape"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
)

// Release adds to a plan the way down for the groups of in.Release.
func Release(in *plan.Input, d *desired.State, out *plan.Plan) {
	n := in.Network
	if n == nil {
		return
	}
	p := &shaper{in, d, out}
	slots := maps.Clone(n.Slots)
	maps.DeleteFunc(slots, func(name string, _ netshape.Slot) bool { return in.Releases(name) })
	for _, dev := range n.Devices {
		w := n.Was[dev.State.Device.Name]
		w.Device, w.Original = dev.State.Device.Name, dev.Original
		w.Groups = slices.DeleteFunc(slices.Clone(w.Groups), func(g netshape.Group) bool { return in.Releases(g.Name) })
		w.Keep = !in.Releases(layout.RootGroup) && (len(w.Groups) > 0 || dev.Original == nil)
		out.Network = append(out.Network, w)
	}
	for _, c := range n.Counters {
		if group := p.ownerOf(netshape.Change{Program: &c}, owners{}); !in.Releases(group) &&
			!slices.Contains(out.Counted, c.Cgroup) {
			out.Counted = append(out.Counted, c.Cgroup)
		}
	}
	out.Slots = slots
	p.shape()
}

// Make adds to a plan what interfaces are to do, and the steps to it.
func Make(in *plan.Input, d *desired.State, out *plan.Plan) {
	n := in.Network
	if n == nil {
		return
	}
	p := &shaper{in, d, out}
	groups := p.in.InForce()
	slots, err := desired.SlotsOf(p.in)
	if err != nil {
		p.out.Refuse(layout.RootGroup, "let groups share a limit by writing it to the group above them", "%v", err)
		return
	}
	wanted, lacks := make([]netshape.Wanted, 0, len(n.Devices)), false
	for _, d := range n.Devices {
		w := p.wantedOf(d, groups, slots)
		lacks = p.lacksPieces(&w) || lacks
		wanted = append(wanted, w)
	}
	if lacks {
		return
	}
	out.Network, out.Slots, out.Counted = wanted, slots, p.countedDirs(groups)
	p.shape()
	p.noteNetwork(wanted)
}
