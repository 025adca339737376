package planner

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
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

// networkMake adds to a plan what interfaces are to do, and the steps to it.
func networkMake(in *plan.Input, d *desired.State, out *plan.Plan) {
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
		step := plan.Step{Op: plan.OpNetwork, Group: p.ownerOf(s.Do, whose), Net: &s.Do, NetUndo: s.Undo, Reason: s.Why,
			Undo: undoWords(s.Undo)}
		if s.Do.Regrafts() {
			step.Risk = riskDrop
			step.Reason += "; the kernel drops what is sent through the interface for a moment meanwhile, once: the " +
				"qdisc then stays until `release --all`"
		}
		p.out.Steps = append(p.out.Steps, step)
	}
}

func undoWords(undo []netshape.Change) string {
	words := make([]string, len(undo))
	for i, u := range undo {
		words[i] = u.String()
	}
	return strings.Join(words, ", then ")
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

// programs says whether BPF programs on cgroup2 directories see the packets of groups.
func (p *shaper) programs() bool {
	return p.in.Network.Has.Has(netshape.HasProgram) && p.in.Facts.BlindedBy == ""
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

// lacksPieces refuses what the kernel has no means for, and takes the second best where there is one.
func (p *shaper) lacksPieces(w *netshape.Wanted) (lacks bool) {
	has := p.in.Network.Has
	if i := slices.IndexFunc(has, func(c netshape.Capability) bool { return c.Verdict == netshape.Unknown }); i >= 0 &&
		len(w.Groups) > 0 {
		p.refuseOn(*w, "docs/install.md says what the agent's unit needs for limits on interfaces",
			"network on %s: whether this kernel has %s could not be tried: %s", w.Device, has[i].Name, has[i].Why)
		return true
	}
	lacks = len(w.Groups) > 0 && p.lost(*w, netshape.HasHTB, "holds the classes",
		"`modprobe sch_htb`, or a kernel with CONFIG_NET_SCH_HTB")
	for i := range w.Groups {
		lacks = p.lacksArrival(*w, &w.Groups[i]) || p.hidden(*w, w.Groups[i]) || lacks
	}
	for _, g := range w.Groups {
		if g.Cgroup == "" && len(g.Ports) == 0 && !g.NetCls && knob.SortsByNetCls(p.in.Facts) {
			lacks = p.lost(*w, netshape.HasNetCls, "tells the group's sockets from others",
				"`modprobe cls_cgroup`, or name the ports that the group listens on: `ports: [3306]`") || lacks
		} else if g.Cgroup == "" && len(g.Ports) == 0 && !g.NetCls && has.Lacks(netshape.HasProgram) {
			lacks = p.lost(*w, netshape.HasProgram, "tells the group's sockets from others",
				"name the ports that the group listens on: `ports: [3306]`") || lacks
		}
	}
	return lacks
}

// hidden refuses a group that is told by its ports below one that is told by a program: the program gives its packets
// the class of that group, and HTB asks no filter any more.
func (p *shaper) hidden(w netshape.Wanted, g netshape.Group) bool {
	if g.Cgroup != "" || g.NetCls || g.Egress == (netshape.Share{}) {
		return false
	}
	for _, above := range w.Groups {
		if _, inside := layout.Below(above.Name, g.Name); inside && above.Name != g.Name && above.Cgroup != "" &&
			above.Egress != (netshape.Share{}) {
			alone := netshape.Wanted{Device: w.Device, Groups: []netshape.Group{g}}
			p.refuseOn(alone, "give both `by: ports`, or neither", "network on %s: what leaves is told by ports, "+
				"and %q above it by a program, which takes all of its packets for its own", w.Device, above.Name)
			return true
		}
	}
	return false
}

// lost refuses the groups of an interface when the kernel was seen to lack a piece.
func (p *shaper) lost(w netshape.Wanted, piece, what, hint string) bool {
	has := p.in.Network.Has
	i := slices.IndexFunc(has, func(c netshape.Capability) bool { return c.Name == piece })
	if i < 0 || has[i].Verdict != netshape.No {
		return false
	}
	p.refuseOn(w, hint, "network on %s: this kernel has no %s, which %s: %s", w.Device, piece, what, has[i].Why)
	return true
}

// lacksArrival takes policing where what arrives cannot be shaped, and refuses where that cannot be either.
func (p *shaper) lacksArrival(w netshape.Wanted, g *netshape.Group) bool {
	gone := missing(p.in.Network.Has, netshape.HasIFB, netshape.HasMirred)
	if g.Ingress == (netshape.Share{}) || len(g.Ports) == 0 || len(gone) == 0 {
		return false
	}
	if g.Cgroup != "" && g.Ingress.Min == 0 {
		p.out.Note(g.Name, policy.KeyNetworkIngressMax,
			"%s: this kernel has no %s, so what arrives is policed and not shaped", w.Device,
			strings.Join(gone, " and no "))
		g.Ports = nil
		return false
	}
	lacks := p.lost(w, netshape.HasIFB, "shapes what arrives", "`modprobe ifb`, or a kernel with CONFIG_IFB")
	return p.lost(w, netshape.HasMirred, "leads what arrives to the virtual NIC",
		"`modprobe act_mirred`, or a kernel with CONFIG_NET_ACT_MIRRED") || lacks
}

func missing(has netshape.Capabilities, pieces ...string) []string {
	return slices.DeleteFunc(pieces, func(name string) bool { return !has.Lacks(name) })
}

// noteNetwork explains what was chosen.
func (p *shaper) noteNetwork(all []netshape.Wanted) {
	for _, w := range all {
		for _, g := range w.Groups {
			p.noteShare(w, g)
		}
		p.noteBlindness(w)
		if w.LinkRate == 0 && w.Reserve > 0 && len(w.Groups) > 0 {
			p.out.Note(layout.RootGroup, "",
				"network on %s: nobody says what its link carries, so host.reserve cannot be kept of it; what "+
					"belongs to no group passes before all groups", w.Device)
		}
		if w.Original != nil && len(w.Groups) > 0 {
			p.out.Note(layout.RootGroup, "",
				"network on %s: the queueing discipline that somebody else gave it comes back when no group needs "+
					"the interface any more", w.Device)
		}
	}
}

// noteBlindness says what net_cls and cgroup2 do to each other on kernels before 5.15.
func (p *shaper) noteBlindness(w netshape.Wanted) {
	byClass := slices.ContainsFunc(w.Groups, func(g netshape.Group) bool { return g.NetCls })
	switch {
	case p.in.Facts.BlindedBy != "" && len(w.Groups) > 0:
		p.out.Note(layout.RootGroup, "",
			"network on %s: %s keeps this kernel (%s) from telling the cgroup2 directory of a socket until the next "+
				"boot; groups are told by net_cls or by ports instead, and their traffic is not counted", w.Device,
			p.in.Facts.BlindedBy, p.in.Facts.Kernel)
	case byClass && blinds(p.in.Facts):
		p.out.Note(layout.RootGroup, "", "network on %s: %s", w.Device, finalBlind)
	}
}

// finalBlind is what a class id does that nobody can undo.
const finalBlind = "the first class id makes this kernel forget the cgroup2 directories of sockets made from then " +
	"on, until the next boot: address filters and accounting that systemd has on units (IPAddressDeny=), and " +
	"firewall rules by cgroup2 path, no longer see them"

// FinalClass is why a write of a class cannot be undone, "" where it can, and for every other file.
func FinalClass(f *host.Facts, row *knob.Row, to string) string {
	if row.File == knob.FileClassID && to != row.Default && blinds(f) {
		return finalBlind
	}
	return ""
}

// blinds says whether class ids of ours do that.
func blinds(f *host.Facts) bool {
	_, both := f.Unified()
	return both && f.BlindedBy == "" && f.Kernel.Major > 0 && !f.Kernel.AtLeast(5, 15)
}

// noteShare says how a group's traffic is told, where it can be; where not, a refusal says so.
func (p *shaper) noteShare(w netshape.Wanted, g netshape.Group) {
	leaf := cmp.Or(w.Leaf, "bfifo")
	if g.Egress != (netshape.Share{}) && (g.Cgroup != "" || g.NetCls || len(g.Ports) > 0) {
		how := "by the ports it listens on: connections that it opens to others are not held"
		switch {
		case g.Cgroup != "":
			how = "by a program on its directory in cgroup2, which sees what its sockets send; sockets that were " +
				"open before it came into the group are not held until they are opened anew (`by: ports` holds those " +
				"of its listening ports)"
		case g.NetCls:
			how = "by net_cls, the class id of its directory: sockets that are open go with their process"
		}
		p.out.Note(g.Name, policy.KeyNetworkEgressMax, "%s: what leaves is told %s; it waits in %s", w.Device, how, leaf)
	}
	switch {
	case g.Ingress == (netshape.Share{}):
	case len(g.Ports) > 0:
		p.out.Note(g.Name, policy.KeyNetworkIngressMax,
			"%s: what arrives for TCP port %s is led to a virtual NIC and shaped there; it waits in %s", w.Device,
			strings.Trim(strings.Join(strings.Fields(fmt.Sprint(g.Ports)), ", "), "[]"), leaf)
	case g.Cgroup != "":
		p.out.Note(g.Name, policy.KeyNetworkIngressMax,
			"%s: no port of it is known, so what arrives is policed: a program drops what comes beyond the rate. "+
				"More arrives than is let through, and of many connections some starve; `ports: […]` shapes instead",
			w.Device)
	}
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

// networkRelease adds to a plan the way down for the groups of in.Release.
func networkRelease(in *plan.Input, d *desired.State, out *plan.Plan) {
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
