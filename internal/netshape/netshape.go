// Package netshape shares network interfaces between groups, in both directions. It owns the model (groups → classes),
// the numbers and names of all that it makes, the planner, the executor, and the BPF programs on cgroup2 directories.
//
// [PlanHost] is pure: what is wanted and what the kernel has become ordered steps, each with its undo. A [Kernel] reads
// and carries them out, through package tc. A plan that is interrupted leaves a state that the next plan goes on from,
// up or down; traffic that no group claims passes at every point in between.
package netshape

import "bulkhead/internal/linux/tc"

// Share is what a group gets of an interface in one direction. The zero value asks for nothing.
type Share struct {
	Min tc.Rate `json:"min,omitempty"` // guaranteed whenever it is asked for
	Max tc.Rate `json:"max,omitempty"` // never exceeded; 0 is the whole link
}

func (s Share) asked() bool { return s != Share{} }

// Group is one group on one interface.
type Group struct {
	Name   string `json:"name,omitempty"`   // "mysql3306/backup"
	Parent string `json:"parent,omitempty"` // the nearest group above it that is in the same list; "" has none
	// Slot is the group's number in the documented range, from Slots: it never changes while the group lives.
	Slot    Slot  `json:"slot,omitempty"`
	Egress  Share `json:"egress,omitzero"`
	Ingress Share `json:"ingress,omitzero"`
	// Cgroup is the absolute path of the group's directory in the cgroup2 hierarchy; "" has none. A program there sorts
	// what leaves.
	Cgroup string `json:"cgroup,omitempty"`
	// More are further directories of the group, outside of Cgroup: of units that carry its limits by themselves. A
	// policer on each lets through the whole rate.
	More []string `json:"more,omitempty"`
	// NetCls says that the directory of the group in a v1 net_cls hierarchy holds Slot.Class as its class id.
	NetCls bool `json:"net_cls,omitempty"`
	// Ports are the TCP ports that the group's processes listen on. What arrives is sorted by them, and what leaves
	// where there is no Cgroup. Where none is known, a program on Cgroup polices what arrives.
	Ports []uint16 `json:"ports,omitempty"`
}

// Wanted is all that one interface shall do.
type Wanted struct {
	Device string `json:"device,omitempty"`
	// LinkRate is what the link carries: a guarantee is a share of it. 0 is unknown.
	LinkRate tc.Rate `json:"link_rate,omitempty"`
	// Reserve is what the traffic of no group keeps of LinkRate, if that is known.
	Reserve tc.Rate `json:"reserve,omitempty"`
	Groups  []Group `json:"groups,omitempty"`
	// Replace allows to take over an interface that has foreign qdiscs.
	Replace bool `json:"replace,omitempty"`
	// Original is what stood on the interface before it was taken over, from the journal: it comes back when the last
	// group goes.
	Original *Foreign `json:"original,omitempty"`
	// Keep leaves our empty qdiscs and the virtual NIC on the interface when no group wants anything. Giving an
	// interface another root or ingress qdisc switches its queues off for a moment, in which the kernel drops packets;
	// all else that a plan does loses nothing. So they come once and stay as long as bulkhead governs the interface.
	Keep bool `json:"keep,omitempty"`
	// Leaf is the qdisc of every class: "fq_codel", "fq", or "" for a plain byte queue, which every kernel has
	// (Capabilities.Leaf).
	Leaf string `json:"leaf,omitempty"`
}

// Direction is one of the two ways through an interface.
type Direction int

// The directions.
const (
	Egress Direction = iota
	Ingress
)

func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

func (g Group) share(d Direction) Share {
	if d == Ingress {
		return g.Ingress
	}
	return g.Egress
}

// policed says whether what arrives for the group is held by a program that drops: without ports a packet's group is
// known only when it has reached its socket.
func (g Group) policed() bool { return g.Ingress.asked() && len(g.Ports) == 0 && g.Cgroup != "" }

// dirs are the cgroup2 directories of the group.
func (g Group) dirs() []string {
	if g.Cgroup == "" {
		return nil
	}
	return append([]string{g.Cgroup}, g.More...)
}

// classed says whether the group has a class in a direction.
func (g Group) classed(d Direction) bool {
	return g.share(d).asked() && (d == Egress || !g.policed())
}

// wants says whether any group needs a class in this direction.
func (w Wanted) wants(d Direction) bool {
	for _, g := range w.Groups {
		if g.classed(d) {
			return true
		}
	}
	return false
}
