package apply

import (
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/knob"
)

// unified is the ID of the cgroup v2 hierarchy; every other one is v1.
const unified = "unified"

// subtreeControl lists, on v2, the controllers that a directory hands to its children.
const subtreeControl = "cgroup.subtree_control"

// subtree gives a list of controllers in order and under their v1 names, as changes hold it.
func subtree(text string) string {
	return strings.Join(slices.Compact(host.V1Names(strings.Fields(text))), " ")
}

// signed puts a sign before each controller of a list.
func signed(sign, list string) string {
	names := strings.Fields(list)
	for i, name := range names {
		names[i] = sign + name
	}
	return strings.Join(names, " ")
}

// toggles splits "+cpu +io -memory" (a bare name counts as "+") into v1 names.
func toggles(text string) (on, off []string) {
	for _, word := range strings.Fields(text) {
		name, taken := strings.CutPrefix(word, "-")
		name = subtree(strings.TrimPrefix(name, "+"))
		if taken {
			off = append(off, name)
		} else {
			on = append(on, name)
		}
	}
	return on, off
}

// newSubtree turns a change of subtree_control, whose New holds what to write, into one whose Old and
// New are the lists before and after, and whose Undo is what to write to go back.
func newSubtree(c *journal.Change, got string) {
	on, off := toggles(c.New)
	c.Old = subtree(got)
	before := strings.Fields(c.Old)
	after := slices.DeleteFunc(slices.Concat(before, on), func(name string) bool { return slices.Contains(off, name) })
	c.New = subtree(strings.Join(after, " "))
	c.Undo = signedDifference(c.Old, c.New)
}

// signedDifference is what to write to get from one list to another.
func signedDifference(to, from string) string {
	var words []string
	for _, name := range strings.Fields(from) {
		if !slices.Contains(strings.Fields(to), name) {
			words = append(words, "-"+name)
		}
	}
	for _, name := range strings.Fields(to) {
		if !slices.Contains(strings.Fields(from), name) {
			words = append(words, "+"+name)
		}
	}
	return strings.Join(words, " ")
}

// handed is which controllers changes so far have handed to the children of which directories. Their files
// there come with the controller, hold defaults, and go when it is taken away again.
type handed map[cgroup.Dir]map[string]bool

// note takes a change of subtree_control, with the lists before and after, into account.
func (h handed) note(c journal.Change) {
	if c.Op != journal.OpWrite || c.File != subtreeControl {
		return
	}
	before, after := strings.Fields(c.Old), strings.Fields(c.New)
	if h[c.Dir] == nil {
		h[c.Dir] = map[string]bool{}
	}
	for _, name := range before {
		if !slices.Contains(after, name) {
			delete(h[c.Dir], name)
		}
	}
	for _, name := range after {
		if !slices.Contains(before, name) {
			h[c.Dir][name] = true
		}
	}
}

// brings says whether a change is to a file that is there only since one of the changes noted.
func (h handed) brings(c journal.Change) bool {
	if c.Op != journal.OpWrite || c.File == subtreeControl || c.Dir.Path == "/" {
		return false
	}
	row := knob.RowOf(file(c))
	return row != nil && h[c.Dir.Parent()][row.Controller]
}
