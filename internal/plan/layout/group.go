package layout

import (
	"cmp"
	"strings"

	"bulkhead/internal/cgroup"
)

// Leaf is the directory of an inner group's own processes. The name is reserved: no group has it.
const Leaf = "db"

// RootGroup is the group path of what lies above all groups: our root group, where the policy asks for one, else the
// top of each hierarchy. It holds no process.
const RootGroup = ""

// Below gives the part of p that lies below the directory top, "" for top itself.
func Below(top, p string) (rest string, ok bool) {
	switch {
	case p == top:
		return "", true
	case len(p) > len(top) && p[:len(top)] == top && p[len(top)] == '/':
		return p[len(top)+1:], true
	}
	return "", false
}

// ParentGroup gives the group above, "" for one at the top.
func ParentGroup(group string) string {
	if i := strings.LastIndexByte(group, '/'); i >= 0 {
		return group[:i]
	}
	return RootGroup
}

// common is the innermost group that holds both, "" for the root.
func common(a, b string) string {
	for {
		if _, ok := Below(a, b); ok || a == RootGroup {
			return a
		}
		a = ParentGroup(a)
	}
}

// CompareDirs orders parents before children and siblings by name.
func CompareDirs(a, b cgroup.Dir) int {
	for i := range min(len(a.Path), len(b.Path)) {
		switch x, y := a.Path[i], b.Path[i]; {
		case x == y:
		case x == '/':
			return -1
		case y == '/':
			return 1
		default:
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a.Path), len(b.Path))
}
