// Package netshape shares network interfaces between groups, in both directions, and is the only door to the kernel's traffic
// control (rtnetlink: qdiscs, classes, filters, virtual NICs) and to the BPF programs on cgroup2 directories that sort packets.
//
// It owns the model (groups → classes), one range of numbers and names for everything it makes, a pure planner (what is wanted and
// what the kernel has → ordered steps, each with its undo) and the executor. A step that is interrupted leaves a state that the next
// plan goes on from, up or down: traffic that no group claims passes at every point in between.
package netshape

import (
	"fmt"
	"strconv"
)

// Rate is in bits per second. 0 is no rate.
type Rate uint64

// The units of a Rate.
const (
	Kbit Rate = 1000
	Mbit      = 1000 * Kbit
	Gbit      = 1000 * Mbit
)

// BytesPerSecond is the rate as HTB counts it.
func (r Rate) BytesPerSecond() uint64 { return uint64(r) / 8 }

// String gives "100Mbit/s".
func (r Rate) String() string {
	for _, u := range []struct {
		size Rate
		name string
	}{{Gbit, "G"}, {Mbit, "M"}, {Kbit, "k"}} {
		if r >= u.size {
			return strconv.FormatFloat(float64(r)/float64(u.size), 'f', -1, 64) + u.name + "bit/s"
		}
	}
	return fmt.Sprintf("%dbit/s", uint64(r))
}

// Share is what a group gets of an interface in one direction. The zero value asks for nothing.
type Share struct {
	Min Rate // guaranteed whenever it is asked for
	Max Rate // never exceeded; 0 is the whole link
}

func (s Share) asked() bool { return s != Share{} }

// Group is one group on one interface.
type Group struct {
	Name   string // "mysql3306/backup"
	Parent string // the nearest group above it that is in the same list; "" has none
	// Slot is the group's number in the documented range, from Slots: it never changes while the group lives.
	Slot            Slot
	Egress, Ingress Share
	// Cgroup is the absolute path of the group's directory in the cgroup2 hierarchy; "" has none. A program there sorts what leaves.
	Cgroup string
	// NetCls says that the directory of the group in a v1 net_cls hierarchy holds Slot.Class as its class id.
	NetCls bool
	// Ports are the TCP ports that the group's processes listen on. What arrives is sorted by them, and what leaves where there is
	// no Cgroup. Where none is known, a program on Cgroup polices what arrives.
	Ports []uint16
}

// Wanted is all that one interface shall do.
type Wanted struct {
	Device string
	// LinkRate is what the link carries: a guarantee is a share of it. 0 is unknown.
	LinkRate Rate
	Groups   []Group
	// Replace allows to take over an interface that has foreign qdiscs.
	Replace bool
	// Original is what stood on the interface before it was taken over, from the journal: it comes back when the last group goes.
	Original *Foreign
	// Keep leaves our empty qdiscs and the virtual NIC on the interface when no group wants anything. Giving an interface another
	// root or ingress qdisc switches its queues off for a moment, in which the kernel drops packets; all else that a plan does loses
	// nothing. So they come once and stay as long as bulkhead governs the interface.
	Keep bool
	// Leaf is the qdisc of every class: "fq_codel", "fq", or "" for a plain byte queue, which every kernel has (Capabilities.Leaf).
	Leaf string
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

// policed says whether what arrives for the group is held by a program that drops: without ports a packet's group is known only when it
// has reached its socket.
func (g Group) policed() bool { return g.Ingress.asked() && len(g.Ports) == 0 && g.Cgroup != "" }

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
