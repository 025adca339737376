package resolve

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
)

// ioKeys are the limits that a ceiling bounds.
var ioKeys = []policy.Key{policy.KeyIOReadBandwidth, policy.KeyIOReadIOPS, policy.KeyIOWriteBandwidth,
	policy.KeyIOWriteIOPS}

// ceilingOf is the part of a ceiling that bounds a limit; nil when it is not known.
func ceilingOf(c policy.Ceiling, key policy.Key) policy.Value {
	switch {
	case strings.HasSuffix(string(key), ".bandwidth") && c.Bandwidth > 0:
		return c.Bandwidth
	case strings.HasSuffix(string(key), ".iops") && c.IOPS > 0:
		return c.IOPS
	}
	return nil
}

// resolveCeilings finds the devices of each ceiling.
func (r diskLimits) resolveCeilings(all []policy.Ceiling) []policy.Ceiling {
	resolved := slices.Clone(all)
	for i := range resolved {
		c := &resolved[i]
		s := policy.Setting{Key: "host.io", On: c.On, Pos: c.Pos}
		l := r.layer(s)
		if l == nil {
			continue
		}
		drives := l.Drives(auxiliary...)
		if len(drives) == 0 {
			r.Fail(c.Pos, r.disksHint(), "host.io on %s: no disk of this host holds it", c.On)
		}
		c.Devices = nil
		for _, d := range r.facts.Devices {
			if own := r.disks.Of(d.Number).Drives(auxiliary...); len(own) > 0 && within(own, drives) {
				c.Devices = append(c.Devices, d.Number)
			}
		}
	}
	return resolved
}

// within says whether all of some layers are among others.
func within(some, others []*blockdev.Layer) bool {
	return !slices.ContainsFunc(some, func(l *blockdev.Layer) bool { return !slices.Contains(others, l) })
}

// ofCeiling turns a share of a ceiling into a limit; ok is false after a problem.
func (r diskLimits) ofCeiling(s policy.Setting, l *blockdev.Layer) (policy.Setting, bool) {
	share, is := s.Value.(policy.IOPercent)
	if !is {
		return s, true
	}
	drives := l.Drives(auxiliary...)
	wider := ""
	if r.Host != nil {
		for _, c := range r.Host.IO {
			of := r.layer(policy.Setting{Key: "host.io", On: c.On, Pos: c.Pos})
			if of == nil {
				return s, false // reported
			}
			all := of.Drives(auxiliary...)
			switch {
			case !within(drives, all):
			case !within(all, drives):
				wider = c.On
			case ceilingOf(c, s.Key) == nil:
				r.Fail(s.Pos, "add the other one there",
					"%s: %s has nothing to be a share of: host.io does not name it for %s", s.Key, share, c.On)
				r.Also(c.Pos)
				return s, false
			default:
				whole := ceilingOf(c, s.Key)
				s.Raw = fmt.Sprintf("%s of %s", share, whole)
				switch whole := whole.(type) {
				case policy.Rate:
					s.Value = policy.Rate(share.Of(int64(whole)))
				case policy.IOPS:
					s.Value = policy.IOPS(share.Of(int64(whole)))
				}
				if n, _ := amount(s.Value); n == 0 {
					r.Fail(s.Pos, "", "%s: %s is less than one", s.Key, s.Raw)
					return s, false
				}
				return s, true
			}
		}
	}
	what := s.On
	if what == "" {
		what = l.Name
	}
	text := fmt.Sprintf("%s: %s of what %s can do is not known", s.Key, share, what)
	if wider != "" {
		text += fmt.Sprintf("; host.io has %s, of which it is only a part", wider)
	}
	r.Fail(s.Pos, fmt.Sprintf("write a limit, or name the ceiling: `host: {io: [{on: %s, bandwidth: …, iops: …}]}`",
		what), "%s", text)
	return s, false
}

// amount is an io limit as a number.
func amount(v policy.Value) (n int64, limited bool) {
	switch v := v.(type) {
	case policy.Rate:
		return int64(v), true
	case policy.IOPS:
		return int64(v), true
	}
	return 0, false
}

// askedOf is the limits of one group that fall under a ceiling, and whether there are any.
func askedOf(c policy.Ceiling, ss policy.Settings, key policy.Key) (total int64, first policy.Setting, any bool) {
	for _, s := range ss.All(key) {
		n, limited := amount(s.Value)
		if !limited || !slices.Contains(c.Devices, s.Dev) {
			continue
		}
		if !any {
			first, any = s, true
		}
		total += n
	}
	return total, first, any
}

// checkCeilings holds limits against what their devices can do: one that is above it never acts and is an error,
// several that come to more are worth a word.
func (r checks) checkCeilings(h policy.HostPart, groups []Limits) {
	for _, c := range h.IO {
		for _, key := range ioKeys {
			whole, known := amount(ceilingOf(c, key))
			if !known {
				continue
			}
			counted := make(map[string]bool) // groups that are counted, or lie in one that is
			var sum int64
			var who []string
			for _, g := range groups {
				total, first, any := askedOf(c, g.Settings, key)
				if counted[g.Group] = counted[g.Parent] || any; !any {
					continue
				}
				if total > whole {
					r.Fail(first.Pos, "ask for less, or correct host.io",
						"%s %s of %s never acts: %s does no more than %s", key, likeValue(first.Value, total), g.Group,
						c.On, ceilingOf(c, key))
					r.Also(c.Pos)
					continue
				}
				if !counted[g.Parent] {
					sum += total
					who = append(who, fmt.Sprintf("%s (%s, %s)", g.Group, likeValue(first.Value, total),
						place(first.Pos)))
				}
			}
			if sum > whole && len(who) > 1 {
				r.note(c.Pos, "",
					"%s: the limits on %s come to %s, and it does no more than %s: when all want theirs "+
						"nobody gets it: %s", key, c.On, likeValue(ceilingOf(c, key), sum), ceilingOf(c, key),
					strings.Join(who, ", "))
			}
		}
	}
}

// likeValue is a number as a value of the same type as another.
func likeValue(v policy.Value, n int64) policy.Value {
	if _, is := v.(policy.IOPS); is {
		return policy.IOPS(n)
	}
	return policy.Rate(n)
}

// noteOneSided says where a budget has bandwidth alone, or operations alone: many small requests, or few large ones,
// get past it.
func (r *resolution) noteOneSided(ss policy.Settings, group string) {
	type item struct{ on, from string }
	done := make(map[item]bool)
	for _, s := range ss {
		it := item{s.On, s.From}
		if _, limited := amount(s.Value); !limited || done[it] {
			continue
		}
		done[it] = true
		var lacks []string
		for _, d := range []struct {
			what            string
			bandwidth, iops policy.Key
		}{{"reading", policy.KeyIOReadBandwidth, policy.KeyIOReadIOPS},
			{"writing", policy.KeyIOWriteBandwidth, policy.KeyIOWriteIOPS}} {
			bandwidth, iops := r.has(ss, d.bandwidth, s), r.has(ss, d.iops, s)
			switch {
			case bandwidth && !iops:
				lacks = append(lacks,
					d.what+" has no iops, and many small requests can keep a disk busy within a bandwidth")
			case iops && !bandwidth:
				lacks = append(lacks,
					d.what+" has no bandwidth, and few large requests can fill a disk within a number of operations")
			}
		}
		if len(lacks) > 0 {
			what := "io for all devices"
			if s.On != "" {
				what = "io.on " + s.On
			}
			r.note(s.TargetPos(), group, "%s: %s", what, strings.Join(lacks, "; "))
		}
	}
}

// has says whether a limit of a key is on the device of another.
func (r *resolution) has(ss policy.Settings, key policy.Key, beside policy.Setting) bool {
	return slices.ContainsFunc(ss, func(s policy.Setting) bool {
		_, limited := amount(s.Value)
		return limited && s.Key == key && s.Dev == beside.Dev
	})
}
