package netshape

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"
)

// State is what the kernel has on and for one interface.
type State struct {
	Device   tc.Device
	NIC      *tc.Device    // our virtual NIC for it, if it is there
	Programs []bpf.Program // those of ours on the directories that were looked at
	Policers []bpf.Program // the same, of those that police what arrives at this interface
	Counters []bpf.Program // the same, of those that count
	// Beyond names the interfaces but NIC that filters of Device send packets to, by their index; "" is one that is
	// gone.
	Beyond map[int]string
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
	return fmt.Sprintf("shape %s: it has what bulkhead did not make: %s; hint: `replace: true` takes it over, and "+
		"puts it back afterwards",
		e.Device, strings.Join(e.Found, ", "))
}

// hook is the qdisc of the ingress hook.
type hook struct {
	tc.Record
	there  bool
	ours   bool // bulkhead made it
	shared bool // there are filters of others in it
}

// ingress gives the qdisc of the ingress hook. It bears no number of its own: it is ours when something of ours is in
// it, or when our virtual NIC is there (made before it, removed after it) and nobody else's filter is.
func (s *State) ingress() (h hook) {
	i := slices.IndexFunc(s.Device.Qdiscs, tc.Record.AtIngress)
	if i < 0 {
		return h
	}
	h.Record, h.there = s.Device.Qdiscs[i], true
	used := false
	for _, f := range s.Device.Filters {
		if f.OnIngress() && f.Real() {
			used, h.shared = used || s.ownFilter(f), h.shared || !s.ownFilter(f)
		}
	}
	h.ours = h.Kind == "ingress" && (used && s.NIC != nil || (used || s.NIC != nil) && !h.shared)
	return h
}

// ownFilter says whether a filter of the ingress hook is ours: it leads to our virtual NIC. Whoever wrote such a one,
// it has to go before the NIC does. One in our range that leads nowhere is ours, too: somebody took the NIC away, and
// the kernel drops what it takes.
func (s *State) ownFilter(r tc.Record) bool {
	index, ok := tc.RedirectOf(r)
	return ok && (s.nic(index) != "" || index == 0 && inRange(r))
}

// nic names our virtual NIC by its index; "" is another one.
func (s *State) nic(index int) string {
	if s.NIC != nil && s.NIC.Index == index {
		return s.NIC.Name
	}
	return ""
}

// Foreign describes what has to give way to the wanted state, for the journal; nil is nothing. It is an error when that
// is not allowed.
func (s *State) Foreign(w Wanted) (*Foreign, error) {
	var f Foreign
	var found []string
	if w.wants(Egress) {
		qdiscs := foreignEgress(&s.Device)
		for _, q := range qdiscs {
			found = append(found, fmt.Sprintf("qdisc %s at %s", q, q.Parent))
		}
		f.Egress = s.restore(qdiscs, func(r tc.Record) bool { return !r.OnIngress() })
	}
	if h := s.ingress(); w.wants(Ingress) && h.there && !h.ours {
		found = append(found, "qdisc "+h.String())
		f.Ingress = s.restore([]tc.Record{h.Record}, tc.Record.OnIngress)
	}
	switch {
	case len(found) == 0:
		return nil, nil
	case !w.Replace:
		return nil, &ForeignError{Device: s.Device.Name, Found: found}
	}
	for _, c := range slices.Concat(f.Egress, f.Ingress) {
		if c.Record.OneWay() || slices.Contains(c.To, "") {
			return nil, &Problem{Device: s.Device.Name, Text: fmt.Sprintf("%s could not be put back as it is", c),
				Hint: "take it away yourself, or leave this interface alone"}
		}
	}
	if pref, ok := s.Device.HashTables(func(r tc.Record) bool {
		return r.OnIngress() && len(f.Ingress) > 0 || !r.OnIngress() && len(f.Egress) > 0
	}); ok {
		return nil, &Problem{Device: s.Device.Name,
			Text: fmt.Sprintf("the hash tables of its u32 filters of preference %d could not be put back", pref),
			Hint: "take them away yourself, or leave this interface alone"}
	}
	return &f, nil
}

// rootOf is our qdisc at the root of a device.
func rootOf(d *tc.Device) (tc.Record, bool) {
	for _, q := range d.Qdiscs {
		if q.Parent == tc.AtRoot && q.Kind == "htb" && q.Handle == tc.MakeHandle(rootMajor, 0) {
			return q, true
		}
	}
	return tc.Record{}, false
}

// foreignEgress gives the qdiscs in the way of ours.
func foreignEgress(d *tc.Device) []tc.Record {
	if _, ok := rootOf(d); ok {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(d.Qdiscs), func(q tc.Record) bool { return !q.Made() || q.AtIngress() })
}

// restore gives the changes that bring qdiscs back, with their classes and filters, parents first.
func (s *State) restore(qdiscs []tc.Record, on func(tc.Record) bool) []Change {
	d := &s.Device
	if len(qdiscs) == 0 {
		return nil
	}
	change := func(verb tc.Verb, what What, r tc.Record) Change { return change(d, verb, what, r) }
	var changes []Change
	var classes, done = slices.Clone(d.Classes), map[tc.Handle]bool{tc.AtRoot: true, tc.AtIngress: true}
	for left := slices.Clone(qdiscs); len(left) > 0; {
		before := len(left) + len(classes)
		left = slices.DeleteFunc(left, func(q tc.Record) bool {
			if !done[q.Parent] {
				return false
			}
			verb := tc.Add
			if q.Parent == tc.AtRoot {
				verb = tc.Replace
			}
			changes, done[q.Handle] = append(changes, change(verb, Qdisc, tc.Writable(q))), true
			return true
		})
		classes = slices.DeleteFunc(classes, func(c tc.Record) bool {
			parent := c.Parent
			if parent == tc.AtRoot { // the kernel shows a class directly below the root qdisc so
				parent = c.Handle >> 16 << 16
			}
			if !done[parent] {
				return false
			}
			c.Parent = parent
			if done[c.Handle] = true; c.Kind != "htb" && c.Kind != "hfsc" && c.Kind != "drr" && c.Kind != "qfq" {
				return true // the classes of other kinds come with their qdisc
			}
			changes = append(changes, change(tc.Add, ClassOf, c))
			return true
		})
		if len(left)+len(classes) == before {
			break // below what the kernel made by itself: that comes back with it
		}
	}
	for _, f := range d.Filters {
		if on(f) && f.Real() {
			c := change(tc.Add, FilterOf, tc.Writable(f))
			for _, index := range f.Redirects() {
				c.To = append(c.To, s.Beyond[index])
			}
			changes = append(changes, c)
		}
	}
	return changes
}
