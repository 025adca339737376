// Package policydb reads the policy that a kernel has loaded, as /sys/fs/selinux/policy gives it, and answers what it
// allows: the rules, the booleans, the types of ports, the domains that programs start in. It is what setools and
// audit2why find out, without them.
//
// The format is that of the kernel (security/selinux/ss/policydb.c): versions 24 to 35 with MLS, little-endian, and no
// module's package. Decode reads it whole; a Policy is only read afterwards and may be used at once by many.
// Constraints are known by the permissions that they are on, and not computed.
package policydb

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

const (
	magic  = 0xf97cff8c
	target = "SE Linux"
	oldest = 24
	newest = 35
)

// Policy is a policy.
type Policy struct {
	Version    int
	types      map[string]uint32
	names      map[uint32]string // of types
	values     uint32            // of types, the highest
	attrs      map[uint32][]uint32
	classes    map[string]class
	bools      []boolean // by value, from 1
	allowed    map[key]uint32
	starts     map[key]uint32 // type transitions
	conds      []condition
	when       map[key][]branch
	ports      []Port
	permissive map[uint32]bool
}

type class struct {
	value       uint16
	permissions map[string]uint32 // the bit
	constrained uint32
}

type boolean struct {
	name string
	on   bool
}

type key struct {
	source, target uint32
	class          uint16
}

// condition is a part of the policy that booleans switch.
type condition struct{ expr []step }

type step struct{ kind, boolean uint32 }

// branch is what a condition allows while it is as `on` says.
type branch struct {
	condition int
	on        bool
	allowed   uint32
}

// Port is a range of ports of one type.
type Port struct {
	Protocol  string // "tcp", "udp", "dccp", "sctp"
	Low, High int
	Type      string
	kind      uint32
}

// GeneralPorts are types of all ports that have no other one.
var GeneralPorts = []string{"port_t", "unreserved_port_t", "ephemeral_port_t", "reserved_port_t", "hi_reserved_port_t"}

// General says whether the ports are nobody's in particular.
func (p Port) General() bool { return p.Type == "" || slices.Contains(GeneralPorts, p.Type) }

// Decode reads a policy.
func Decode(data []byte) (*Policy, error) {
	c := &cursor{data: data}
	if c.u32() != magic || c.text(c.u32()) != target {
		return nil, errors.New("this is no policy of SELinux for the kernel")
	}
	p := &Policy{types: map[string]uint32{}, names: map[uint32]string{}, attrs: map[uint32][]uint32{},
		classes: map[string]class{}, allowed: map[key]uint32{}, starts: map[key]uint32{}, when: map[key][]branch{},
		permissive: map[uint32]bool{}}
	p.Version = int(c.u32())
	config, symbols, contexts := c.u32(), c.u32(), c.u32()
	switch {
	case c.err != nil:
		return nil, c.err
	case p.Version < oldest || p.Version > newest:
		return nil, fmt.Errorf("policy version %d: %d to %d can be read", p.Version, oldest, newest)
	case config&1 == 0 || symbols != 8 || contexts < 7 || contexts > 9:
		return nil, fmt.Errorf("a policy without MLS, or of an unknown kind: %d symbols, %d contexts", symbols,
			contexts)
	}
	c.bits() // capabilities
	for _, t := range c.bits() {
		p.permissive[t] = true
	}
	if p.Version >= 35 {
		c.bits() // domains that are never audited
	}
	p.symbols(c)
	p.rules(c)
	p.transitions(c)
	p.contexts(c, int(contexts))
	return p, c.err
}

// symbols reads the tables of names.
func (p *Policy) symbols(c *cursor) {
	common := map[string]map[string]uint32{}
	table := func(read func()) (values uint32) {
		values = c.u32()
		for range c.count(4) {
			if c.err == nil {
				read()
			}
		}
		return values
	}
	table(func() {
		length := c.u32()
		c.skip32(2)
		n := c.count(8)
		name := c.text(length)
		common[name] = permissions(c, n)
	})
	table(func() { p.class(c, common) })
	table(func() { // roles
		length := c.u32()
		c.skip32(2)
		c.text(length)
		c.bits()
		c.bits()
	})
	p.values = table(func() {
		length, value, properties := c.u32(), c.u32(), c.u32()
		c.u32()
		name := c.text(length)
		p.types[name] = value
		if properties&3 == 1 { // neither an alias nor an attribute
			p.names[value] = name
		}
	})
	table(func() { // users
		length := c.u32()
		c.skip32(2)
		c.text(length)
		c.bits()
		c.mls()
		c.u32()
		c.bits()
	})
	table(func() {
		value, state, length := c.u32(), c.u32(), c.u32()
		if value > most {
			c.err = cmp.Or(c.err, errors.New("a boolean of an impossible number"))
			return
		}
		for len(p.bools) <= int(value) {
			p.bools = append(p.bools, boolean{})
		}
		p.bools[value] = boolean{name: c.text(length), on: state != 0}
	})
	table(func() { // sensitivities
		length := c.u32()
		c.u32()
		c.text(length)
		c.u32()
		c.bits()
	})
	table(func() { // categories
		length := c.u32()
		c.skip32(2)
		c.text(length)
	})
}

func permissions(c *cursor, n int) map[string]uint32 {
	bits := map[string]uint32{}
	for range n {
		length, value := c.u32(), c.u32()
		if name := c.text(length); value >= 1 && value <= 32 {
			bits[name] = 1 << (value - 1)
		}
	}
	return bits
}

func (p *Policy) class(c *cursor, common map[string]map[string]uint32) {
	length, inherited, value := c.u32(), c.u32(), c.u32()
	c.u32()
	n, constraints := c.count(8), int(c.u32())
	name := c.text(length)
	from := ""
	if inherited > 0 {
		from = c.text(inherited)
	}
	k := class{value: uint16(value), permissions: permissions(c, n)}
	for name, bit := range common[from] {
		k.permissions[name] = bit
	}
	k.constrained = p.constraints(c, constraints)
	p.constraints(c, int(c.u32())) // on changes of labels
	if p.Version >= 27 {
		c.skip32(3)
	}
	if p.Version >= 28 {
		c.u32()
	}
	p.classes[name] = k
}

// constraints gives the permissions that they are on.
func (p *Policy) constraints(c *cursor, n int) (on uint32) {
	for range n {
		on |= c.u32()
		for range c.count(12) {
			kind := c.u32()
			c.skip32(2)
			if kind != 5 { // names
				continue
			}
			c.bits()
			if p.Version >= 29 {
				c.bits()
				c.bits()
				c.u32()
			}
		}
		if c.err != nil {
			return on
		}
	}
	return on
}

const (
	ruleAllowed    = 0x0001
	ruleTransition = 0x0010
	ruleExtended   = 0x0700
)

// rule reads one.
func rule(c *cursor) (k key, kind uint16, value uint32) {
	k = key{source: uint32(c.u16()), target: uint32(c.u16()), class: c.u16()}
	kind = c.u16()
	if kind&ruleExtended != 0 {
		c.take(2)
		c.skip32(8)
		return k, kind, 0
	}
	return k, kind, c.u32()
}

// rules reads those that always count, and those that booleans switch.
func (p *Policy) rules(c *cursor) {
	for range c.count(12) {
		k, kind, value := rule(c)
		switch {
		case kind&ruleExtended != 0:
		case kind&ruleAllowed != 0:
			p.allowed[k] |= value
		case kind&ruleTransition != 0:
			p.starts[k] = value
		}
	}
	for at := range c.count(8) {
		c.u32() // state
		cond := condition{}
		for range c.count(8) {
			cond.expr = append(cond.expr, step{kind: c.u32(), boolean: c.u32()})
		}
		p.conds = append(p.conds, cond)
		for _, on := range []bool{true, false} {
			for range c.count(12) {
				if k, kind, value := rule(c); kind&ruleExtended == 0 && kind&ruleAllowed != 0 {
					p.when[k] = append(p.when[k], branch{condition: at, on: on, allowed: value})
				}
			}
		}
	}
}

// transitions leaves out those of roles and those by a file's name.
func (p *Policy) transitions(c *cursor) {
	n := c.count(12)
	if p.Version >= 26 {
		c.skip32(4 * n)
	} else {
		c.skip32(3 * n)
	}
	c.skip32(2 * c.count(8))
	if p.Version < 25 {
		return
	}
	for range c.count(16) {
		c.text(c.u32())
		if p.Version < 33 {
			c.skip32(4)
			continue
		}
		c.skip32(2)
		for range c.count(12) {
			c.bits()
			c.u32()
		}
	}
}

// contexts reads the types of ports, and which attributes each type has.
func (p *Policy) contexts(c *cursor, kinds int) {
	protocols := map[uint32]string{6: "tcp", 17: "udp", 33: "dccp", 132: "sctp"}
	for kind := range kinds {
		for range c.count(8) {
			switch kind {
			case 0: // initial contexts
				c.u32()
				c.context()
			case 1, 3: // file systems, interfaces
				c.text(c.u32())
				c.context()
				c.context()
			case 2:
				port := Port{Protocol: protocols[c.u32()], Low: int(c.u32()), High: int(c.u32())}
				port.kind = c.context()
				port.Type = p.names[port.kind]
				p.ports = append(p.ports, port)
			case 4: // IPv4
				c.skip32(2)
				c.context()
			case 5: // how file systems have labels
				c.u32()
				c.text(c.u32())
				c.context()
			case 6: // IPv6
				c.skip32(8)
				c.context()
			case 7: // InfiniBand
				c.skip32(4)
				c.context()
			case 8:
				length := c.u32()
				c.u32()
				c.text(length)
				c.context()
			}
		}
	}
	for range c.count(8) { // labels by path, as of /proc
		c.text(c.u32())
		for range c.count(8) {
			c.text(c.u32())
			c.u32()
			c.context()
		}
	}
	for range c.count(12) { // ranges of processes
		c.skip32(2)
		if p.Version >= 21 {
			c.u32()
		}
		c.mls()
	}
	for value := range min(p.values, most) {
		for _, bit := range c.bits() {
			p.attrs[value+1] = append(p.attrs[value+1], bit+1)
		}
	}
}
