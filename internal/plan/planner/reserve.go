package planner

import (
	"fmt"
	"strings"

	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// checkReserve refuses a reserve that leaves nothing for the groups.
func (p *planner) checkReserve() {
	reserve := p.in.Host.Reserve
	if have := policy.Cores(len(p.in.Facts.CPUs)) * policy.One; reserve.CPU > 0 && reserve.CPU >= have {
		p.out.Refuse(layout.RootGroup, "raise the number of CPUs or lower host.reserve",
			"host.reserve keeps %s of the host's %s cores, and leaves none for the groups", reserve.CPU, have)
	}
	if kept, have := layout.ReservedMemory(p.in.Facts, p.in.Host), policy.Bytes(p.in.Facts.MemTotal); kept > 0 &&
		kept >= have {
		p.out.Refuse(layout.RootGroup, "lower host.reserve",
			"host.reserve keeps %s of the host's %s of memory, and leaves none for the groups", kept.Human(),
			have.Human())
	}
}

// noteReserve says how far host.reserve is kept where no root group holds all groups together: by limits of the
// outermost groups that leave it, or by the weights of what is outside of them.
func (p *planner) noteReserve(shares []plan.Share) {
	reserve := p.in.Host.Reserve
	if p.d.Layout.Has(layout.RootGroup) {
		return
	}
	total := policy.Cores(len(p.in.Facts.CPUs)) * policy.One
	if reserve.CPU > 0 && !p.bounds(policy.KeyCPULimit, int64(total-reserve.CPU)) {
		left := total.Float()
		for _, s := range shares {
			if layout.ParentGroup(s.Group) == layout.RootGroup {
				left -= s.Guaranteed
			}
		}
		if left < reserve.CPU.Float() && len(shares) > 0 {
			p.out.Notes = append(p.out.Notes, plan.Note{Key: policy.KeyCPULimit, NotEnforced: true, Text: fmt.Sprintf(
				"host.reserve asks for %s cores for the rest of the host, which gets %.2f when every group wants all "+
					"there is: "+
					"give every outermost group a cpu.limit, together no more than %s cores, or lower their weights; "+
					"with host.root a quota over all groups keeps it, and stops them for milliseconds in each period",
				reserve.CPU, left, total-reserve.CPU)})
		}
	}
	if kept := layout.ReservedMemory(p.in.Facts, p.in.Host); kept > 0 {
		if left := policy.Bytes(p.in.Facts.MemTotal) - kept; !p.bounds(policy.KeyMemoryMax, int64(left)) {
			p.out.Notes = append(p.out.Notes, plan.Note{Key: policy.KeyMemoryMax, NotEnforced: true, Text: fmt.Sprintf(
				"host.reserve asks for %s of memory for the rest of the host, and nothing keeps it: %s; "+
					"give every outermost group a memory.max, together no more than %s, or all of them one by "+
					"host.root",
				kept.Human(), p.unbounded(policy.KeyMemoryMax), left.Human())})
		}
	}
}

// bounds says whether all outermost groups have a limit, and these come to no more than most together. A group that is
// idle takes no CPU from anybody.
func (p *planner) bounds(key policy.Key, most int64) bool {
	sum := int64(0)
	for _, n := range p.d.Forest.Nodes[0].Children {
		idle, asked := n.Settings.Get(policy.KeyCPUIdle, "")
		if key == policy.KeyCPULimit && asked && idle.Value == policy.Flag(true) {
			continue
		}
		setting, _ := n.Settings.Get(key, "")
		switch v := setting.Value.(type) {
		case policy.Cores:
			sum += int64(v)
		case policy.Bytes:
			sum += int64(v)
		default:
			return false
		}
	}
	return sum <= most
}

// unbounded names the outermost groups without a limit; when all have one, they come to too much together.
func (p *planner) unbounded(key policy.Key) string {
	var names []string
	for _, n := range p.d.Forest.Nodes[0].Children {
		if setting, ok := n.Settings.Get(key, ""); !ok || setting.Value == policy.Value(policy.Unlimited{}) {
			names = append(names, n.Path)
		}
	}
	if len(names) == 0 {
		return "the limits of the groups come to more together"
	}
	return strings.Join(names, ", ") + " without a limit"
}
