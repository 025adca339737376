package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/change/flat"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd/unitfiles"
)

// Shifts are the steps of a plan that share limits anew between devices or directories which have their parts already.
func Shifts(p Plan) []Step {
	var rows []*knob.Row
	for _, r := range knob.Table() {
		if r.Budget() {
			rows = append(rows, r)
		}
	}
	var shifts []Step
	for _, s := range p.Steps {
		at := slices.IndexFunc(rows, func(r *knob.Row) bool { return r.File == s.File().Name })
		if at >= 0 && s.Old != "" && !rows[at].Same(rows[at].Default, s.Old) &&
			!rows[at].Same(rows[at].Default, s.New) {
			shifts = append(shifts, s)
		}
	}
	return shifts
}

// Reclaim is what a write that takes memory from a group waits for. All that wait for one directory have their time
// together.
type Reclaim struct {
	Use string `json:"use"` // the file of the directory that counts what is in use
	// Below is what may be in use before the write, bytes: cgroup v2 kills at once who is above memory.max and cannot
	// be reclaimed. 0 does not wait: on v1 it is the write that reclaims, and it is tried again as long as the kernel
	// says that it is busy.
	Below int64 `json:"below,omitempty"`
	// Push is written to memory.high again while it waits: the kernel reclaims for who writes it, and for who is
	// charged for more memory, but leaves alone a group that does nothing (memory_high_write in mm/memcontrol.c).
	Push   string        `json:"push,omitempty"`
	To     int64         `json:"to"` // the limit in the end, bytes
	Within time.Duration `json:"within_ns"`
}

// FileMems is the file of a cpuset that lists its nodes.
const FileMems = "cpuset.mems"

// String says what a write waits for.
func (w *Reclaim) String() string {
	if w.Below == 0 {
		return fmt.Sprintf("waits: %s at most, for the kernel to reclaim what is in use above it; else everything is "+
			"undone", w.Within)
	}
	return fmt.Sprintf("waits: %s at most, until no more than %s are in use; else everything is undone", w.Within,
		policy.Bytes(w.Below).Human())
}

// Step is one thing to do to the host: a change, and what a plan and people need of it.
type Step struct {
	// Change is what is done to which target. Undo gives back what was there. A value of a file without one needs none:
	// it is the first of a new directory, which goes away with the undo of its making.
	change.Change
	Group string `json:"group"`
	Name  string `json:"-"` // of the process that it is about, for people
	// Unit is the systemd unit that a directory is made, removed or written through; "" for the kernel's own files. Do
	// and Undo of a file are then assignments of its properties.
	Unit    string     `json:"unit,omitempty"`
	Final   string     `json:"final,omitempty"` // why this step cannot be wholly undone, "" if it can
	Reason  string     `json:"reason"`          // "cpu.limit 4 cores, class standard, policy.yaml:12"
	Risk    knob.Risk  `json:"risk,omitempty"`
	Setting policy.Key `json:"setting,omitempty"`
	// OldAs and NewAs are Old and New in units for people, "" where the table of limits has none, and FromRole says
	// that a role's defaults ask for the value: by Plan.Describe.
	OldAs    string `json:"old_as,omitempty"`
	NewAs    string `json:"new_as,omitempty"`
	FromRole bool   `json:"from_role,omitempty"`
	// Restore is what the undo of this step has to write once the step itself is taken back: what a
	// removed directory held, or what its children held in the files of a controller taken away.
	Restore []Restore `json:"restore,omitempty"`
	// Reclaim is what a write waits for.
	Reclaim *Reclaim `json:"reclaim,omitempty"`
	// Optional: a failure of this step leaves nothing half done and need not undo the others.
	Optional bool `json:"optional,omitempty"`
}

// Dir is the directory that a step makes, removes, writes into or moves a process to.
func (s Step) Dir() cgroup.Dir {
	if _, hierarchy, moves := cgroup.Member(s.Target); moves {
		return cgroup.Dir{Hierarchy: hierarchy, Path: s.New}
	}
	if d, is := cgroup.DirOf(s.Target); is {
		return d
	}
	return s.File().Dir
}

// File is FileOf what a step changes.
func (s Step) File() cgroup.File { return FileOf(s.Target) }

// FileOf is a target as plans name files: with the disk as key what belongs to one. It is the zero File for others.
func FileOf(t change.Target) cgroup.File {
	f, _ := cgroup.NamedFile(t)
	return f
}

// PID is the process that a step moves or scores.
func (s Step) PID() procfs.ID {
	id, _, moves := cgroup.Member(s.Target)
	if !moves && s.Kind == procfs.KindScore {
		id, _ = procfs.ParseID(s.Addr)
	}
	return id
}

// Moves says whether a step moves a process.
func (s Step) Moves() bool { return s.Kind == cgroup.KindMembership }

// Makes says whether a step makes a directory.
func (s Step) Makes() bool { return s.Kind == cgroup.KindDir && s.New != "" }

// Removes says whether a step removes a directory.
func (s Step) Removes() bool { return s.Kind == cgroup.KindDir && s.New == "" }

// Reverts says whether a step has systemd forget what bulkhead set of a unit.
func (s Step) Reverts() bool { return s.Kind == unitfiles.KindOverrides && !unitfiles.Keeps(s.Change) }

// MarshalJSON prints a step with the fields of package flat.
func (s Step) MarshalJSON() ([]byte, error) {
	type plain Step
	fields, beside := flat.Of(s.Change, s.Unit)
	fields.Comm = s.Name
	if s.Change = beside; s.Kind == unitfiles.KindDropIn || s.Kind == unitfiles.KindOverrides {
		s.Unit = s.Addr
	}
	return json.Marshal(struct {
		flat.Fields
		plain
	}{fields, plain(s)})
}

// UnmarshalJSON reads one, also from an agent of an earlier version.
func (s *Step) UnmarshalJSON(data []byte) error {
	type plain Step
	var text struct {
		plain
		flat.Fields
	}
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*s = Step(text.plain)
	s.Name = text.Comm
	s.Change, s.Unit = text.Fields.Change(s.Change, s.Unit)
	return nil
}

// Restore is one write of an undo.
type Restore struct {
	cgroup.File
	Value string `json:"value"`
}
