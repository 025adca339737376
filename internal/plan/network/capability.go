package network

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

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
		p.out.Note(g.Name, policy.KeyNetworkEgressMax, "%s: what leaves is told %s; it waits in %s", w.Device, how,
			leaf)
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
