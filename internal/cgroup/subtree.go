package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/host"
)

// Subtree gives the controllers that a v2 group has and those it hands to its children, sorted, under
// their v1 names ("blkio" for io). A v1 directory always hands on all its hierarchy's controllers.
func (t *Tree) Subtree(d Dir) (available, enabled []string, err error) {
	if t.Version(d) == 1 {
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
	return setSubtree(t, parent, "+", controllers)
}

// Disable takes controllers away from parent's children. ErrBusy when a child hands one on itself.
func (t *Tree) Disable(parent Dir, controllers []string) error {
	return setSubtree(t, parent, "-", controllers)
}

func setSubtree(t *Tree, parent Dir, sign string, names []string) error {
	if t.Version(parent) == 1 {
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

// Controllers is the actuator of KindControllers.
type Controllers struct {
	Tree interface {
		Read(File) (string, error)
		Enable(parent Dir, controllers []string) error
		Disable(parent Dir, controllers []string) error
	}
}

// Read gives the controllers in order and under their v1 names.
func (k Controllers) Read(_ context.Context, addr string) (string, error) {
	f, ok := ParseFile(addr)
	if !ok {
		return "", fmt.Errorf("read controllers of %q: not the address of a file of a hierarchy", addr)
	}
	got, err := k.Tree.Read(f)
	return strings.Join(slices.Compact(controllers(got)), " "), err
}

// Write switches controllers on and off; a bare name counts as "+".
func (k Controllers) Write(_ context.Context, addr, words string) error {
	f, ok := ParseFile(addr)
	if !ok {
		return fmt.Errorf("write controllers of %q: not the address of a file of a hierarchy", addr)
	}
	on, off := toggles(words)
	if len(off) > 0 {
		if err := k.Tree.Disable(f.Dir, off); err != nil {
			return err
		}
	}
	if len(on) == 0 {
		return nil
	}
	return k.Tree.Enable(f.Dir, on)
}

// Same says whether a list has what the words switch on, and nothing that they switch off.
func (Controllers) Same(_, words, got string) bool {
	on, off := toggles(words)
	enabled := strings.Fields(got)
	is := func(name string) bool { return slices.Contains(enabled, name) }
	return !slices.ContainsFunc(off, is) && !slices.ContainsFunc(on, func(name string) bool { return !is(name) })
}

// Undo switches back what is still as the change made it; what others changed since stays.
func (k Controllers) Undo(ctx context.Context, c change.Change) (bool, error) {
	got, err := k.Read(ctx, c.Addr)
	if errors.Is(err, ErrGone) {
		return false, nil // and what it held with it
	}
	on, off := toggles(c.Undo)
	enabled := strings.Fields(got)
	is := func(name string) bool { return slices.Contains(enabled, name) }
	words := signed("-", slices.DeleteFunc(off, func(name string) bool { return !is(name) })) +
		signed("+", slices.DeleteFunc(on, is))
	if err != nil || words == "" {
		return false, err
	}
	return true, change.Set(ctx, k, c.Target, words)
}

// Handed turns a change of controllers, whose New is what to write, into one with the lists before and after.
func Handed(c *change.Change, before string) {
	on, off := toggles(c.New)
	old := strings.Fields(before)
	after := slices.DeleteFunc(slices.Concat(old, on), func(name string) bool { return slices.Contains(off, name) })
	after = slices.Compact(host.V1Names(after))
	isIn := func(list []string) func(string) bool {
		return func(name string) bool { return slices.Contains(list, name) }
	}
	added, taken := slices.DeleteFunc(slices.Clone(after), isIn(old)), slices.DeleteFunc(slices.Clone(old), isIn(after))
	c.Old, c.New = before, strings.Join(after, " ")
	c.Do = strings.TrimSpace(signed("-", taken) + signed("+", added))
	c.Undo = strings.TrimSpace(signed("-", added) + signed("+", taken))
}

// Hands gives a record of a list that is there, whose undo hands all of it down again.
func Hands(t change.Target, list string) change.Change {
	return change.Change{Target: t, Old: list, New: list, Undo: strings.TrimSpace(signed("+", strings.Fields(list)))}
}

// signed puts a sign before each of some names.
func signed(sign string, names []string) (words string) {
	for _, name := range names {
		words += " " + sign + name
	}
	return words
}

// toggles splits "+cpu +io -memory" (a bare name counts as "+") into v1 names.
func toggles(words string) (on, off []string) {
	for word := range strings.FieldsSeq(words) {
		name, taken := strings.CutPrefix(word, "-")
		names := controllers(strings.TrimPrefix(name, "+"))
		if taken {
			off = append(off, names...)
		} else {
			on = append(on, names...)
		}
	}
	return on, off
}
