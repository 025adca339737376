package resolve

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// nic finds the interface that a target means; ok is false after a problem.
func (r interfaces) nic(on, what string, at policy.Pos) (policy.Interface, bool) {
	if r.Interface == nil {
		return policy.Interface{Name: on, Up: true}, true
	}
	i, err := r.Interface(on)
	if err == nil {
		return i, true
	}
	hint := ""
	if missing := (*policy.ErrNoInterface)(nil); errors.As(err, &missing) && len(missing.Others) > 0 {
		hint = "interfaces here are " + yamlform.JoinSome(missing.Others)
	}
	r.Fail(at, hint, "%s %s: %v", what, on, err)
	return i, false
}

// resolveLinks finds the interfaces of host.network.
func (r interfaces) resolveLinks(links []policy.NetworkLink) []policy.NetworkLink {
	all := slices.Clone(links)
	for i := range all {
		nic, ok := r.nic(all[i].On, "host.network.on", cmp.Or(all[i].OnPos, all[i].Pos))
		if !ok {
			continue
		}
		all[i].Dev = nic.Name
		if nic.Rate > 0 && all[i].Rate > nic.Rate {
			r.Fail(all[i].Pos, "write what it carries, or leave rate out",
				"host.network: %s of %s is above the %s that its link carries", all[i].Rate, nic.Name, nic.Rate)
		}
		if o := slices.IndexFunc(all[:i], func(l policy.NetworkLink) bool {
			return l.Dev == nic.Name && l.Rate > 0 &&
				l.Rate != all[i].Rate
		}); o >= 0 && all[i].Rate > 0 {
			r.Fail(all[i].Pos, "give the interface one rate", "host.network: %s and %s are both %s, with %s and %s",
				all[o].On, all[i].On, nic.Name, all[o].Rate, all[i].Rate)
			r.Also(all[o].Pos)
		}
	}
	return all
}

// resolveNetwork finds the interface of a limit and holds the limit against it.
func (r interfaces) resolveNetwork(s policy.Setting, group string) policy.Settings {
	nic, ok := r.nic(s.On, "network.on", s.TargetPos())
	if !ok {
		return nil
	}
	s.Dev = nic.Name
	rate, limited := s.Value.(policy.BitRate)
	link, whose := r.carries(nic)
	switch {
	case limited && link > 0 && rate > link:
		r.Fail(s.Pos, "leave it out for the whole link", "%s is above the %s that %s %s", words(s), link, nic.Name,
			whose)
		return nil
	case limited && rate < leastRate:
		r.Fail(s.Pos, fmt.Sprintf("%s is the least", leastRate), "%s is too little to answer a connection", words(s))
		return nil
	case limited && nic.Control != "" && (r.Host == nil || r.Host.Reserve.Network == 0):
		// A limit that is in force is not lifted because somebody logs in.
		r.Fail(s.TargetPos(), "add `host: {reserve: {network: 1Mbit/s}}`, which traffic of no group keeps",
			"network.on %s: your way in leads through this interface (%s), and nothing is kept for it", s.On,
			nic.Control)
	}
	if !nic.Up {
		r.note(s.TargetPos(), group, "network.on %s: the interface is down now", s.On)
	}
	return policy.Settings{s}
}

// carries is what the link of an interface does, and who says so.
func (r interfaces) carries(nic policy.Interface) (link policy.BitRate, who string) {
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
const leastRate policy.BitRate = 64_000

// dev is the name of the interface of a target, without a problem when there is none.
func (r interfaces) dev(on string) (string, bool) {
	if r.Interface == nil {
		return on, true
	}
	i, err := r.Interface(on)
	return i.Name, err == nil
}

// netWay is one direction of one interface.
type netWay struct{ dev, direction string }

// sharesOf gives guarantee and ceiling of a group, by interface and direction.
func sharesOf(ss policy.Settings) map[netWay]netShare {
	all := make(map[netWay]netShare)
	for _, s := range ss {
		_, limited := s.Value.(policy.BitRate)
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

func rateOf(s policy.Setting) policy.BitRate {
	rate, _ := s.Value.(policy.BitRate)
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
	links func(dev string) policy.BitRate
	kept  policy.BitRate
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
		var sum policy.BitRate
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

// netShare is guarantee and ceiling; a setting without a value is none.
type netShare struct{ least, most policy.Setting }

func (s netShare) asked() bool { return s.least.Value != nil || s.most.Value != nil }

// floor is what has to be kept free for a group: its guarantee, or those of the groups below it where they are more.
// The setting is its own guarantee, or one of theirs.
type floor struct {
	group string
	s     policy.Setting
	rate  policy.BitRate
}

// firstOf is the first limit on an interface.
func firstOf(ss policy.Settings) policy.Setting {
	return ss[slices.IndexFunc(ss, func(s policy.Setting) bool { return s.Key.OfNetwork() })]
}

// checkShares holds the limits on interfaces against each other: a guarantee above a ceiling, guarantees that come to
// more than what they are shares of, and more groups than there are numbers for classes.
func (r checks) checkShares(h policy.HostPart, groups []Limits) {
	t := shareTree{
		parents: make(map[string]string), shares: make(map[string]map[netWay]netShare),
		below: make(map[string]map[netWay][]string),
		links: func(dev string) policy.BitRate { return interfaces(r).linkOf(h, dev) },
		kept:  h.Reserve.Network,
	}
	count := 0
	for _, g := range groups {
		shares := sharesOf(g.Settings)
		t.parents[g.Group], t.shares[g.Group] = g.Parent, shares
		if len(shares) == 0 {
			continue
		}
		if count++; count == maxShares+1 {
			r.Fail(firstOf(g.Settings).Pos, "let groups share a limit by writing it to the group above them",
				"group %s is one too many: there are numbers for %d groups with limits on interfaces", g.Group,
				maxShares)
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

// checkFloors holds guarantees against what they are shares of.
func (r checks) checkFloors(t shareTree, at string, way netWay, floors []floor) {
	whole, what := rateOf(t.shares[at][way].most), at+" may use"
	first, last := floors[0].s, floors[len(floors)-1]
	if at == "" {
		whole, what = t.links(way.dev), "the link carries"
		if whole == 0 && r.Interface != nil {
			r.Fail(first.Pos, fmt.Sprintf("add `host: {network: [{on: %s, rate: 10Gbit/s}]}`", first.On),
				"%s is a share of the link, and %s does not say what its link carries", words(first), way.dev)
		}
		if whole > t.kept && t.kept > 0 {
			whole, what = whole-t.kept, "host.reserve leaves of the link"
		}
	}
	var sum policy.BitRate
	for _, f := range floors {
		sum += f.rate
	}
	if whole == 0 || sum <= whole {
		return
	}
	r.Fail(last.s.Pos, "guarantee less", "guarantees of %s on %s come to %s with that of %s, and %s is what %s",
		way.direction, way.dev, sum, last.group, whole, what)
	for _, f := range floors[:len(floors)-1] {
		r.Also(f.s.Pos)
	}
}

// linkOf is what the link of an interface carries; 0 is not known.
func (r interfaces) linkOf(h policy.HostPart, dev string) policy.BitRate {
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
