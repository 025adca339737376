package journal

import (
	"encoding/json"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/systemd"
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

// older is what changes had before they had a Target: at most what commit 36981b0 and those after it wrote.
type older struct {
	Op        string               `json:"op"`
	Dir       cgroup.Dir           `json:"dir"`
	File      string               `json:"file"`
	Key       string               `json:"key"`
	Target    change.Target        `json:"target"`
	PID       procfs.ID            `json:"pid"`
	Comm      string               `json:"comm"`
	Set       []systemd.Assignment `json:"set"`
	Unset     []systemd.Assignment `json:"unset"`
	Overrides []systemd.Override   `json:"overrides"`
	Net       *netshape.Change     `json:"net"`
	NetUndo   []netshape.Change    `json:"net_undo"`
}

// UnmarshalJSON reads a change, also in the older forms.
func (c *Change) UnmarshalJSON(data []byte) error {
	type plain Change
	var text struct {
		plain
		older
	}
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*c = Change(text.plain)
	if text.Op != "" {
		c.fromOlder(text.older)
	}
	return nil
}

// fromOlder turns an older form into the one that there is now.
func (c *Change) fromOlder(o older) {
	c.Name, c.Target = o.Comm, change.Target{Kind: change.Kind(o.Op)} // nobody's
	switch o.Op {
	case "mkdir":
		c.Target, c.New, c.Undo = o.Dir.Target(), cgroup.There, ""
	case "rmdir":
		c.Target, c.Old, c.New, c.Undo = o.Dir.Target(), cgroup.There, "", ""
	case "write":
		c.Target = cgroup.File{Dir: o.Dir, Name: o.File, Key: o.Key}.Target()
		if c.Unit != "" {
			c.Do, c.Undo = systemd.Assigned(o.Set), systemd.Assigned(o.Unset)
		}
	case "set":
		c.Target = o.Target
	case "oom_score_adj":
		c.Target = o.PID.ScoreTarget()
	case "move":
		c.Target, c.New, c.Undo = cgroup.Membership(o.PID, o.Dir.Hierarchy), o.Dir.Path, c.Old
	case "drop-in":
		c.Target, c.Unit = change.Target{Kind: unitfiles.KindDropIn, Addr: c.Unit}, ""
	case "keep", "revert":
		held := unitfiles.HeldFiles{Files: o.Overrides}.String()
		c.Target, c.Unit = change.Target{Kind: unitfiles.KindOverrides, Addr: c.Unit}, ""
		c.Old, c.Undo = held, held
		if o.Op == "keep" {
			c.New = held
		}
	case "network":
		if o.Net != nil {
			c.Change = request.Of(*o.Net, o.NetUndo)
		}
	}
}

// isValue says whether the original of a change is among the Originals. Directories and places of processes are known
// on their own; what systemd and interfaces had before is in documents of the state directory.
func (c Change) isValue() bool {
	return !slices.Contains([]change.Kind{
		cgroup.KindDir, cgroup.KindMembership, unitfiles.KindDropIn, unitfiles.KindOverrides, request.Kind,
	}, c.Kind)
}

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
