package plan

import (
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
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
		at := slices.IndexFunc(rows, func(r *knob.Row) bool { return s.Op == OpWrite && r.File == s.File })
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

// OpNetwork changes a qdisc, class, filter, virtual NIC or BPF program, as package request of netshape has it.
const OpNetwork Op = "network"

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

// Op is what a step does.
type Op string

// The steps there are.
const (
	OpMakeDir   Op = "mkdir"
	OpRemoveDir Op = "rmdir"
	OpWrite     Op = "write" // a knob file, or subtree_control
	OpMove      Op = "move"  // a process into a directory, one per hierarchy
	OpOOMScore  Op = "oom_score_adj"
	OpSet       Op = "set" // the value of Target
	// OpDropIn gives a unit a drop-in of ours with the lines of New, or takes it away; Undo are the lines before.
	OpDropIn Op = "drop-in"
	// OpKeep changes nothing: before the first property of a unit that bulkhead did not make it has what systemd was
	// told of it recorded, which its undo gives back.
	OpKeep Op = "keep"
	// OpRevert has systemd forget what bulkhead set of a unit: New is how it was before, unitfiles.HeldFiles.
	OpRevert Op = "revert"
)

// Step is one thing to do to the host.
type Step struct {
	Op    Op         `json:"op"`
	Group string     `json:"group"`
	Dir   cgroup.Dir `json:"dir"`
	File  string     `json:"file,omitempty"` // OpWrite
	Key   string     `json:"key,omitempty"`  // OpWrite: device of a per-device file
	PID   procfs.ID  `json:"pid,omitzero"`   // OpMove, OpOOMScore
	Comm  string     `json:"comm,omitempty"` // OpMove, OpOOMScore: for people
	// Target is what is written, of the operations that need no other of these fields: OpSet, OpDropIn, OpKeep,
	// OpRevert and OpNetwork.
	Target change.Target `json:"target,omitzero"`
	Old    string        `json:"old,omitempty"` // value, or the cgroup path a process leaves
	New    string        `json:"new,omitempty"` // value to write
	Do     string        `json:"do,omitempty"`  // what to write to have New; "" is New itself
	// Undo is the value that gives back what was there; for OpMakeDir and OpRemoveDir the reverse
	// op, for OpMove the path to go back to. An OpWrite without one needs none: it is the first of a
	// new directory, which goes away with the undo of its OpMakeDir.
	Undo    string     `json:"undo,omitempty"`
	Final   string     `json:"final,omitempty"` // why this step cannot be wholly undone, "" if it can
	Reason  string     `json:"reason"`          // "cpu.limit 4 cores, class standard, policy.yaml:12"
	Risk    knob.Risk  `json:"risk,omitempty"`
	Setting policy.Key `json:"setting,omitempty"`
	// Unit is the systemd unit that a directory is made, removed or written through; "" for the kernel's own files. Set
	// are its properties of an OpWrite, Unset those that give back what was there.
	Unit  string               `json:"unit,omitempty"`
	Set   []systemd.Assignment `json:"set,omitempty"`
	Unset []systemd.Assignment `json:"unset,omitempty"`
	// Restore is what the undo of this step has to write once the step itself is taken back: what a
	// removed directory held, or what its children held in the files of a controller taken away.
	Restore []Restore `json:"restore,omitempty"`
	// Reclaim is, of OpWrite, what it waits for.
	Reclaim *Reclaim `json:"reclaim,omitempty"`
	// Optional: a failure of this step leaves nothing half done and need not undo the others.
	Optional bool `json:"optional,omitempty"`
}

// Change is what a step does to one target, in the words in which it is recorded.
func (s *Step) Change() change.Change {
	c := change.Change{Target: s.Target, Old: s.Old, New: s.New, Do: s.Do, Undo: s.Undo}
	switch s.Op {
	case OpMakeDir:
		return change.Change{Target: s.Dir.Target(), New: cgroup.There}
	case OpRemoveDir:
		return change.Change{Target: s.Dir.Target(), Old: cgroup.There}
	case OpWrite:
		c.Target = cgroup.File{Dir: s.Dir, Name: s.File, Key: s.Key}.Target()
		if s.Unit != "" {
			c.Do, c.Undo = systemd.Assigned(s.Set), systemd.Assigned(s.Unset)
		}
	case OpMove:
		c.Target, c.New = cgroup.Membership(s.PID, s.Dir.Hierarchy), s.Dir.Path
	case OpOOMScore:
		c.Target = s.PID.ScoreTarget()
	}
	return c
}

// Restore is one write of an undo.
type Restore struct {
	cgroup.File
	Value string `json:"value"`
}
