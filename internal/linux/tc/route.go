package tc

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// route is what choosing an interface needs of a route of the main table.
type route struct {
	to     netip.Prefix // the zero prefix of its family is the default route
	metric int
	links  []int // several for a multipath route
}

// Default is the word for the interface of the default route.
const Default = "default"

// Resolve finds the interface that is meant: by its name, by "default", the default route's, or by a network such as
// "10.1.0.0/16", the one through which that is reached. One name may mean another interface tomorrow, so it is asked
// on every pass.
func (k *Conn) Resolve(on string) (Link, error) {
	prefix, isNetwork, err := network(on)
	if err != nil {
		return Link{}, err
	}
	if !isNetwork && on != Default {
		return k.Link(on)
	}
	routes, err := k.routes()
	if err != nil {
		return Link{}, err
	}
	index, err := choose(routes, on, prefix)
	if err != nil {
		return Link{}, err
	}
	l, err := k.links.LinkByIndex(index)
	if err != nil {
		return Link{}, fmt.Errorf("look at interface %d of the route for %s: %w", index, on, err)
	}
	return linkOf(l), nil
}

// network reads a CIDR. An interface's name cannot hold a slash.
func network(on string) (prefix netip.Prefix, ok bool, err error) {
	if !strings.Contains(on, "/") {
		return prefix, false, nil
	}
	if prefix, err = netip.ParsePrefix(on); err != nil {
		return prefix, false, fmt.Errorf("find the interface for %q: not a network; "+
			"hint: write one as 10.1.0.0/16, an interface by its name", on)
	}
	return prefix.Masked(), true, nil
}

// choose picks the interface of the most specific route that covers the network, of the lowest metric among equals.
// Without a network it is the default route's, of IPv4 if there is one.
func choose(routes []route, on string, prefix netip.Prefix) (int, error) {
	var fit []route
	for _, r := range routes {
		switch {
		case on == Default && r.to.Bits() == 0, on != Default && r.to.Bits() <= prefix.Bits() &&
			r.to.Contains(prefix.Addr()):
			fit = append(fit, r)
		}
	}
	slices.SortStableFunc(fit, func(a, b route) int {
		family := 0
		if on == Default {
			family = cmp.Compare(a.to.Addr().BitLen(), b.to.Addr().BitLen())
		}
		return cmp.Or(family, cmp.Compare(b.to.Bits(), a.to.Bits()), cmp.Compare(a.metric, b.metric))
	})
	if len(fit) == 0 {
		return 0, fmt.Errorf("find the interface for %s: %w; hint: name the interface", on, ErrNoRoute)
	}
	links := slices.Clone(fit[0].links)
	for _, r := range fit[1:] {
		if r.to == fit[0].to && r.metric == fit[0].metric {
			links = append(links, r.links...)
		}
	}
	slices.Sort(links)
	if links = slices.Compact(links); len(links) != 1 {
		return 0, fmt.Errorf("find the interface for %s: its route leaves through %d interfaces (%s); "+
			"hint: name one, or the bond below them", on, len(links), strings.Trim(fmt.Sprint(links), "[]"))
	}
	return links[0], nil
}

func (k *Conn) routes() ([]route, error) {
	var all []route
	for family, any := range map[int]netip.Prefix{
		unix.AF_INET:  netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		unix.AF_INET6: netip.PrefixFrom(netip.IPv6Unspecified(), 0),
	} {
		list, err := whole(func() ([]netlink.Route, error) {
			return k.links.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // no IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range list {
			if r.Type != unix.RTN_UNICAST {
				continue
			}
			one := route{to: any, metric: r.Priority}
			if p, ok := prefixOf(r.Dst); ok {
				one.to = p
			}
			for _, hop := range r.MultiPath {
				one.links = append(one.links, hop.LinkIndex)
			}
			if len(one.links) == 0 && r.LinkIndex != 0 {
				one.links = []int{r.LinkIndex}
			}
			if len(one.links) > 0 {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	if v4 := addr.Unmap(); v4.Is4() && len(n.Mask) == net.IPv4len {
		addr = v4
	}
	return netip.PrefixFrom(addr, bits), ok
}

// LinksFrom names the interfaces through which what is sent from an address of this namespace leaves: the one that
// has the address, and those below it where it is a VLAN, a bond or a bridge.
func (k *Conn) LinksFrom(from netip.Addr) ([]string, error) {
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
