package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
)

// NetworkLink is what the policy says of an interface.
type NetworkLink struct {
	On   string
	Rate BitRate // what the link carries; 0: as the interface says
	// Peer is an address and port ("192.0.2.1:22") that must stay within reach while limits on the interface change.
	Peer string
	Pos  Pos
	Dev  string // the interface's name; set by Resolve

	onPos Pos
}

// linkForm is one entry of `host.network:`.
func linkForm() Form[NetworkLink] {
	rate := &limit{key: "host.network.rate", unit: bitRateUnit}
	return Form[NetworkLink]{
		Name:      "an entry of host.network",
		Elsewhere: map[string]string{"bandwidth": "did you mean rate?", "max": "did you mean rate?", "egress": "limits belong to a group"},
		Keys: []FormKey[NetworkLink]{
			{
				Name: "on", Doc: "The interface, as in a group's network entry.", Schema: JSONSchema{"type": "string", "pattern": interfacePattern},
				Read: func(v Item, l *NetworkLink) {
					l.onPos = v.Pos()
					l.On, _ = readNetworkTarget(v)
				},
			},
			{
				Name: "rate", Doc: "What the link carries in each direction, where the interface does not say it or a switch behind it carries less.", Schema: rate.Schema(),
				Read: func(v Item, l *NetworkLink) {
					s, _ := v.Limit(rate)
					l.Rate, _ = s.Value.(BitRate)
				},
			},
			{
				Name: "peer", Doc: "ADDRESS:PORT of a TCP service that must stay within reach: when it is lost while limits of the network change, the change is undone.",
				Schema: JSONSchema{"type": "string", "pattern": `^.+:[0-9]+$`, "examples": []any{"192.0.2.1:22"}},
				Read: func(v Item, l *NetworkLink) {
					text, ok := v.Text()
					if wrong := checkPeer(text); ok && wrong != nil {
						v.Fail(wrong.hint, "host.network.peer: %s", wrong.msg)
					}
					l.Peer = text
				},
			},
		},
	}
}

func checkPeer(text string) *fault {
	name, port, err := net.SplitHostPort(text)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || name == "" {
		return faultf("write an address and a TCP port, such as 192.0.2.1:22 or [2001:db8::1]:22", "%q is not an address with a port", text)
	}
	return nil
}

// networkLinks reads `host.network:`.
func readNetworkLinks(v Item, o Form[NetworkLink]) []NetworkLink {
	var all []NetworkLink
	for _, item := range v.Items("write a list: `network: [{on: eth0, rate: 10Gbit/s}]`") {
		l := NetworkLink{Pos: item.Pos()}
		if !o.Read(item, "host.network.", &l) {
			continue
		}
		if l.On == "" || l.Rate == 0 && l.Peer == "" {
			item.Fail("write `{on: eth0, rate: 10Gbit/s}`, with `peer: 192.0.2.1:22` if somebody must stay within reach", "this entry of host.network says nothing about an interface")
			continue
		}
		if at := slices.IndexFunc(all, func(o NetworkLink) bool { return o.On == l.On }); at >= 0 {
			item.Fail("keep one of them", "host.network: %s is here twice", l.On)
			item.Also(all[at].Pos)
		}
		all = append(all, l)
	}
	return all
}

// reserveNetworkField is `host.reserve.network`.
func reserveNetworkField() FormKey[Reserve] {
	l := &limit{key: "host.reserve.network", unit: bitRateUnit, zero: true}
	return FormKey[Reserve]{
		Name: "network", Doc: "Bandwidth of each limited interface that traffic of no group keeps: your own way in.", Schema: l.Schema(),
		Read: func(v Item, r *Reserve) {
			r.networkPos = v.Pos()
			if s, ok := v.Limit(l); ok {
				r.Network = s.Value.(BitRate)
			}
		},
	}
}

// Interface is what a host says of a network interface.
type Interface struct {
	Name string
	Rate BitRate // what its link carries, 0 when it does not say
	Up   bool
	// Control is whose way in the interface is: "sshd's connection from 192.0.2.7"; "" is nobody's.
	Control string
}

// ErrNoInterface says that there is no such interface, or no route to such a network; Others names those there are.
type ErrNoInterface struct {
	Err    error
	Others []string
}

// Error gives the cause.
func (e *ErrNoInterface) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *ErrNoInterface) Unwrap() error { return e.Err }

// nic finds the interface that a target means; ok is false after a problem.
func (r *resolution) nic(on, what string, at Pos) (Interface, bool) {
	if r.Interface == nil {
		return Interface{Name: on, Up: true}, true
	}
	i, err := r.Interface(on)
	if err == nil {
		return i, true
	}
	hint := ""
	if missing := (*ErrNoInterface)(nil); errors.As(err, &missing) && len(missing.Others) > 0 {
		hint = "interfaces here are " + joinSome(missing.Others)
	}
	r.Fail(at, hint, "%s %s: %v", what, on, err)
	return i, false
}

// resolveLinks finds the interfaces of host.network.
func (r *resolution) resolveLinks(links []NetworkLink) []NetworkLink {
	all := slices.Clone(links)
	for i := range all {
		nic, ok := r.nic(all[i].On, "host.network.on", cmp.Or(all[i].onPos, all[i].Pos))
		if !ok {
			continue
		}
		all[i].Dev = nic.Name
		if nic.Rate > 0 && all[i].Rate > nic.Rate {
			r.Fail(all[i].Pos, "write what it carries, or leave rate out", "host.network: %s of %s is above the %s that its link carries", all[i].Rate, nic.Name, nic.Rate)
		}
		if o := slices.IndexFunc(all[:i], func(l NetworkLink) bool { return l.Dev == nic.Name && l.Rate > 0 && l.Rate != all[i].Rate }); o >= 0 && all[i].Rate > 0 {
			r.Fail(all[i].Pos, "give the interface one rate", "host.network: %s and %s are both %s, with %s and %s", all[o].On, all[i].On, nic.Name, all[o].Rate, all[i].Rate)
			r.Also(all[o].Pos)
		}
	}
	return all
}

// LinkRate is what the policy says that an interface carries, 0 when it does not.
func (h HostPart) LinkRate(dev string) BitRate {
	for _, l := range h.Network {
		if l.Rate > 0 && (l.Dev == dev || l.On == dev) {
			return l.Rate
		}
	}
	return 0
}

// Peers are the peers that the policy names, each once, of all interfaces that are there. Two entries may mean one interface, by its name and as
// that of the default route.
func (h HostPart) Peers() []string {
	var peers []string
	for _, l := range h.Network {
		if l.Peer != "" && l.Dev != "" {
			peers = append(peers, l.Peer)
		}
	}
	slices.Sort(peers)
	return slices.Compact(peers)
}

// resolveNetwork finds the interface of a limit and holds the limit against it.
func (r *resolution) resolveNetwork(s Setting, group string) Settings {
	nic, ok := r.nic(s.On, "network.on", s.target())
	if !ok {
		return nil
	}
	s.Dev = nic.Name
	rate, limited := s.Value.(BitRate)
	link, whose := r.carries(nic)
	switch {
	case limited && link > 0 && rate > link:
		r.Fail(s.Pos, "leave it out for the whole link", "%s is above the %s that %s %s", words(s), link, nic.Name, whose)
		return nil
	case limited && rate < leastRate:
		r.Fail(s.Pos, fmt.Sprintf("%s is the least", leastRate), "%s is too little to answer a connection", words(s))
		return nil
	case limited && nic.Control != "" && (r.Host == nil || r.Host.Reserve.Network == 0):
		// A limit that is in force is not lifted because somebody logs in.
		r.Fail(s.target(), "add `host: {reserve: {network: 1Mbit/s}}`, which traffic of no group keeps", "network.on %s: your way in leads through this interface (%s), and nothing is kept for it", s.On, nic.Control)
	}
	if !nic.Up {
		r.note(s.target(), group, "network.on %s: the interface is down now", s.On)
	}
	return Settings{s}
}

// carries is what the link of an interface does, and who says so.
func (r *resolution) carries(nic Interface) (link BitRate, who string) {
	if r.Host != nil {
		for _, l := range r.Host.Network {
			if dev, known := r.dev(l.On); l.Rate > 0 && known && dev == nic.Name {
				return l.Rate, "has by host.network"
			}
		}
	}
	return nic.Rate, "carries"
}

// leastRate is what a class must have: HTB counts in bytes and knows no rate of 0, and a connection needs some answer.
const leastRate BitRate = 64_000

// dev is the name of the interface of a target, without a problem when there is none.
func (r *resolution) dev(on string) (string, bool) {
	if r.Interface == nil {
		return on, true
	}
	i, err := r.Interface(on)
	return i.Name, err == nil
}

// netWay is one direction of one interface.
type netWay struct{ dev, direction string }

// sharesOf gives guarantee and ceiling of a group, by interface and direction.
func sharesOf(ss Settings) map[netWay]netShare {
	all := make(map[netWay]netShare)
	for _, s := range ss {
		_, limited := s.Value.(BitRate)
		if !s.Key.OfNetwork() || !limited {
			continue
		}
		parts := strings.Split(string(s.Key), ".")
		way := netWay{s.Dev, parts[1]}
		both := all[way]
		if parts[2] == "min" {
			both.least = s
		} else {
			both.most = s
		}
		all[way] = both
	}
	return all
}

func rateOf(s Setting) BitRate {
	rate, _ := s.Value.(BitRate)
	return rate
}

// maxShares is how many groups can have a class: netshape's range of numbers.
const maxShares = 2047

// shareTree is what groups ask of interfaces, with who is inside whom.
type shareTree struct {
	parents map[string]string
	shares  map[string]map[netWay]netShare
	// below are those right below a group that has a share, "" for the top: groups with shares of their own.
	below map[string]map[netWay][]string
	links func(dev string) BitRate
	kept  BitRate
}

// netShare is guarantee and ceiling; a setting without a value is none.
type netShare struct{ least, most Setting }

func (s netShare) asked() bool { return s.least.Value != nil || s.most.Value != nil }

// floor is what has to be kept free for a group: its guarantee, or those of the groups below it where they are more. The setting is its own
// guarantee, or one of theirs.
type floor struct {
	group string
	s     Setting
	rate  BitRate
}

// checkShares holds the limits on interfaces against each other: a guarantee above a ceiling, guarantees that come to more than
// what they are shares of, and more groups than there are numbers for classes.
func (r *resolution) checkShares(h HostPart, groups []Limits) {
	t := shareTree{
		parents: make(map[string]string), shares: make(map[string]map[netWay]netShare), below: make(map[string]map[netWay][]string),
		links: func(dev string) BitRate { return r.linkOf(h, dev) }, kept: h.Reserve.Network,
	}
	count := 0
	for _, g := range groups {
		shares := sharesOf(g.Settings)
		t.parents[g.Group], t.shares[g.Group] = g.Parent, shares
		if len(shares) == 0 {
			continue
		}
		if count++; count == maxShares+1 {
			r.Fail(firstOf(g.Settings).Pos, "let groups share a limit by writing it to the group above them", "group %s is one too many: there are numbers for %d groups with limits on interfaces", g.Group, maxShares)
		}
		for way, s := range shares {
			if rateOf(s.most) > 0 && rateOf(s.least) > rateOf(s.most) {
				r.Fail(s.least.Pos, "", "%s is above %s", words(s.least), words(s.most))
				r.Also(s.most.Pos)
			}
			t.add(g.Group, way)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(t.below)) {
		for way := range t.below[at] {
			if floors := t.floors(at, way); len(floors) > 0 {
				r.checkFloors(t, at, way, floors)
			}
		}
	}
}

// firstOf is the first limit on an interface.
func firstOf(ss Settings) Setting {
	return ss[slices.IndexFunc(ss, func(s Setting) bool { return s.Key.OfNetwork() })]
}

// add puts a group below the nearest one above it that has a share.
func (t *shareTree) add(group string, way netWay) {
	at := t.parents[group]
	for at != "" && !t.shares[at][way].asked() {
		at = t.parents[at]
	}
	if t.below[at] == nil {
		t.below[at] = make(map[netWay][]string)
	}
	t.below[at][way] = append(t.below[at][way], group)
}

// floors are those of the groups right below one.
func (t *shareTree) floors(at string, way netWay) (all []floor) {
	for _, group := range t.below[at][way] {
		least := t.shares[group][way].least
		f := floor{group, least, rateOf(least)}
		var sum BitRate
		inner := t.floors(group, way)
		for _, i := range inner {
			sum += i.rate
		}
		if f.rate = max(f.rate, sum); f.s.Value == nil && len(inner) > 0 {
			f.s = inner[len(inner)-1].s
		}
		if f.rate > 0 {
			all = append(all, f)
		}
	}
	return all
}

// checkFloors holds guarantees against what they are shares of.
func (r *resolution) checkFloors(t shareTree, at string, way netWay, floors []floor) {
	whole, what := rateOf(t.shares[at][way].most), at+" may use"
	first, last := floors[0].s, floors[len(floors)-1]
	if at == "" {
		whole, what = t.links(way.dev), "the link carries"
		if whole == 0 && r.Interface != nil {
			r.Fail(first.Pos, fmt.Sprintf("add `host: {network: [{on: %s, rate: 10Gbit/s}]}`", first.On), "%s is a share of the link, and %s does not say what its link carries", words(first), way.dev)
		}
		if whole > t.kept && t.kept > 0 {
			whole, what = whole-t.kept, "host.reserve leaves of the link"
		}
	}
	var sum BitRate
	for _, f := range floors {
		sum += f.rate
	}
	if whole == 0 || sum <= whole {
		return
	}
	r.Fail(last.s.Pos, "guarantee less", "guarantees of %s on %s come to %s with that of %s, and %s is what %s", way.direction, way.dev, sum, last.group, whole, what)
	for _, f := range floors[:len(floors)-1] {
		r.Also(f.s.Pos)
	}
}

// linkOf is what the link of an interface carries; 0 is not known.
func (r *resolution) linkOf(h HostPart, dev string) BitRate {
	if rate := h.LinkRate(dev); rate > 0 {
		return rate
	}
	if r.Interface == nil {
		return 0
	}
	i, err := r.Interface(dev)
	if err != nil {
		return 0
	}
	return i.Rate
}
