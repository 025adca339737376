package journal

import (
	"cmp"
	"encoding/json"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/change/flat"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/systemd/unitfiles"
)

// Change is one thing that a transaction does to the host, with what was there before.
type Change struct {
	// Seq orders the changes of a transaction: they are undone from the largest to the smallest.
	// Changes with the same Seq keep the order in which they were handed in.
	Seq   int    `json:"seq,omitempty"`
	Group string `json:"group,omitempty"`
	change.Change
	Name string `json:"name,omitempty"` // of the process that it is about, for people
	// Unit is the systemd unit through which it is done. Do and Undo are then assignments of its properties.
	Unit string `json:"unit,omitempty"`
}

// UnmarshalJSON reads a change, also in the forms of earlier versions.
func (c *Change) UnmarshalJSON(data []byte) error {
	type plain Change
	var text struct {
		plain
		flat.Fields
	}
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*c = Change(text.plain)
	c.Name = cmp.Or(c.Name, text.Comm)
	c.Change, c.Unit = text.Fields.Change(c.Change, c.Unit)
	return nil
}

// isValue says whether the original of a change is among the Originals. Directories and places of processes are known
// on their own; what systemd and interfaces had before is in documents of the state directory.
func (c Change) isValue() bool {
	return !slices.Contains([]change.Kind{
		cgroup.KindDir, cgroup.KindMembership, unitfiles.KindDropIn, unitfiles.KindOverrides, request.Kind,
	}, c.Kind)
}

// outlivesBoot says whether what was changed is the same in the next boot: the host has it set again when it boots.
func (c Change) outlivesBoot() bool { return slices.Contains(tunable.Lasting, c.Kind) }

// in is the directory that a value goes with; the zero Dir for one that goes with none.
func (c Change) in() cgroup.Dir {
	f, _ := cgroup.FileOf(c.Target)
	return f.Dir
}

// move is a change of a process's place: where it was, and where it goes.
func (c Change) move() (id procfs.ID, from, to cgroup.Dir, ok bool) {
	id, hierarchy, ok := cgroup.Member(c.Target)
	return id, cgroup.Dir{Hierarchy: hierarchy, Path: c.Old}, cgroup.Dir{Hierarchy: hierarchy, Path: c.New}, ok
}

// scored is the process whose oom_score_adj a change sets.
func (c Change) scored() (id procfs.ID, ok bool) {
	if c.Kind != procfs.KindScore {
		return id, false
	}
	id, err := procfs.ParseID(c.Addr)
	return id, err == nil
}
