// Package flat has a change as flat fields, one for each part of its target: op, dir, file, key, pid. With these `plan
// --json` and the agent's API print a step. Agents and journals of earlier versions have nothing else, and are read.
//
// The fields are plain values and know of no host.
package flat

import (
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
)

// Fields are those of a change. Beside them stand its values.
type Fields struct {
	Op     string               `json:"op"`
	Dir    cgroup.Dir           `json:"dir"`
	File   string               `json:"file,omitempty"` // write
	Key    string               `json:"key,omitempty"`  // write: the device of a file with a line for each
	PID    procfs.ID            `json:"pid,omitzero"`   // move, oom_score_adj
	Comm   string               `json:"comm,omitempty"` // of that process
	Target change.Target        `json:"target,omitzero"`
	Set    []systemd.Assignment `json:"set,omitempty"` // write through a unit: the properties, and what gives them back
	Unset  []systemd.Assignment `json:"unset,omitempty"`
	// Overrides, Net and NetUndo are in journals of earlier versions alone.
	Overrides []systemd.Override `json:"overrides,omitempty"`
	Net       *netshape.Change   `json:"net,omitempty"`
	NetUndo   []netshape.Change  `json:"net_undo,omitempty"`
}

// Op is what a change does, in a word.
func Op(c change.Change) string {
	switch c.Kind {
	case cgroup.KindDir:
		if c.New == "" {
			return "rmdir"
		}
		return "mkdir"
	case cgroup.KindMembership:
		return "move"
	case unitfiles.KindOverrides:
		if unitfiles.Keeps(c) {
			return "keep"
		}
		return "revert"
	case procfs.KindScore, unitfiles.KindDropIn, request.Kind:
		return string(c.Kind)
	}
	if _, file := cgroup.NamedFile(c.Target); file {
		return "write"
	}
	return "set"
}

// Of gives the fields of a change that is made through a unit, if any, and the change as it stands beside them.
func Of(c change.Change, unit string) (f Fields, beside change.Change) {
	f.Op = Op(c)
	file, named := cgroup.NamedFile(c.Target)
	switch {
	case c.Kind == cgroup.KindDir:
		f.Dir, _ = cgroup.DirOf(c.Target)
		c.Undo = map[string]string{"mkdir": "rmdir", "rmdir": "mkdir"}[f.Op]
	case c.Kind == cgroup.KindMembership:
		f.Dir.Path = c.New
		f.PID, f.Dir.Hierarchy, _ = cgroup.Member(c.Target)
	case c.Kind == procfs.KindScore:
		f.PID, _ = procfs.ParseID(c.Addr)
	case named:
		f.Dir, f.File, f.Key = file.Dir, file.Name, file.Key
		if unit != "" {
			f.Set, _ = systemd.Assignments(c.Do)
			f.Unset, _ = systemd.Assignments(c.Undo)
			c.Do, c.Undo = "", c.Old
		}
	default:
		f.Target = c.Target
	}
	return f, c
}

// Change is the inverse of Of. Without a target beside the fields they are of an earlier version.
func (f Fields) Change(beside change.Change, unit string) (c change.Change, through string) {
	c = beside
	if c.Kind == "" && f.Op != "" {
		return f.older(c, unit)
	}
	switch {
	case c.Kind == cgroup.KindDir && c.Undo == "rmdir":
		c.Undo = ""
	case c.Kind == cgroup.KindDir && c.Undo == "mkdir":
		c.Undo = cgroup.There
	case slices.Contains([]change.Kind{unitfiles.KindDropIn, unitfiles.KindOverrides}, c.Kind):
		unit = ""
	case len(f.Set) > 0:
		c.Do, c.Undo = systemd.Assigned(f.Set), systemd.Assigned(f.Unset)
	}
	return c, unit
}

// older turns what commit 36981b0 and those after it wrote into a change.
func (f Fields) older(c change.Change, unit string) (change.Change, string) {
	c.Target = f.Target
	if c.Kind == "" {
		c.Kind = change.Kind(f.Op) // nobody's
	}
	switch f.Op {
	case "mkdir":
		c.Target, c.New, c.Undo = f.Dir.Target(), cgroup.There, ""
	case "rmdir":
		c.Target, c.Old, c.New, c.Undo = f.Dir.Target(), cgroup.There, "", cgroup.There
	case "write":
		c.Target = cgroup.File{Dir: f.Dir, Name: f.File, Key: f.Key}.Target()
		if unit != "" {
			c.Do, c.Undo = systemd.Assigned(f.Set), systemd.Assigned(f.Unset)
		}
	case "oom_score_adj":
		c.Target = f.PID.ScoreTarget()
	case "move":
		c.Target, c.New, c.Undo = cgroup.Membership(f.PID, f.Dir.Hierarchy), f.Dir.Path, c.Old
	case "drop-in":
		c.Target = change.Target{Kind: unitfiles.KindDropIn, Addr: unit}
		return c, ""
	case "keep", "revert":
		held := unitfiles.HeldFiles{Files: f.Overrides}.String()
		c.Target, c.Old, c.Undo = change.Target{Kind: unitfiles.KindOverrides, Addr: unit}, held, held
		if f.Op == "keep" {
			c.New = held
		}
		return c, ""
	case "network":
		if f.Net != nil {
			c = request.Of(*f.Net, f.NetUndo)
		}
	}
	return c, unit
}
