package policydb

import (
	"cmp"
	"slices"
	"strings"
)

// Access is what a policy says of an access.
type Access struct {
	// Known is false where the policy has no such type, class or permission.
	Known bool
	// Missing are the permissions that its rules do not allow now.
	Missing []string
	// Constrained says that a constraint (of users, roles or ranges) is on one of the permissions: rules that allow it
	// may not be enough.
	Constrained bool
	// Booleans would allow all that is missing, each alone, when they are switched.
	Booleans []Boolean
	// Permissive says that denials of the domain are only logged.
	Permissive bool
}

// Boolean is one that would allow an access.
type Boolean struct {
	Name string `json:"name"`
	// On is how to set it, or how it is.
	On bool `json:"on"`
}

// Access answers what the rules say of an access. Attributes and booleans in force are counted in.
func (p *Policy) Access(source, target, className string, permissions []string) Access {
	s, known := p.types[source]
	t, also := p.types[target]
	k, both := p.classes[className]
	if !known || !also || !both {
		return Access{}
	}
	asked := uint32(0)
	for _, name := range permissions {
		bit, known := k.permissions[name]
		if !known {
			return Access{}
		}
		asked |= bit
	}
	a := Access{Known: true, Constrained: k.constrained&asked != 0, Permissive: p.permissive[s]}
	state := make([]bool, len(p.bools))
	for i, b := range p.bools {
		state[i] = b.on
	}
	always, switched := p.vector(s, t, k.value)
	missing := func() uint32 { return asked &^ always &^ p.switched(switched, state) }
	lacks := missing()
	for _, name := range permissions {
		if lacks&k.permissions[name] != 0 {
			a.Missing = append(a.Missing, name)
		}
	}
	if lacks == 0 {
		return a
	}
	tried := map[uint32]bool{}
	for _, b := range switched {
		for _, step := range p.conds[b.condition].expr {
			i := step.boolean
			if step.kind != condBoolean || tried[i] || int(i) >= len(p.bools) {
				continue
			}
			tried[i] = true
			state[i] = !state[i]
			if missing() == 0 {
				a.Booleans = append(a.Booleans, Boolean{Name: p.bools[i].name, On: state[i]})
			}
			state[i] = !state[i]
		}
	}
	slices.SortFunc(a.Booleans, func(a, b Boolean) int { return strings.Compare(a.Name, b.Name) })
	return a
}

// vector is what a source may do: always, and what booleans switch.
func (p *Policy) vector(source, target uint32, class uint16) (always uint32, switched []branch) {
	for _, s := range p.ofType(source) {
		for _, t := range p.ofType(target) {
			k := key{s, t, class}
			always |= p.allowed[k]
			switched = append(switched, p.when[k]...)
		}
	}
	return always, switched
}

// switched is what conditions allow with the booleans as state has them.
func (p *Policy) switched(all []branch, state []bool) (allowed uint32) {
	for _, b := range all {
		if p.holds(p.conds[b.condition].expr, state) == b.on {
			allowed |= b.allowed
		}
	}
	return allowed
}

// ofType is a type with its attributes.
func (p *Policy) ofType(t uint32) []uint32 {
	if attrs := p.attrs[t]; len(attrs) > 0 {
		return attrs
	}
	return []uint32{t}
}

const condBoolean = 1

// holds computes the expression of a condition, in reverse Polish notation.
func (p *Policy) holds(expr []step, state []bool) bool {
	var stack []bool
	pop := func() (v bool) {
		if n := len(stack); n > 0 {
			v, stack = stack[n-1], stack[:n-1]
		}
		return v
	}
	for _, s := range expr {
		switch s.kind {
		case condBoolean:
			stack = append(stack, int(s.boolean) < len(state) && state[s.boolean])
		case 2:
			stack = append(stack, !pop())
		default:
			b, a := pop(), pop()
			stack = append(stack, s.kind == 3 && (a || b) || s.kind == 4 && a && b || (s.kind == 5 || s.kind == 7) &&
				a != b || s.kind == 6 && a == b)
		}
	}
	return pop()
}

// PortType is the type of a port, and the range of ports that has it; ok is false where the policy has none.
func (p *Policy) PortType(protocol string, port int) (found Port, ok bool) {
	for _, r := range p.ports {
		if r.Protocol == protocol && r.Low <= port && port <= r.High {
			return r, true
		}
	}
	return Port{}, false
}

// PortTypes are the types of ports of a protocol that a source may use so, for each the ranges that have it.
func (p *Policy) PortTypes(source, protocol, className string, permissions []string) map[string][]Port {
	found := map[string][]Port{}
	asked := map[string]bool{}
	for _, r := range p.ports {
		if r.Protocol != protocol || r.Type == "" {
			continue
		}
		may, known := asked[r.Type]
		if !known {
			a := p.Access(source, r.Type, className, permissions)
			may = a.Known && len(a.Missing) == 0
			asked[r.Type] = may
		}
		if may {
			found[r.Type] = append(found[r.Type], r)
		}
	}
	return found
}

// Domain is the type that a process of source starts in when it runs a file of a type; "" is its own.
func (p *Policy) Domain(source, file string) string { return p.transition(source, file, "process") }

// Created is the type of what a source makes in a directory of a type: that of the directory, where no rule has
// another. Rules that depend on the name of what is made are left out.
func (p *Policy) Created(source, dir, className string) string {
	return cmp.Or(p.transition(source, dir, className), dir)
}

func (p *Policy) transition(source, target, className string) string {
	for _, s := range p.ofType(p.types[source]) {
		for _, t := range p.ofType(p.types[target]) {
			if to := p.starts[key{s, t, p.classes[className].value}]; to > 0 {
				return p.names[to]
			}
		}
	}
	return ""
}

// BooleansOf are the booleans that switch rules of a type itself, and not only of an attribute that it has with others,
// as they are now, sorted.
func (p *Policy) BooleansOf(source string) (found []Boolean) {
	s, known := p.types[source]
	seen := map[uint32]bool{}
	for k, branches := range p.when {
		if !known || k.source != s {
			continue
		}
		for _, b := range branches {
			for _, step := range p.conds[b.condition].expr {
				if i := step.boolean; step.kind == condBoolean && int(i) < len(p.bools) && !seen[i] {
					seen[i] = true
					found = append(found, Boolean{Name: p.bools[i].name, On: p.bools[i].on})
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b Boolean) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// Permissive are the domains of which denials are only logged, sorted.
func (p *Policy) Permissive() []string {
	names := []string{}
	for t := range p.permissive {
		names = append(names, p.names[t])
	}
	slices.Sort(names)
	return names
}

// Has says whether the policy has a type.
func (p *Policy) Has(name string) bool { return p.types[name] > 0 }

// Types are those whose name begins with a prefix and with which a source may do all that is asked, sorted.
func (p *Policy) Types(prefix, source, className string, permissions []string) (found []string) {
	for _, name := range p.names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if a := p.Access(source, name, className, permissions); a.Known && len(a.Missing) == 0 {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}
