// Package network plans what interfaces are to do for the groups of a policy: which packets are whose, what each group
// gets, what of that this kernel has the means for, and the steps of package netshape that lead there, or back.
package network

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// riskDrop is that of giving an interface another root or ingress qdisc.
const riskDrop knob.Risk = "drops packets for a moment"

// shaper plans interfaces.
type shaper struct {
	in  *plan.Input
	d   *desired.State
	out *plan.Plan
}

// shape turns what is wanted of all interfaces into steps.
func (p *shaper) shape() {
	n := p.in.Network
	p.out.Directories = n.Directories
	for _, dir := range p.out.Counted {
		if !slices.Contains(n.Directories, dir) {
			p.out.Directories = append(p.out.Directories, dir)
		}
	}
	h := netshape.Host{Wanted: p.out.Network, Count: p.out.Counted, Programs: n.Sorters, Counters: n.Counters}
	for _, d := range n.Devices {
		h.States = append(h.States, d.State)
	}
	steps, err := netshape.PlanHost(h)
	if err != nil {
		p.refuseShapes(err, p.out.Network)
		return
	}
	for _, c := range n.Strays {
		steps = append([]netshape.Step{{Do: c, Why: "the interface that it served is gone"}}, steps...)
	}
	whose := slotOwners(p.out.Slots, p.out.Network)
	for _, s := range steps {
		step := plan.Step{Change: request.Of(s.Do, s.Undo), Group: p.ownerOf(s.Do, whose), Reason: s.Why}
		if s.Do.Regrafts() {
			step.Risk = riskDrop
			step.Reason += "; the kernel drops what is sent through the interface for a moment meanwhile, once: the " +
				"qdisc then stays until `release --all`"
		}
		p.out.Steps = append(p.out.Steps, step)
	}
}

// refuseOn refuses the groups that have limits on an interface: the others need not wait.
func (p *shaper) refuseOn(w netshape.Wanted, hint, format string, args ...any) {
	before := len(p.out.Refusals)
	for _, g := range w.Groups {
		p.out.Refuse(g.Name, hint, format, args...)
	}
	if len(w.Groups) == 0 {
		p.out.Refuse(layout.RootGroup, hint, format, args...)
	}
	for i := range p.out.Refusals[before:] {
		p.out.Refusals[before+i].Device = w.Device
	}
}

// refuseShapes turns what netshape cannot do into refusals.
func (p *shaper) refuseShapes(err error, all []netshape.Wanted) {
	on := func(device string) netshape.Wanted {
		i := slices.IndexFunc(all, func(w netshape.Wanted) bool { return w.Device == device })
		return all[max(i, 0)]
	}
	for _, one := range unjoin(err) {
		var problem *netshape.Problem
		var foreign *netshape.ForeignError
		switch {
		case errors.As(one, &problem) && problem.Group != "":
			w := netshape.Wanted{Device: problem.Device, Groups: []netshape.Group{{Name: problem.Group}}}
			p.refuseOn(w, problem.Hint, "network on %s: %s", problem.Device, problem.Text)
		case errors.As(one, &problem):
			p.refuseOn(on(problem.Device), problem.Hint, "network on %s: %s", problem.Device, problem.Text)
		case errors.As(one, &foreign):
			p.refuseOn(on(foreign.Device),
				"`replace: true` in the network entry takes it over, and puts it back in the end",
				"network on %s: it has what bulkhead did not make, and is left alone: %s", foreign.Device,
				strings.Join(foreign.Found, ", "))
		default:
			p.out.Refuse(layout.RootGroup, "", "network: %v", one)
		}
	}
}

// unjoin gives the errors that were joined, however deep.
func unjoin(err error) []error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return []error{err}
	}
	var all []error
	for _, one := range joined.Unwrap() {
		all = append(all, unjoin(one)...)
	}
	return all
}

// hasClass says whether net_cls tells the packets of a group.
func (p *shaper) hasClass(group string) bool {
	for _, dir := range p.d.Layout.Own(group) {
		if slices.ContainsFunc(p.d.Values[dir], func(v desired.Value) bool { return v.File == knob.FileClassID }) {
			return true
		}
	}
	return false
}

// wantedOf is all that one interface shall do.
func (p *shaper) wantedOf(d plan.NetDevice, groups []classify.Group, slots map[string]netshape.Slot) netshape.Wanted {
	name := d.State.Device.Name
	w := netshape.Wanted{
		Device: name, LinkRate: d.Link, Original: d.Original, Leaf: p.in.Network.Has.Leaf(),
		Reserve: tc.Rate(p.in.Host.Reserve.Network),
	}
	parents := make(map[string]string)
	for _, g := range groups {
		parents[g.Path] = g.Parent
		one := p.shareOn(name, g, slots[g.Path])
		if one == nil {
			one = p.classBelow(w, g, slots[g.Path], parents)
		}
		if one == nil {
			continue
		}
		w.Replace = w.Replace || replaces(g.Settings, name)
		for one.Parent = g.Parent; one.Parent != "" &&
			!slices.ContainsFunc(w.Groups, func(o netshape.Group) bool { return o.Name == one.Parent }); {
			one.Parent = parents[one.Parent]
		}
		w.Groups = append(w.Groups, *one)
	}
	w.Groups = append(w.Groups, p.keptShares(d, w, slots)...)
	// What somebody else had there comes back as soon as no group needs the interface; our own qdiscs stay, as taking
	// them away drops packets.
	w.Keep = len(w.Groups) > 0 || d.Governed && d.Original == nil
	return w
}

// classBelow is the class of a group that has limits on other interfaces, and is below one that has some here: its
// packets bear its own number everywhere, so without a class of that number they would pass by the limit of the group
// above.
func (p *shaper) classBelow(w netshape.Wanted, g classify.Group, slot netshape.Slot,
	parents map[string]string) *netshape.Group {
	if slot == 0 || slices.ContainsFunc(g.Settings,
		func(s policy.Setting) bool { return s.Key.OfNetwork() && s.Network.Sort == policy.SortPorts }) {
		return nil // those that are told by ports bear the number of the group above
	}
	one := netshape.Group{Name: g.Path, Slot: slot}
	p.tell(&one)
	if one.Cgroup == "" && !one.NetCls {
		return nil
	}
	for above := g.Parent; above != ""; above = parents[above] {
		i := slices.IndexFunc(w.Groups, func(o netshape.Group) bool {
			return o.Name == above &&
				o.Egress != (netshape.Share{})
		})
		if i >= 0 {
			one.Egress.Max = cmp.Or(w.Groups[i].Egress.Max, w.LinkRate)
			return &one
		}
	}
	return nil
}

// tell chooses how the packets of a group are told from others.
func (p *shaper) tell(one *netshape.Group) {
	switch dirs := p.programDirs(one.Name); {
	case p.hasClass(one.Name):
		one.NetCls = true
	case len(dirs) > 0 && p.programs():
		one.Cgroup, one.More = dirs[0], dirs[1:]
	}
}

// keptShares are those of groups that are left out of this plan though they are in force: what was put in force last
// stays, where it can. A group that was released has none.
func (p *shaper) keptShares(d plan.NetDevice, w netshape.Wanted, slots map[string]netshape.Slot) []netshape.Group {
	var kept []netshape.Group
	for _, g := range p.in.Network.Was[w.Device].Groups {
		if p.in.IsReleased(g.Name) && slots[g.Name] == g.Slot {
			kept = append(kept, g)
		}
	}
	w.Groups, w.Keep = slices.Concat(w.Groups, kept), true
	if _, err := netshape.Plan(w, d.State); err != nil {
		return nil
	}
	return kept
}

func replaces(ss policy.Settings, device string) bool {
	return slices.ContainsFunc(ss, func(s policy.Setting) bool {
		return s.Key.OfNetwork() && s.Dev == device &&
			s.Network.Replace
	})
}

// shareOn is what a group gets of an interface; nil is nothing.
func (p *shaper) shareOn(device string, g classify.Group, slot netshape.Slot) *netshape.Group {
	one := netshape.Group{Name: g.Path, Slot: slot, Ports: slices.Clone(p.in.Network.Ports[g.Path])}
	byPorts := false
	for _, s := range g.Settings {
		rate, limited := s.Value.(policy.BitRate)
		if !s.Key.OfNetwork() || s.Dev != device || !limited {
			continue
		}
		*map[policy.Key]*tc.Rate{
			policy.KeyNetworkEgressMin: &one.Egress.Min, policy.KeyNetworkEgressMax: &one.Egress.Max,
			policy.KeyNetworkIngressMin: &one.Ingress.Min, policy.KeyNetworkIngressMax: &one.Ingress.Max,
		}[s.Key] = tc.Rate(rate)
		one.Ports = append(one.Ports, s.Network.PortList()...)
		byPorts = byPorts || s.Network.Sort == policy.SortPorts
	}
	if one.Egress == (netshape.Share{}) && one.Ingress == (netshape.Share{}) {
		return nil
	}
	slices.Sort(one.Ports)
	one.Ports = slices.Compact(one.Ports)
	if !byPorts {
		p.tell(&one)
	}
	return &one
}

func (p *shaper) programDirs(group string) []string {
	return layout.ProgramDirs(p.in.Facts, p.d.Layout, group)
}

// countedDirs are the directories of all groups, once one of them has a limit on an interface.
func (p *shaper) countedDirs(groups []classify.Group) []string {
	if !plan.UsesNetwork(groups) || !p.programs() {
		return nil
	}
	var dirs []string
	for _, g := range groups {
		dirs = append(dirs, p.programDirs(g.Path)...)
	}
	return dirs
}

// owners say whose a change is: by the number of its class, or by the port that a filter is for.
type owners struct {
	slots map[netshape.Slot]string
	ports map[uint16]string
}

func slotOwners(slots map[string]netshape.Slot, all []netshape.Wanted) owners {
	o := owners{slots: make(map[netshape.Slot]string, len(slots)), ports: make(map[uint16]string)}
	for name, slot := range slots {
		o.slots[slot] = name
	}
	for _, w := range all {
		for _, g := range w.Groups {
			for _, port := range g.Ports {
				o.ports[port] = g.Name
			}
		}
	}
	return o
}

// ownerOf finds whose change it is; one of the interface itself belongs to the root group.
func (p *shaper) ownerOf(c netshape.Change, o owners) string {
	if c.Program != nil {
		if h, ok := layout.Unified(p.in.Facts); ok {
			dir := cgroup.Dir{Hierarchy: h.ID, Path: "/" +
				strings.TrimPrefix(strings.TrimPrefix(c.Program.Cgroup, h.Mount), "/")}
			if group, ok := p.d.Layout.Owner[dir]; ok {
				return group
			}
			if group, ok := p.d.Layout.Group(dir); ok {
				return group
			}
		}
	}
	if c.Filter != nil && c.Slot() == 0 {
		return o.ports[c.Filter.Port]
	}
	return o.slots[c.Slot()]
}

// programs says whether BPF programs on cgroup2 directories see the packets of groups.
func (p *shaper) programs() bool {
	return p.in.Network.Has.Has(netshape.HasProgram) && p.in.Facts.BlindedBy == ""
}
