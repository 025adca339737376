package netshape

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"
)

// planner collects the steps from a state to what is wanted.
type planner struct {
	w     Wanted
	s     State
	steps []Step
}

// Plan gives the ordered steps from what the kernel has to what is wanted; none when that is the same. With no group
// wanted it is the way down. Each prefix of the steps is a state that Plan goes on from.
func Plan(w Wanted, s State) ([]Step, error) {
	return PlanHost(Host{Wanted: []Wanted{w}, States: []State{s}, Programs: s.Programs})
}

func (p *planner) step(at phase, why string, do Change, undo ...Change) {
	p.steps = append(p.steps, Step{Do: do, Undo: undo, Why: why, phase: at})
}

// change is one about a device.
func change(d *tc.Device, verb tc.Verb, what What, r tc.Record) Change {
	return Change{Verb: verb, What: what, Device: d.Name, Index: d.Index, Record: r}
}

// tree brings the qdisc, the classes and the filters that sort into them in line, on the interface or on its virtual
// NIC.
func (p *planner) tree(d *tc.Device, want []Class, filters []tc.Filter, foreign []Change) {
	_, has := rootOf(d)
	if has {
		p.removeClasses(d, want)
	}
	p.filters(d, tc.MakeHandle(rootMajor, 0), filters, unsort, sortPackets)
	switch {
	case has && len(want) == 0 && !p.w.Keep:
		p.removeRoot(d)
	case !has && len(want) > 0:
		p.makeRoot(d, foreign)
	}
	for _, c := range want {
		p.class(d, c)
	}
}

// queue is how many packets may wait that no class takes. An interface without a queue of its own says 0.
func queue(d *tc.Device) uint32 { return uint32(max(d.TxQueue, 1000)) }

func (p *planner) makeRoot(d *tc.Device, foreign []Change) {
	r := tc.Record{Kind: "htb", Handle: tc.MakeHandle(rootMajor, 0), Parent: tc.AtRoot,
		Options: tc.HTBOptions(restMinor, queue(d))}
	undo, why := []Change{change(d, tc.Delete, Qdisc, r)},
		"one qdisc holds the classes of the interface; what no class takes passes it first"
	if len(foreign) > 0 {
		undo, why = foreign, "takes the place of "+foreign[0].Record.String()+", as the policy says"
	}
	p.step(makeRoot, why, change(d, tc.Replace, Qdisc, r), undo...)
}

func (p *planner) removeRoot(d *tc.Device) {
	r, _ := rootOf(d)
	back := change(d, tc.Replace, Qdisc, tc.Record{Kind: "htb", Handle: r.Handle, Parent: tc.AtRoot,
		Options: tc.HTBOptions(restMinor, queue(d))})
	if d.Index != p.s.Device.Index || p.w.Original == nil || len(p.w.Original.Egress) == 0 {
		p.step(removeQdiscs, "no class is left; the kernel puts its own back", change(d, tc.Delete, Qdisc, r), back)
		return
	}
	for i, c := range p.w.Original.Egress {
		c.Index = d.Index
		undo := []Change{{Verb: tc.Delete, What: c.What, Device: c.Device, Index: c.Index, Record: c.Record}}
		if i == 0 {
			undo = []Change{back}
		}
		p.step(removeQdiscs, "as it was before bulkhead", c, undo...)
	}
}

// removeClasses removes what is not wanted, and what is wanted elsewhere: the kernel cannot give a class another
// parent. The deepest go first; a class takes its queue along.
func (p *planner) removeClasses(d *tc.Device, want []Class) {
	var gone []tc.Record
	for _, r := range d.Classes {
		i := slices.IndexFunc(want, func(c Class) bool { return c.ID == r.Handle })
		if r.Kind == "htb" && ours(r.Handle) && (i < 0 || want[i].Parent != r.ParentHandle()) {
			gone = append(gone, r)
		}
	}
	// A class whose parent has to go goes, too.
	for grew := true; grew; {
		grew = false
		for _, r := range d.Classes {
			in := func(h tc.Handle) bool {
				return slices.ContainsFunc(gone, func(g tc.Record) bool { return g.Handle == h })
			}
			if in(r.Parent) && !in(r.Handle) {
				gone, grew = append(gone, r), true
			}
		}
	}
	slices.SortStableFunc(gone, func(a, b tc.Record) int { return cmp.Compare(depth(d, b), depth(d, a)) })
	for _, r := range gone {
		r.Parent = r.ParentHandle()
		undo := []Change{change(d, tc.Add, ClassOf, r)}
		for _, q := range d.Qdiscs {
			if q.Parent == r.Handle && q.Made() {
				undo = append(undo, change(d, tc.Add, Qdisc, tc.Writable(q)))
			}
		}
		p.step(removeClasses, "no group needs it there", change(d, tc.Delete, ClassOf, r), undo...)
	}
}

// class adds or changes one class and its queue.
func (p *planner) class(d *tc.Device, c Class) {
	r := tc.Record{Kind: "htb", Handle: c.ID, Parent: c.Parent, Options: c.htb().Options()}
	why := fmt.Sprintf("%s of group %q: %s guaranteed, %s at most", p.direction(d), c.Group, c.Rate, c.Ceil)
	if c.Group == "" {
		why = fmt.Sprintf("guarantees are shares of %s", c.Ceil)
	}
	i := slices.IndexFunc(d.Classes, func(h tc.Record) bool { return h.Handle == c.ID && h.ParentHandle() == c.Parent })
	kept := i >= 0 && !p.removed(d, c.ID)
	switch {
	case !kept:
		p.step(makeClasses, why, change(d, tc.Add, ClassOf, r), change(d, tc.Delete, ClassOf, r))
	case !c.htb().Same(d.Classes[i].Options, !c.Inner):
		old := d.Classes[i]
		old.Parent = c.Parent
		p.step(makeClasses, why, change(d, tc.Alter, ClassOf, r), change(d, tc.Alter, ClassOf, old))
	}
	if !c.Inner {
		p.leaf(d, c, kept)
	}
}

func (p *planner) removed(d *tc.Device, id tc.Handle) bool {
	return slices.ContainsFunc(p.steps, func(s Step) bool {
		return s.phase == removeClasses && s.Do.Device == d.Name && s.Do.Record.Handle == id
	})
}

func (p *planner) direction(d *tc.Device) Direction {
	if d.Name == p.s.Device.Name {
		return Egress
	}
	return Ingress
}

// leaf gives a class the wanted queue.
func (p *planner) leaf(d *tc.Device, c Class, kept bool) {
	kind := cmp.Or(p.w.Leaf, tc.ByteQueue)
	major := tc.MakeHandle(leafMajor, 0)
	if minor := c.ID & 0xffff; minor != restMinor {
		major = Slot(minor / slotStep).leaf()
	}
	r := tc.Record{Kind: kind, Handle: major, Parent: c.ID, Options: tc.LeafOptions(kind, c.Ceil)}
	i := slices.IndexFunc(d.Qdiscs, func(q tc.Record) bool { return q.Parent == c.ID && q.Made() })
	switch {
	case !kept || i < 0:
		p.step(makeLeaves, "its queue", change(d, tc.Replace, Qdisc, r), change(d, tc.Delete, Qdisc, r))
	case d.Qdiscs[i].Handle != major || d.Qdiscs[i].Kind != kind:
		p.step(makeLeaves, fmt.Sprintf("its queue; somebody put %s there", d.Qdiscs[i]),
			change(d, tc.Replace, Qdisc, r), change(d, tc.Replace, Qdisc, tc.Writable(d.Qdiscs[i])))
	case !tc.LeafSame(kind, c.Ceil, d.Qdiscs[i]):
		p.step(makeLeaves, "its queue, for the new rate", change(d, tc.Alter, Qdisc, r),
			change(d, tc.Alter, Qdisc, tc.Changeable(d.Qdiscs[i])))
	}
}

// sorting tells how the packets of a group that leave find its class.
func (g Group) sorting() string {
	switch {
	case g.Cgroup != "":
		return "program"
	case g.NetCls:
		return "net_cls"
	}
	return "ports"
}

// egressFilters are those on the interface's own qdisc, for groups that no program sorts.
func (p *planner) egressFilters(classes []Class) ([]tc.Filter, error) {
	var all []tc.Filter
	for _, g := range p.groupsOf(classes) {
		switch g.sorting() {
		case "net_cls":
			if !slices.ContainsFunc(all, func(f tc.Filter) bool { return f.NetCls }) {
				all = append(all, tc.Filter{Protocol: tc.ProtoAll, NetCls: true})
			}
		case "ports":
			all = append(all, portFilters(g, true, "")...)
		}
	}
	return all, errors.Join(p.samePorts(), p.countFilters())
}

// countFilters refuses more filters than the range has preferences.
func (p *planner) countFilters() error {
	n := 1 // net_cls
	for _, g := range p.w.Groups {
		n += 2 * len(g.Ports)
	}
	if most := prefLast - prefBase + 1; n > most {
		return &Problem{Device: p.w.Device, Text: fmt.Sprintf("%d ports need %d filters, there are numbers for %d", n/2,
			n, most)}
	}
	return nil
}

// samePorts refuses two groups with one port: their packets look the same.
func (p *planner) samePorts() error {
	owner := make(map[uint16]string)
	var problems []error
	for _, g := range p.w.Groups {
		if !g.Ingress.asked() && (!g.Egress.asked() || g.sorting() != "ports") {
			continue
		}
		for _, port := range g.Ports {
			if other, taken := owner[port]; taken && other != g.Name {
				problems = append(problems, &Problem{Device: p.w.Device, Group: g.Name,
					Text: fmt.Sprintf("port %d is also that of group %q", port, other)})
			}
			owner[port] = g.Name
		}
	}
	return errors.Join(problems...)
}

// groupsOf gives the groups that have a class of their own.
func (p *planner) groupsOf(classes []Class) []Group {
	var all []Group
	for _, g := range p.w.Groups {
		if slices.ContainsFunc(classes, func(c Class) bool { return c.ID == g.Slot.Class() }) {
			all = append(all, g)
		}
	}
	return all
}

func portFilters(g Group, source bool, redirect string) []tc.Filter {
	var all []tc.Filter
	for _, port := range g.Ports {
		for _, protocol := range []uint16{tc.ProtoIPv4, tc.ProtoIPv6} {
			f := tc.Filter{Protocol: protocol, Port: port, Source: source, Class: g.Slot.Class(), Redirect: redirect}
			if redirect != "" {
				f.Class = 0
			}
			all = append(all, f)
		}
	}
	return all
}

// filters brings those below one parent in line. A filter that is there twice stays once.
func (p *planner) filters(d *tc.Device, parent tc.Handle, want []tc.Filter, down, up phase) {
	used, have := make(map[uint16]bool), make(map[tc.Filter]bool)
	for _, r := range d.Filters {
		if r.Parent != parent || !r.Real() {
			continue
		}
		f, known := tc.ParseFilter(r, p.s.nic)
		// A class that goes, if only to come back elsewhere, is busy while a filter leads there.
		keep := known && inRange(r) && slices.Contains(want, f) && !have[f] && !p.removed(d, f.Class)
		if theirs := parent == tc.IngressHandle && !p.s.ownFilter(r) || parent != tc.IngressHandle &&
			!inRange(r); keep || theirs {
			used[r.Pref()] = true
			have[f] = have[f] || keep
			continue
		}
		remove := change(d, tc.Delete, FilterOf, r)
		if known {
			remove.Filter = &f
		}
		back := remove
		back.Verb, back.Record = tc.Add, tc.Writable(r)
		if to, redirects := tc.RedirectOf(r); redirects && to == 0 {
			p.step(down, "the virtual NIC that it leads to is gone: what it takes is dropped", remove)
			continue
		}
		p.step(down, "no group needs it", remove, back)
	}
	p.addFilters(d, parent, want, used, have, up)
}

// addFilters adds what is not there yet, each with a preference of its own. Ports come before net_cls: a group that is
// told by its ports may lie in one that is told by its class.
func (p *planner) addFilters(d *tc.Device, parent tc.Handle, want []tc.Filter, used map[uint16]bool,
	have map[tc.Filter]bool, up phase) {
	pref := uint16(prefBase)
	for _, f := range want {
		if have[f] {
			continue
		}
		for used[pref] {
			pref++
		}
		at := pref
		if f.NetCls {
			at = prefLast
		}
		used[at], have[f] = true, true
		add := change(d, tc.Add, FilterOf, tc.Record{Kind: f.Kind(), Parent: parent,
			Info: tc.FilterInfo(at, f.Protocol)})
		if f.NetCls {
			add.Record.Handle = 1
		}
		add.Filter = &f
		remove := add
		remove.Verb = tc.Delete
		p.step(up, "sorts packets by "+by(f), add, remove)
	}
}

func by(f tc.Filter) string {
	if f.NetCls {
		return "net_cls"
	}
	return "port"
}

// policers attaches the programs that drop what arrives beyond a rate, changes their rate where they are, and takes old
// ones off.
func (p *planner) policers() {
	d := &p.s.Device
	about := func(verb tc.Verb, program bpf.Program) Change {
		return Change{Verb: verb, What: Policer, Device: d.Name, Index: d.Index, Program: &program}
	}
	kept := make(map[string]bool)
	for _, has := range p.s.Policers {
		i := slices.IndexFunc(p.w.Groups, func(g Group) bool {
			return g.policed() && slices.Contains(g.dirs(), has.Cgroup) &&
				bpf.PolicerName(g.Slot.Class(), d.Index) == has.Name
		})
		if i < 0 || kept[has.Cgroup] {
			back := has
			back.ID = 0
			p.step(unsort, "the group has no limit of this kind", about(tc.Delete, has), about(tc.Add, back))
			continue
		}
		kept[has.Cgroup] = true
		if want := p.w.Groups[i].Ingress.Max; want != has.Rate {
			now := has
			now.Rate = want
			p.step(sortPackets, fmt.Sprintf("ingress of group %q: %s at most", p.w.Groups[i].Name, want),
				about(tc.Alter, now), about(tc.Alter, has))
		}
	}
	for _, g := range p.w.Groups {
		if !g.policed() {
			continue
		}
		for _, dir := range g.dirs() {
			if kept[dir] {
				continue
			}
			program := bpf.Program{Cgroup: dir, Name: bpf.PolicerName(g.Slot.Class(), d.Index), Rate: g.Ingress.Max}
			why := fmt.Sprintf("ingress of group %q: %s at most. No port is known, so this drops instead of "+
				"queueing: of many connections some starve", g.Name, g.Ingress.Max)
			p.step(sortPackets, why, about(tc.Add, program), about(tc.Delete, program))
		}
	}
}

// ingress shapes what arrives: a virtual NIC with a tree of its own, and redirects to it by port.
func (p *planner) ingress(classes []Class, foreign []Change) {
	d := &p.s.Device
	nic := tc.Device{Link: tc.Link{Name: nicName(d.Index), TxQueue: 1000}}
	if p.s.NIC != nil {
		nic = *p.s.NIC
	}
	var redirects, sorters []tc.Filter
	for _, g := range p.groupsOf(classes) {
		redirects = append(redirects, portFilters(g, false, nic.Name)...)
		sorters = append(sorters, portFilters(g, false, "")...)
	}
	p.filters(d, tc.IngressHandle, redirects, unredirect, redirect)
	p.tree(&nic, classes, sorters, nil)

	made := Change{Verb: tc.Add, What: NIC, Device: nic.Name, For: d.Name}
	gone := Change{Verb: tc.Delete, What: NIC, Device: nic.Name, Index: nic.Index, For: d.Name}
	hook := change(d, tc.Add, Qdisc, tc.Record{Kind: "ingress", Handle: tc.IngressHandle, Parent: tc.AtIngress})
	unhook := hook
	unhook.Verb = tc.Delete
	at := p.s.ingress()
	switch {
	case len(classes) == 0 && p.w.Keep:
		return
	case len(classes) == 0:
		if at.ours && !at.shared {
			p.step(removeQdiscs, "nothing is redirected any more", unhook, hook)
		}
		if at.ours {
			p.originalIngress(at.shared)
		}
		if p.s.NIC != nil {
			p.step(removeNIC, "nothing is redirected any more", gone, made)
		}
		return
	}
	if p.s.NIC == nil {
		p.step(makeNIC, "what arrives can only be shaped where it leaves: from a virtual NIC", made, gone)
	}
	if at.there && !at.ours {
		foreigns := change(d, tc.Delete, Qdisc, at.Record)
		p.step(makeIngress, "makes room for ours, as the policy says", foreigns, foreign...)
	}
	if !at.ours {
		p.step(makeIngress, "the hook for redirects", hook, unhook)
	}
}

// originalIngress puts back what was there before; kept says that the hook stays, as others use it.
func (p *planner) originalIngress(kept bool) {
	if p.w.Original == nil {
		return
	}
	for _, c := range p.w.Original.Ingress {
		if kept && (c.What == Qdisc || c.Record.Parent == tc.ClsactEgress) {
			continue
		}
		c.Index = p.s.Device.Index
		undo := c
		undo.Verb = tc.Delete
		p.step(removeQdiscs, "as it was before bulkhead", c, undo)
	}
}

func depth(d *tc.Device, r tc.Record) int {
	for n := 0; ; n++ {
		i := slices.IndexFunc(d.Classes, func(c tc.Record) bool { return c.Handle == r.Parent })
		if i < 0 || n > len(d.Classes) {
			return n
		}
		r = d.Classes[i]
	}
}

func inRange(r tc.Record) bool { return r.Pref() >= prefBase && r.Pref() <= prefLast }
