package netshape

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Interfaces names the interfaces of the namespace, without our virtual NICs.
func (k *Kernel) Interfaces() ([]string, error) {
	list, err := k.linkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var names []string
	for _, l := range list {
		if link := linkOf(l); !link.ours() {
			names = append(names, link.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Layout of struct ethtool_cmd and struct ifreq (include/uapi/linux/ethtool.h, if.h).
const (
	ethtoolGetSettings = 0x1
	ethtoolSize        = 44
	ethtoolSpeed       = 12
	ethtoolSpeedHigh   = 28
)

type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// Carries is the rate of a link as its driver says it; 0 when it does not, or only pretends to: a veth pair says 10 Gbit/s, whatever it
// carries.
func (k *Kernel) Carries(l Link) Rate {
	if !slices.Contains([]string{"", "bond", "team", "vlan"}, l.Kind) {
		return 0
	}
	buf := make([]byte, ethtoolSize)
	binary.NativeEndian.PutUint32(buf, ethtoolGetSettings)
	r := ifreq{data: unsafe.Pointer(&buf[0])}
	copy(r.name[:unix.IFNAMSIZ-1], l.Name)
	// Any socket of the namespace does.
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(k.tc.Socket.GetFd()), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	runtime.KeepAlive(buf)
	if errno != 0 {
		return 0
	}
	speed := uint32(binary.NativeEndian.Uint16(buf[ethtoolSpeed:])) | uint32(binary.NativeEndian.Uint16(buf[ethtoolSpeedHigh:]))<<16
	if speed == 0 || speed == 1<<32-1 || speed == 1<<16-1 {
		return 0
	}
	return Rate(speed) * Mbit
}

// Ways names the interfaces through which what is sent from an address of this namespace leaves: the one that has the address, and
// those below it where it is a VLAN, a bond or a bridge.
func (k *Kernel) Ways(from netip.Addr) ([]string, error) {
	addresses, err := whole(func() ([]netlink.Addr, error) { return k.links.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	links, err := k.linkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var names []string
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap() == from.Unmap() {
			names = below(links, a.LinkIndex, names)
		}
	}
	return names, nil
}

// below adds an interface, and those that it lies on.
func below(links []netlink.Link, index int, names []string) []string {
	for _, l := range links {
		if a := l.Attrs(); a.Index == index && !slices.Contains(names, a.Name) {
			names = append(names, a.Name)
			if l.Type() == "vlan" || l.Type() == "macvlan" {
				names = below(links, a.ParentIndex, names)
			}
		}
	}
	for _, l := range links {
		if a := l.Attrs(); a.MasterIndex == index && index != 0 && !slices.Contains(names, a.Name) {
			names = below(links, a.Index, names)
		}
	}
	return names
}

// Named gives the interface of an index; ErrNoDevice when there is none.
func (k *Kernel) Named(index int) (Link, error) {
	list, err := k.linkList()
	if err != nil {
		return Link{}, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range list {
		if l.Attrs().Index == index {
			return linkOf(l), nil
		}
	}
	return Link{}, fmt.Errorf("look at interface %d: %w", index, ErrNoDevice)
}

// Shape describes which interfaces there are, to be compared.
func (k *Kernel) Shape() (string, error) {
	list, err := k.linkList()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	var text strings.Builder
	for _, l := range list {
		link := linkOf(l)
		fmt.Fprintf(&text, "%d %s %t\n", link.Index, link.Name, link.Up)
	}
	return text.String(), nil
}

// Governed says whether something of ours is on the interface.
func (s *State) Governed() bool {
	_, has := s.Device.root()
	return has || s.NIC != nil || len(s.Policers) > 0
}

// Held is what the kernel holds for a group on an interface: its class, and how many packets it dropped.
type Held struct {
	Share
	Stats
	Policed bool
}

// Held reads what is held for a group in one direction; ok is false when nothing is.
func (s *State) Held(slot Slot, d Direction) (h Held, ok bool) {
	device := &s.Device
	if d == Ingress {
		for _, p := range s.Policers {
			if p.Name == policerName(slot, s.Device.Index) {
				return Held{Share: Share{Max: p.Rate}, Policed: true}, true
			}
		}
		if device = s.NIC; device == nil {
			return h, false
		}
	}
	for _, r := range device.Classes {
		class, known := parseHTBClass(r.Options)
		if !known || r.Handle != slot.Class() && r.Handle != slot.inner() {
			continue
		}
		if share := (Share{Min: Rate(8 * class.rate), Max: Rate(8 * class.ceil)}); !ok || r.Handle == slot.inner() {
			h.Share = share // that around all of the group is what it was asked
		}
		ok = true
		if r.Handle == slot.Class() && !s.hasInner(device, slot) || r.Handle == slot.inner() {
			h.Stats = r.Stats
		}
	}
	return h, ok
}

func (s *State) hasInner(d *Device, slot Slot) bool {
	return slices.ContainsFunc(d.Classes, func(r Record) bool { return r.Handle == slot.inner() })
}
