package avc

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Group is all denials of one source type, target type and class.
type Group struct {
	Source, Target, Class string
	// Permissions are those of all denials, sorted.
	Permissions []string
	Denials     []Denial
}

// Rule is the rule that would allow it, as audit2allow prints it.
func (g Group) Rule() string { return Rule(g.Source, g.Target, g.Class, g.Permissions) }

// Rule writes a rule as audit2allow does.
func Rule(source, to, class string, permissions []string) string {
	what := strings.Join(permissions, " ")
	if len(permissions) > 1 {
		what = "{ " + what + " }"
	}
	return "allow " + source + " " + target(source, to) + ":" + class + " " + what + ";"
}

// Permissions are those of all denials together, sorted.
func Permissions(denials []Denial) []string {
	all := map[string]bool{}
	for _, d := range denials {
		for _, p := range d.Permissions {
			all[p] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// Groups groups denials as audit2allow does (sepolgen/access.py), sorted by source, target ("self" where it is the
// source) and class.
func Groups(denials []Denial) []Group {
	type key struct{ source, target, class string }
	by := map[key][]Denial{}
	for _, d := range denials {
		k := key{d.Source.Type, d.Target.Type, d.Class}
		by[k] = append(by[k], d)
	}
	groups := make([]Group, 0, len(by))
	for k, all := range by {
		groups = append(groups, Group{Source: k.source, Target: k.target, Class: k.class,
			Permissions: Permissions(all), Denials: all})
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source),
			cmp.Compare(target(a.Source, a.Target), target(b.Source, b.Target)), cmp.Compare(a.Class, b.Class))
	})
	return groups
}

// target is a target as a rule has it.
func target(source, target string) string {
	if source == target {
		return "self"
	}
	return target
}
