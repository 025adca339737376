package cgroup

import (
	"slices"
	"strings"

	"bulkhead/internal/host"
)

// Subtree gives the controllers that a v2 group has and those it hands to its children, sorted, under
// their v1 names ("blkio" for io). A v1 directory always hands on all its hierarchy's controllers.
func (t *Tree) Subtree(d Dir) (available, enabled []string, err error) {
	if t.v1(d) {
		all := slices.Sorted(slices.Values(t.mounts[d.Hierarchy].Controllers))
		return all, all, nil
	}
	values, err := t.ReadMany(d, []string{"cgroup.controllers", "cgroup.subtree_control"})
	if err != nil {
		return nil, nil, err
	}
	return controllers(values["cgroup.controllers"]), controllers(values["cgroup.subtree_control"]), nil
}

// controllers parses a list such as "cpuset cpu io memory".
func controllers(text string) []string {
	return host.V1Names(strings.Fields(text))
}

// Enable hands controllers, by their v1 names, to parent's children through cgroup.subtree_control;
// those it hands on already are left alone. On v1 there is nothing to enable.
// Errors: ErrNoKnob when parent itself does not have one of them, ErrBusy when processes sit in parent.
func (t *Tree) Enable(parent Dir, controllers []string) error {
	return t.setSubtree(parent, "+", controllers)
}

// Disable takes controllers away from parent's children. ErrBusy when a child hands one on itself.
func (t *Tree) Disable(parent Dir, controllers []string) error {
	return t.setSubtree(parent, "-", controllers)
}

func (t *Tree) setSubtree(parent Dir, sign string, names []string) error {
	if t.v1(parent) {
		return nil
	}
	_, enabled, err := t.Subtree(parent)
	if err != nil {
		return err
	}
	var words []string
	for _, name := range names {
		if slices.Contains(enabled, name) == (sign == "+") {
			continue
		}
		words = append(words, sign+host.V2Name(name))
	}
	if len(words) == 0 {
		return nil
	}
	return t.Write(parent.File("cgroup.subtree_control"), strings.Join(words, " "))
}
