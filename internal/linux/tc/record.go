package tc

import (
	"bytes"
	"slices"
)

// Record is one qdisc, class or filter as the kernel shows it. It can be written back as it is.
type Record struct {
	Kind    string `json:"kind,omitempty"` // "htb", "u32", …
	Handle  Handle `json:"handle,omitempty"`
	Parent  Handle `json:"parent,omitempty"`
	Info    uint32 `json:"info,omitempty"`    // of a filter: preference and protocol
	Chain   uint32 `json:"chain,omitempty"`   // of a filter
	Options []byte `json:"options,omitempty"` // TCA_OPTIONS as the kernel encodes it
	Stats   Stats  `json:"-"`
	// More says that the kernel shows more of it than its options: a size table (stab), or a block of filters that
	// interfaces share.
	More bool `json:"-"`
}

// Stats are the kernel's counters of a qdisc or class.
type Stats struct {
	Bytes, Packets, Drops, Overlimits uint64
	Backlog                           uint64 // bytes that wait now
}

// Protocol is that of a filter's packets (ETH_P_IP): its info holds it in the lower half, in network order.
func (r Record) Protocol() uint16 { return uint16(r.Info)<<8 | uint16(r.Info)>>8 }

// Pref is a filter's preference; lower ones are asked first.
func (r Record) Pref() uint16 { return uint16(r.Info >> 16) }

// FilterInfo is the info of a filter.
func FilterInfo(pref, protocol uint16) uint32 {
	return uint32(pref)<<16 | uint32(protocol<<8|protocol>>8)
}

// String gives "htb 7fff:".
func (r Record) String() string { return r.Kind + " " + r.Handle.String() }

// Link is what rtnetlink says of an interface.
type Link struct {
	Name     string
	Index    int
	Kind     string // "bond", "vlan", "ifb", …; "" for hardware and loopback
	Alias    string
	MTU      int
	TxQueue  int // packets
	TxQueues int
	Up       bool
}

// Device is an interface with its traffic control.
type Device struct {
	Link
	Qdiscs  []Record
	Classes []Record
	Filters []Record // those of the root qdisc and of the ingress hook
}

// AtIngress says that a qdisc is the hook for what arrives.
func (r Record) AtIngress() bool { return r.Kind == "ingress" || r.Kind == "clsact" }

// Made says that a program gave the interface this qdisc. Those that the kernel makes by itself have the handle 0.
func (r Record) Made() bool { return r.Handle>>16 != 0 }

// OnIngress says that a filter is in the hook for what arrives.
func (r Record) OnIngress() bool { return r.Parent>>16 == IngressHandle>>16 }

// Real says whether a record is a filter: the kernel also lists the head of each preference, and u32's tables.
func (r Record) Real() bool { return r.Handle != 0 && (r.Kind != "u32" || r.Handle&0xfffff != 0) }

// OneWay says that a record cannot be written back as it is shown. For a BPF filter the kernel wants an open program,
// for taprio, mqprio and etf a schedule, for red, gred and choke a table that it does not show (EINVAL without), and of
// netem it does not show by which distribution it delays. It wants the rate table of a "police" action (ENOMEM without)
// and does not show it. A "mirred" action that others share, or that leads to no interface, is nothing to make anew.
func (r Record) OneWay() bool {
	oneWay := []string{"bpf", "taprio", "mqprio", "etf", "red", "gred", "choke", "netem"}
	if r.More || slices.Contains(oneWay, r.Kind) {
		return true
	}
	return bytes.Contains(r.Options, []byte("police\x00")) ||
		bytes.Contains(r.Options, []byte(mirred+"\x00")) && !r.redirectsAlone()
}

// HashTables finds a preference of u32 filters with a hash table beside the one that every preference has. Such
// tables cannot be put back: the kernel does not show in which order they were made.
func (d *Device) HashTables(on func(Record) bool) (pref uint16, ok bool) {
	type place struct {
		parent      Handle
		info, chain uint32
	}
	tables := make(map[place]int)
	for _, f := range d.Filters {
		if f.Kind == "u32" && f.Handle != 0 && !f.Real() && on(f) {
			at := place{f.Parent, f.Info, f.Chain}
			if tables[at]++; tables[at] > 1 {
				return f.Pref(), true
			}
		}
	}
	return 0, false
}

// ParentHandle is the parent of a class: the kernel says "root" for one directly below the qdisc.
func (r Record) ParentHandle() Handle {
	if r.Parent == AtRoot {
		return r.Handle >> 16 << 16
	}
	return r.Parent
}

// AtHook says that a qdisc is at the root or at the ingress hook of its interface. While such a one is made or
// deleted, the kernel switches the interface's queues off (dev_deactivate). Packets that are sent there are dropped
// until every CPU has passed a grace period.
func (r Record) AtHook() bool { return r.Parent == AtRoot || r.Parent == AtIngress }
