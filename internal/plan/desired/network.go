package desired

import (
	"slices"

	"bulkhead/internal/classify"
	"bulkhead/internal/knob"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
)

// SlotsOf numbers the groups that have limits on interfaces. One whose interface is gone for now keeps its number.
func SlotsOf(in *plan.Input) (map[string]netshape.Slot, error) {
	var names []string
	groups := in.InForce()
	for _, g := range in.Classified.Groups {
		_, had := in.Network.Slots[g.Path]
		if wanted := slices.ContainsFunc(groups, func(o classify.Group) bool { return o.Path == g.Path }); had ||
			wanted && layout.LimitsNetwork(g.Settings) {
			names = append(names, g.Path)
		}
	}
	return netshape.Slots(in.Network.Slots, names)
}

// classesOf gives the numbers by which net_cls tells the groups apart, where the kernel can sort by them.
func classesOf(in *plan.Input) map[string]uint32 {
	if in.Network == nil || !in.Network.Has.Has(netshape.HasNetCls) || !knob.SortsByNetCls(in.Facts) {
		return nil
	}
	slots, err := SlotsOf(in)
	if err != nil { // networkSteps refuses it
		return nil
	}
	classes := make(map[string]uint32, len(slots))
	for group, slot := range slots {
		classes[group] = uint32(slot.Class())
	}
	return classes
}
