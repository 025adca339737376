// Package notes says what a person should know of a plan beside its steps: what of host.reserve cannot be kept, whom
// host.others gathers, and what limits cost or harm.
package notes

import (
	"fmt"
	"strings"

	"bulkhead/internal/classify"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Writer adds notes and refusals to a plan.
type Writer struct {
	in  *plan.Input
	d   *desired.State
	out *plan.Plan
}

// For gives a Writer for a plan to what is wanted. The plan's CPU shares are known.
func For(in *plan.Input, d *desired.State, out *plan.Plan) *Writer { return &Writer{in, d, out} }

// checkReserve refuses a reserve that leaves nothing for the groups.
func (p *Writer) checkReserve() {
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

// Reserve refuses a reserve that leaves nothing for the groups. It says how far host.reserve is kept where no root
// group holds all groups together: by limits of the outermost groups that leave it, or by the weights of what is
// outside of them. Of a root group whose quota keeps it, it says what that costs.
func (p *Writer) Reserve() {
	p.checkReserve()
	reserve := p.in.Host.Reserve
	total := policy.Cores(len(p.in.Facts.CPUs)) * policy.One
	if p.d.Layout.Has(layout.RootGroup) {
		if s, _ := p.d.Forest.Nodes[0].Settings.Get(policy.KeyCPULimit, ""); s.Value != nil {
			p.out.Note(layout.RootGroup, policy.KeyCPULimit,
				"host.reserve is kept by a quota over all groups, which stops all of them for milliseconds in "+
					"each period when they want more: a cpu.limit for every outermost group, together no more than "+
					"%s cores, keeps it without", total-reserve.CPU)
		}
		return
	}
	if reserve.CPU > 0 && !p.d.Forest.Bounds(policy.KeyCPULimit, int64(total-reserve.CPU)) {
		left := total.Float()
		for _, s := range p.out.Shares {
			if layout.ParentGroup(s.Group) == layout.RootGroup && !classify.IsOthers(s.Group) {
				left -= s.Guaranteed
			}
		}
		if left < reserve.CPU.Float() && len(p.out.Shares) > 0 {
			p.out.Notes = append(p.out.Notes, plan.Note{Key: policy.KeyCPULimit, NotEnforced: true, Text: fmt.Sprintf(
				"host.reserve asks for %s cores for the rest of the host, which gets %.2f when every group wants all "+
					"there is: "+
					"give every outermost group a cpu.limit, together no more than %s cores, or lower their weights; "+
					"with host.root a quota over all groups keeps it, and stops them for milliseconds in each period",
				reserve.CPU, left, total-reserve.CPU)})
		}
	}
	if kept := layout.ReservedMemory(p.in.Facts, p.in.Host); kept > 0 {
		if left := policy.Bytes(p.in.Facts.MemTotal) - kept; !p.d.Forest.Bounds(policy.KeyMemoryMax, int64(left)) {
			p.out.Notes = append(p.out.Notes, plan.Note{Key: policy.KeyMemoryMax, NotEnforced: true, Text: fmt.Sprintf(
				"host.reserve asks for %s of memory for the rest of the host, and nothing keeps it: %s; "+
					"give every outermost group a memory.max, together no more than %s, or all of them one by "+
					"host.root",
				kept.Human(), p.unbounded(policy.KeyMemoryMax), left.Human())})
		}
	}
}

// unbounded names the outermost groups without a limit; when all have one, they come to too much together.
func (p *Writer) unbounded(key policy.Key) string {
	var names []string
	for _, n := range p.d.Forest.Nodes[0].Children {
		if classify.IsOthers(n.Path) {
			continue
		}
		if setting, ok := n.Settings.Get(key, ""); !ok || setting.Value == policy.Value(policy.Unlimited{}) {
			names = append(names, n.Path)
		}
	}
	if len(names) == 0 {
		return "the limits of the groups come to more together"
	}
	return strings.Join(names, ", ") + " without a limit"
}
