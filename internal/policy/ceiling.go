package policy

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"bulkhead/internal/host"
)

// Ceiling is what a device, or several together, can do at most in each direction, as the policy knows it.
type Ceiling struct {
	On        string
	Bandwidth Rate // 0: not known
	IOPS      IOPS // 0: not known
	Model     *Model
	Pos       Pos
	// Devices are the numbers of all devices that lie on nothing but what On means; set by Resolve.
	Devices []string
}

// of is the part of a ceiling that bounds a limit; nil when it is not known.
func (c Ceiling) of(key Key) Value {
	switch {
	case strings.HasSuffix(string(key), ".bandwidth") && c.Bandwidth > 0:
		return c.Bandwidth
	case strings.HasSuffix(string(key), ".iops") && c.IOPS > 0:
		return c.IOPS
	}
	return nil
}

// ioKeys are the limits that a ceiling bounds.
var ioKeys = []Key{KeyIOReadBandwidth, KeyIOReadIOPS, KeyIOWriteBandwidth, KeyIOWriteIOPS}

// ioPercentOf reads a share of a ceiling.
func ioPercentOf(n *big.Rat, text string) (Value, *fault) {
	share, wrong := scaled(n, One, text)
	if wrong == nil && share > 100*One {
		return nil, faultf("", "%s is more than all that the disk can do", text)
	}
	return IOPercent(share), wrong
}

// iopsUnit reads a number of operations, or a share of what the disk can do.
var iopsUnit = func() unit {
	whole := integerUnit[IOPS]("an IOPS limit", 1, 1<<31-1)
	return unit{
		number: true,
		schema: JSONSchema{"anyOf": []any{whole.schema, percentSchema}},
		read: func(text string) (Value, *fault) {
			if number, name, ok := split(text); ok && name == "%" {
				n, wrong := decimal(number)
				if wrong != nil {
					return nil, wrong
				}
				return ioPercentOf(n, text)
			}
			return whole.read(text)
		},
	}
}()

var percentSchema = JSONSchema{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? ?%$`, "examples": []any{"20%"}}

// ceilingForm is one entry of `host.io:`.
func ceilingForm() Form[Ceiling] {
	bandwidth, iops := &limit{key: "host.io.bandwidth", unit: rateUnit}, &limit{key: "host.io.iops", unit: integerUnit[IOPS]("a number of operations", 1, 1<<31-1)}
	return Form[Ceiling]{
		Name:      "an entry of host.io",
		Elsewhere: map[string]string{"read": "a ceiling is for reads and for writes alike", "write": "a ceiling is for reads and for writes alike"},
		Keys: []FormKey[Ceiling]{
			{
				Name: "on", Doc: "What the ceiling is of: a device, a mount point, any path on it, vg:NAME or asm:NAME.", Schema: JSONSchema{"type": "string", "pattern": targetPattern},
				Read: func(v Item, c *Ceiling) {
					text, ok := v.Text()
					if !ok {
						return
					}
					target, wrong := ioTarget(text)
					if wrong != nil {
						v.Fail(wrong.hint, "host.io.on: %s", wrong.msg)
					}
					c.On = target
				},
			},
			{
				Name: "bandwidth", Doc: "Most bytes that it reads, or writes, in a second.", Schema: sizeRateSchema,
				Read: func(v Item, c *Ceiling) {
					s, ok := v.Limit(bandwidth)
					if c.Bandwidth, _ = s.Value.(Rate); ok && c.Bandwidth == 0 {
						v.Fail("write a rate, such as 500MB/s", "host.io.bandwidth: %s is a share of nothing", s.Value)
					}
				},
			},
			{
				Name: "iops", Doc: "Most operations that it does in a second, reads or writes.", Schema: iops.Schema(),
				Read: func(v Item, c *Ceiling) {
					s, _ := v.Limit(iops)
					c.IOPS, _ = s.Value.(IOPS)
				},
			},
			modelField(),
		},
	}
}

// ceilings reads `host.io:`.
func readCeilings(v Item, o Form[Ceiling]) []Ceiling {
	var all []Ceiling
	for _, item := range v.Items("write a list: `io: [{on: /dev/sdb, bandwidth: 500MB/s, iops: 8000}]`") {
		c := Ceiling{Pos: item.Pos()}
		if !o.Read(item, "host.io.", &c) {
			continue
		}
		switch {
		case c.On == "":
			item.Fail("add `on: /dev/sdb`, a path, vg:NAME or asm:NAME", "this entry of host.io names no device")
			continue
		case c.Bandwidth == 0 && c.IOPS == 0 && c.Model == nil:
			item.Fail("add `bandwidth: 500MB/s` or `iops: 8000`; `bulkhead discover disks --measure` measures them", "this entry of host.io names no ceiling of %s", c.On)
			continue
		}
		if at := slices.IndexFunc(all, func(o Ceiling) bool { return o.On == c.On }); at >= 0 {
			item.Fail("keep one of them", "host.io: %s is here twice", c.On)
			item.Also(all[at].Pos)
		}
		all = append(all, c)
	}
	return all
}

// resolveCeilings finds the devices of each ceiling.
func (r *resolution) resolveCeilings(all []Ceiling) []Ceiling {
	resolved := slices.Clone(all)
	for i := range resolved {
		c := &resolved[i]
		s := Setting{Key: "host.io", On: c.On, Pos: c.Pos}
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
func within(some, others []*host.Layer) bool {
	return !slices.ContainsFunc(some, func(l *host.Layer) bool { return !slices.Contains(others, l) })
}

// ofCeiling turns a share of a ceiling into a limit; ok is false after a problem.
func (r *resolution) ofCeiling(s Setting, l *host.Layer) (Setting, bool) {
	share, is := s.Value.(IOPercent)
	if !is {
		return s, true
	}
	drives := l.Drives(auxiliary...)
	wider := ""
	if r.Host != nil {
		for _, c := range r.Host.IO {
			of := r.layer(Setting{Key: "host.io", On: c.On, Pos: c.Pos})
			if of == nil {
				return s, false // reported
			}
			all := of.Drives(auxiliary...)
			switch {
			case !within(drives, all):
			case !within(all, drives):
				wider = c.On
			case c.of(s.Key) == nil:
				r.Fail(s.Pos, "add the other one there", "%s: %s has nothing to be a share of: host.io does not name it for %s", s.Key, share, c.On)
				r.Also(c.Pos)
				return s, false
			default:
				whole := c.of(s.Key)
				s.Raw = fmt.Sprintf("%s of %s", share, whole)
				switch whole := whole.(type) {
				case Rate:
					s.Value = Rate(share.of(int64(whole)))
				case IOPS:
					s.Value = IOPS(share.of(int64(whole)))
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
	r.Fail(s.Pos, fmt.Sprintf("write a limit, or name the ceiling: `host: {io: [{on: %s, bandwidth: …, iops: …}]}`", what), "%s", text)
	return s, false
}

// amount is an io limit as a number.
func amount(v Value) (n int64, limited bool) {
	switch v := v.(type) {
	case Rate:
		return int64(v), true
	case IOPS:
		return int64(v), true
	}
	return 0, false
}

// asked is the limits of one group that fall under a ceiling, and whether there are any.
func (c Ceiling) asked(ss Settings, key Key) (total int64, first Setting, any bool) {
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

// checkCeilings holds limits against what their devices can do: one that is above it never acts and is an error, several
// that come to more are worth a word.
func (r *resolution) checkCeilings(h HostPart, groups []Limits) {
	for _, c := range h.IO {
		for _, key := range ioKeys {
			whole, known := amount(c.of(key))
			if !known {
				continue
			}
			counted := make(map[string]bool) // groups that are counted, or lie in one that is
			var sum int64
			var who []string
			for _, g := range groups {
				total, first, any := c.asked(g.Settings, key)
				if counted[g.Group] = counted[g.Parent] || any; !any {
					continue
				}
				if total > whole {
					r.Fail(first.Pos, "ask for less, or correct host.io", "%s %s of %s never acts: %s does no more than %s", key, likeValue(first.Value, total), g.Group, c.On, c.of(key))
					r.Also(c.Pos)
					continue
				}
				if !counted[g.Parent] {
					sum += total
					who = append(who, fmt.Sprintf("%s (%s, %s)", g.Group, likeValue(first.Value, total), place(first.Pos)))
				}
			}
			if sum > whole && len(who) > 1 {
				r.note(c.Pos, "", "%s: the limits on %s come to %s, and it does no more than %s: when all want theirs nobody gets it: %s", key, c.On, likeValue(c.of(key), sum), c.of(key), strings.Join(who, ", "))
			}
		}
	}
}

// likeValue is a number as a value of the same type as another.
func likeValue(v Value, n int64) Value {
	if _, is := v.(IOPS); is {
		return IOPS(n)
	}
	return Rate(n)
}

// noteOneSided says where a budget has bandwidth alone, or operations alone: many small requests, or few large ones, get past it.
func (r *resolution) noteOneSided(ss Settings, group string) {
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
			bandwidth, iops Key
		}{{"reading", KeyIOReadBandwidth, KeyIOReadIOPS}, {"writing", KeyIOWriteBandwidth, KeyIOWriteIOPS}} {
			bandwidth, iops := r.has(ss, d.bandwidth, s), r.has(ss, d.iops, s)
			switch {
			case bandwidth && !iops:
				lacks = append(lacks, d.what+" has no iops, and many small requests can keep a disk busy within a bandwidth")
			case iops && !bandwidth:
				lacks = append(lacks, d.what+" has no bandwidth, and few large requests can fill a disk within a number of operations")
			}
		}
		if len(lacks) > 0 {
			what := "io for all devices"
			if s.On != "" {
				what = "io.on " + s.On
			}
			r.note(s.target(), group, "%s: %s", what, strings.Join(lacks, "; "))
		}
	}
}

// has says whether a limit of a key is on the device of another.
func (r *resolution) has(ss Settings, key Key, beside Setting) bool {
	return slices.ContainsFunc(ss, func(s Setting) bool {
		_, limited := amount(s.Value)
		return limited && s.Key == key && s.Dev == beside.Dev
	})
}
