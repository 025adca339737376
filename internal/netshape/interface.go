package netshape

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"
)

// Interfaces names the interfaces of the namespace, without our virtual NICs.
func (k *Kernel) Interfaces() ([]string, error) {
	links, err := k.Links()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, link := range links {
		if !ourNIC(link) {
			names = append(names, link.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Shape describes which interfaces there are, to be compared.
func (k *Kernel) Shape() (string, error) {
	links, err := k.Links()
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, link := range links {
		fmt.Fprintf(&text, "%d %s %t\n", link.Index, link.Name, link.Up)
	}
	return text.String(), nil
}

// Governed says whether something of ours is on the interface.
func (s *State) Governed() bool {
	_, has := rootOf(&s.Device)
	return has || s.NIC != nil || len(s.Policers) > 0
}

// Held is what the kernel holds for a group on an interface: its class, and how many packets it dropped.
type Held struct {
	Share
	tc.Stats
	Policed bool
}

// Held reads what is held for a group in one direction; ok is false when nothing is.
func (s *State) Held(slot Slot, d Direction) (h Held, ok bool) {
	device := &s.Device
	if d == Ingress {
		for _, p := range s.Policers {
			if p.Name == bpf.PolicerName(slot.Class(), s.Device.Index) {
				return Held{Share: Share{Max: p.Rate}, Policed: true}, true
			}
		}
		if device = s.NIC; device == nil {
			return h, false
		}
	}
	for _, r := range device.Classes {
		rate, ceil, known := tc.ParseHTBClass(r.Options)
		if !known || r.Handle != slot.Class() && r.Handle != slot.inner() {
			continue
		}
		if share := (Share{Min: rate, Max: ceil}); !ok || r.Handle == slot.inner() {
			h.Share = share // that around all of the group is what it was asked
		}
		ok = true
		if r.Handle == slot.Class() && !s.hasInner(device, slot) || r.Handle == slot.inner() {
			h.Stats = r.Stats
		}
	}
	return h, ok
}

func (s *State) hasInner(d *tc.Device, slot Slot) bool {
	return slices.ContainsFunc(d.Classes, func(r tc.Record) bool { return r.Handle == slot.inner() })
}
