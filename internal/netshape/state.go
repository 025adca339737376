package netshape

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
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
}

// Stats are the kernel's counters of a qdisc or class.
type Stats struct {
	Bytes, Packets, Drops, Overlimits uint64
	Backlog                           uint64 // bytes that wait now
}

// A filter's protocol is in network order in the lower half of its info.
func (r Record) protocol() uint16 { return uint16(r.Info)<<8 | uint16(r.Info)>>8 }
func (r Record) pref() uint16     { return uint16(r.Info >> 16) }

func filterInfo(pref, protocol uint16) uint32 {
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

// Program is a BPF program on a cgroup2 directory.
type Program struct {
	Cgroup string `json:"cgroup,omitempty"` // absolute path of the directory
	Name   string `json:"name,omitempty"`
	ID     uint32 `json:"id,omitempty"`   // the kernel's; 0 when it is to be made
	Rate   Rate   `json:"rate,omitempty"` // of one that polices
}

// State is what the kernel has on and for one interface.
type State struct {
	Device   Device
	NIC      *Device   // our virtual NIC for it, if it is there
	Programs []Program // those of ours on the directories that were looked at
	Policers []Program // the same, of those that police what arrives at this interface
	Counters []Program // the same, of those that count
}

// Foreign is what stood on an interface before bulkhead: enough to put it back as far as the kernel shows it.
type Foreign struct {
	// In the order of their making.
	Egress  []Change `json:"egress,omitempty"`
	Ingress []Change `json:"ingress,omitempty"`
}

// ForeignError names what bulkhead did not make and was not allowed to replace.
type ForeignError struct {
	Device string
	Found  []string
}

// Error gives the interface and each thing found.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("shape %s: it has what bulkhead did not make: %s; hint: `replace: true` takes it over, and puts it back afterwards",
		e.Device, strings.Join(e.Found, ", "))
}

func (r Record) atIngress() bool { return r.Kind == "ingress" || r.Kind == "clsact" }

// made says that somebody, and not the kernel by itself, gave the interface this qdisc: the kernel's own have the handle 0.
func (r Record) made() bool { return r.Handle>>16 != 0 }

// root is our qdisc at the root of a device.
func (d *Device) root() (Record, bool) {
	for _, q := range d.Qdiscs {
		if q.Parent == atRoot && q.Kind == "htb" && q.Handle == handle(rootMajor, 0) {
			return q, true
		}
	}
	return Record{}, false
}

// foreignEgress gives the qdiscs in the way of ours.
func (d *Device) foreignEgress() []Record {
	if _, ok := d.root(); ok {
		return nil
	}
	return d.pick(func(q Record) bool { return q.made() && !q.atIngress() })
}

func (d *Device) pick(want func(Record) bool) []Record {
	var all []Record
	for _, q := range d.Qdiscs {
		if want(q) {
			all = append(all, q)
		}
	}
	return all
}

// ingress gives the qdisc of the ingress hook, and whether it is ours. It bears no number of its own: it is ours when our virtual NIC is
// there (made before it, removed after it) or something of ours is in it, and nobody else's filter is.
func (s *State) ingress() (q Record, has, ours bool) {
	for _, q := range s.Device.Qdiscs {
		if !q.atIngress() {
			continue
		}
		known, strange := s.NIC != nil, q.Kind != "ingress"
		for _, f := range s.Device.Filters {
			if f.onIngress() && f.real() {
				known, strange = known || s.ownFilter(f), strange || !s.ownFilter(f)
			}
		}
		return q, true, known && !strange
	}
	return Record{}, false, false
}

func (r Record) onIngress() bool { return r.Parent>>16 == ingressHandle>>16 }

// ownFilter says whether a filter of the ingress hook is ours: it leads to our virtual NIC. Whoever wrote such a one, it has to go
// before the NIC does. One in our range that leads nowhere is ours, too: somebody took the NIC away, and the kernel drops what it takes.
func (s *State) ownFilter(r Record) bool {
	index, ok := redirectOf(r)
	return ok && (s.nic(index) != "" || index == 0 && r.inRange())
}

// real says whether a record is a filter: the kernel also lists the head of each preference, and u32's tables.
func (r Record) real() bool { return r.Handle != 0 && (r.Kind != "u32" || r.Handle&0xfffff != 0) }

// nic names our virtual NIC by its index; "" is another one.
func (s *State) nic(index int) string {
	if s.NIC != nil && s.NIC.Index == index {
		return s.NIC.Name
	}
	return ""
}

// actsOneWay says whether a filter has an action that could not be put back. Of "police" the kernel wants the table of its rates (ENOMEM without) and does not
// show it; "mirred" comes back under its number, which one of ours may have by then, and so would lead where ours does (seen on 6.1).
func (r Record) actsOneWay() bool {
	return bytes.Contains(r.Options, []byte("police\x00")) || bytes.Contains(r.Options, []byte("mirred\x00"))
}

// Foreign describes what has to give way to the wanted state, for the journal; nil is nothing. It is an error when that is not allowed.
func (s *State) Foreign(w Wanted) (*Foreign, error) {
	var f Foreign
	var found []string
	if w.wants(Egress) {
		qdiscs := s.Device.foreignEgress()
		for _, q := range qdiscs {
			found = append(found, fmt.Sprintf("qdisc %s at %s", q, q.Parent))
		}
		f.Egress = s.Device.restore(qdiscs, func(r Record) bool { return !r.onIngress() })
	}
	if q, has, ours := s.ingress(); w.wants(Ingress) && has && !ours {
		found = append(found, "qdisc "+q.String())
		f.Ingress = s.Device.restore([]Record{q}, Record.onIngress)
	}
	switch {
	case len(found) == 0:
		return nil, nil
	case !w.Replace:
		return nil, &ForeignError{Device: s.Device.Name, Found: found}
	}
	for _, c := range slices.Concat(f.Egress, f.Ingress) {
		if slices.Contains(oneWay, c.Record.Kind) || c.Record.actsOneWay() {
			return nil, &Problem{Device: s.Device.Name, Text: fmt.Sprintf("%s could not be put back as it is", c),
				Hint: "take it away yourself, or leave this interface alone"}
		}
	}
	if pref, ok := s.Device.hashed(func(r Record) bool { return r.onIngress() && len(f.Ingress) > 0 || !r.onIngress() && len(f.Egress) > 0 }); ok {
		return nil, &Problem{Device: s.Device.Name, Text: fmt.Sprintf("the hash tables of its u32 filters of preference %d could not be put back", pref),
			Hint: "take them away yourself, or leave this interface alone"}
	}
	return &f, nil
}

// hashed finds a preference of u32 filters that has a hash table beside the one that each has by itself: the kernel does not show in which
// order such tables came, and filters lead from one to another.
func (d *Device) hashed(on func(Record) bool) (pref uint16, ok bool) {
	type place struct {
		parent      Handle
		info, chain uint32
	}
	tables := make(map[place]int)
	for _, f := range d.Filters {
		if f.Kind == "u32" && f.Handle != 0 && !f.real() && on(f) {
			at := place{f.Parent, f.Info, f.Chain}
			if tables[at]++; tables[at] > 1 {
				return f.pref(), true
			}
		}
	}
	return 0, false
}

// oneWay are kinds whose options cannot be written back as they are shown: a filter's BPF program has to be handed over open, and so
// do the schedules of these qdiscs.
var oneWay = []string{"bpf", "taprio", "mqprio", "etf"}

// restore gives the changes that bring qdiscs back, with their classes and filters, parents first.
func (d *Device) restore(qdiscs []Record, on func(Record) bool) []Change {
	if len(qdiscs) == 0 {
		return nil
	}
	change := func(verb Verb, what What, r Record) Change { return change(d, verb, what, r) }
	var changes []Change
	var classes, done = slices.Clone(d.Classes), map[Handle]bool{atRoot: true, atIngress: true}
	for left := slices.Clone(qdiscs); len(left) > 0; {
		before := len(left) + len(classes)
		left = slices.DeleteFunc(left, func(q Record) bool {
			if !done[q.Parent] {
				return false
			}
			verb := Add
			if q.Parent == atRoot {
				verb = Replace
			}
			changes, done[q.Handle] = append(changes, change(verb, Qdisc, settable(q))), true
			return true
		})
		classes = slices.DeleteFunc(classes, func(c Record) bool {
			parent := c.Parent
			if parent == atRoot { // the kernel shows a class directly below the root qdisc so
				parent = c.Handle >> 16 << 16
			}
			if !done[parent] {
				return false
			}
			c.Parent = parent
			if done[c.Handle] = true; c.Kind != "htb" && c.Kind != "hfsc" && c.Kind != "drr" && c.Kind != "qfq" {
				return true // the classes of other kinds come with their qdisc
			}
			changes = append(changes, change(Add, ClassOf, c))
			return true
		})
		if len(left)+len(classes) == before {
			break // below what the kernel made by itself: that comes back with it
		}
	}
	for _, f := range d.Filters {
		if on(f) && f.real() {
			changes = append(changes, change(Add, FilterOf, settable(f)))
		}
	}
	return changes
}
