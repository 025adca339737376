// Package plan turns what is wanted and what is there into ordered steps. It is pure: values in,
// values out, no clock, no file, no root.
package plan

import (
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

// Input is everything a plan depends on.
type Input struct {
	Facts      *host.Facts
	Host       policy.HostPart // resolved
	Agent      policy.AgentPart
	Classified classify.Result
	Observed   Observation
	Memory     Memory          // nil: nothing is in use
	Released   map[string]bool // groups that were released and stay so until apply
	// Former are the names of root groups whose groups are brought over: Names.Former.
	Former []string
	// Systemd is what is known of the systemd that owns the tree; nil without one, or when it could not be asked.
	Systemd *layout.Systemd
	// Release, when set, plans the way back: lift every limit, send members home, remove directories.
	// Group paths, each with what lies below it; "" is everything.
	Release []string
	// Insist is a release in spite of what it would do to memory in use.
	Insist bool
	// Expel names processes that must leave the group they are in unless a rule or a pin claims them:
	// those whose pin was taken back or has run out. Their descendants leave with them, down to one that
	// is claimed. Any other process that nothing claims stays in the group it is in.
	Expel map[procfs.ID]bool
	// AskNodes refuses a change of NUMA nodes under memory that is there.
	AskNodes bool
	// Leave holds what was wanted of files that keep what somebody else wrote there, as long as it is still wanted.
	Leave map[cgroup.File]string
	// Use is what was read and written since limits were shared by use the last time, by device; with it they are
	// shared anew. nil leaves the parts as they are.
	Use map[cgroup.Dir]map[string]IOUse
	// Network is what is known of interfaces; nil leaves them alone.
	Network *Network
	// NoMoves plans limits only. Processes stay where they are, but for the move from a group's
	// directory into its own leaf that cgroup v2 demands. Directories that still hold one are kept; a
	// Note names each.
	NoMoves bool
}

// Memory tells how much memory is in use, bytes. A plan asks only where it lowers a limit or changes nodes: of all that
// is read these figures are the dearest. What cannot be read is 0.
type Memory interface {
	// Charged is what a directory and those below it are charged, and how much of it cannot be reclaimed: anonymous,
	// shared and unevictable.
	Charged(d cgroup.Dir) (current, pinned int64)
	// Held is the anonymous and shared memory of a process, and the shared part of it. Processes of one group mostly
	// map the same segment (PostgreSQL's shared_buffers), so a group counts its largest, not the sum.
	Held(id procfs.ID) (all, shared int64)
	// OnNodes is how much memory a group has on which NUMA node; nil when that is not known.
	OnNodes(group string) map[int]int64
	// Migrates says whether a v1 cpuset takes memory along to its new nodes (cpuset.memory_migrate).
	Migrates(d cgroup.Dir) bool
}

// noMemory is in use where nobody can be asked.
type noMemory struct{}

func (noMemory) Charged(cgroup.Dir) (current, pinned int64) { return 0, 0 }
func (noMemory) Held(procfs.ID) (all, shared int64)         { return 0, 0 }
func (noMemory) OnNodes(string) map[int]int64               { return nil }
func (noMemory) Migrates(cgroup.Dir) bool                   { return false }

// Observation is what the kernel says now about our tree and the processes.
type Observation struct {
	// Dirs holds every directory below (and including) our root in each hierarchy, with the files
	// that the knob table knows for it, each with its whole text. Absent directory: not there.
	// The root of a v1 cpuset hierarchy may be there too; its CPUs and nodes seed ours.
	Dirs map[cgroup.Dir]map[string]string
	// Subtree holds cgroup.controllers and cgroup.subtree_control of every v2 directory of Dirs and
	// of each of its ancestors up to "/", in the v1 names of the controllers ("blkio" for io).
	Subtree map[cgroup.Dir]Subtree
	// Processes is the process table the classification was made from, by pid.
	Processes []procfs.Process
	// OOMScoreAdj now: of processes placed in a group that asks for one or that sit in its directories
	// (Layout.Resident), of those in Originals.OOMScoreAdj, and of all their descendants, which have
	// inherited it.
	OOMScoreAdj map[procfs.ID]int
	// Siblings of our root in the hierarchy of the cpu controller, for shares.
	Siblings []Sibling
	// Beside is what lies in each directory above a unit, or an administrator's slice, that carries a group's limits
	// outside our tree, in the hierarchy of the cpu controller, for shares: the unit and what leads to it included, our
	// root group not.
	Beside map[cgroup.Dir][]Sibling
	// Homes: where released members go, per hierarchy, by process, then by group.
	Homes Homes
	// Existing says which directories named by Homes, or above one so named, are there and take
	// processes. nil: all are. The root of a hierarchy always is.
	Existing map[cgroup.Dir]bool
	// Originals is what was there before bulkhead's first write, for the way back.
	Originals Originals
	// Foreign is true for a directory that bulkhead did not make: a root group of that name is
	// refused, and one below our root is never removed.
	Foreign map[cgroup.Dir]bool
	// Made is true for a slice that the policy names, that nobody else has made and that has no file: it goes with its
	// group.
	Made map[cgroup.Dir]bool
}

// Originals are the values from the journal that no directory of ours holds.
type Originals struct {
	OOMScoreAdj map[procfs.ID]int // of processes whose oom_score_adj bulkhead changed
	// Subtree holds, per v2 directory above our root, the controllers that bulkhead enabled in its
	// cgroup.subtree_control (v1 names). A release of everything takes them away again.
	Subtree map[cgroup.Dir][]string
	// Disks holds what files of disks held before bulkhead changed them (DiskFiles).
	Disks map[cgroup.File]string
	// FavorDynmods says that bulkhead switched the mount option on in this boot.
	FavorDynmods bool
}

// Subtree is what a v2 directory offers its children.
type Subtree struct{ Available, Enabled []string }

// Sibling is a competitor for CPU beside our root group.
type Sibling struct {
	Dir    cgroup.Dir
	Weight int64 // the file's own value: shares on v1 (1024 by default), weight on v2 (100 by default)
	Idle   bool  // cpu.idle is set: a weight of 3/1024 whatever Weight says
	// Tasks counts what competes directly inside, running or not; only for the hierarchy's root
	// directory itself. With sched_autogroup_enabled the kernel weighs these by session: count sessions.
	Tasks int
}

// Homes says where members came from.
type Homes struct {
	Process map[procfs.ID]map[string]string // hierarchy ID → path
	Group   map[string]map[string]string    // group → hierarchy ID → path
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
	// OpRevert has systemd forget what bulkhead set of a unit: Kept is how it was before.
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
	// Target is, of OpSet, what is written.
	Target change.Target `json:"target,omitzero"`
	Old    string        `json:"old,omitempty"` // value, or the cgroup path a process leaves
	New    string        `json:"new,omitempty"` // value to write
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
	Kept  *layout.Kept         `json:"kept,omitempty"` // OpRevert
	// Settings are, of OpRevert, those that go back to what Kept has of them; none is all.
	Settings []string `json:"settings,omitempty"`
	// Net is, of OpNetwork, the change, and NetUndo are those that take it back.
	Net     *netshape.Change  `json:"net,omitempty"`
	NetUndo []netshape.Change `json:"net_undo,omitempty"`
	// Restore is what the undo of this step has to write once the step itself is taken back: what a
	// removed directory held, or what its children held in the files of a controller taken away.
	Restore []Restore `json:"restore,omitempty"`
	// Reclaim is, of OpWrite, what it waits for.
	Reclaim *Reclaim `json:"reclaim,omitempty"`
	// Optional: a failure of this step leaves nothing half done and need not undo the others.
	Optional bool `json:"optional,omitempty"`
}

// Restore is one write of an undo.
type Restore struct {
	cgroup.File
	Value string `json:"value"`
}

// Refusal is a reason not to do it without --force (exit 5).
type Refusal struct {
	Group  string `json:"group"`
	Reason string `json:"reason"`
	Hint   string `json:"hint,omitempty"`
	Device string `json:"-"` // the interface that it is about
}

// Note is something a person should know: a limit that nothing holds here, a default, a reset.
type Note struct {
	Group string     `json:"group,omitempty"`
	Key   policy.Key `json:"key,omitempty"`
	Text  string     `json:"text"`
	PID   int        `json:"pid,omitempty"` // the process that stays where it is, when it is about one
	// Groups are those that share a note which has no group of its own; the text names them too.
	Groups []string `json:"groups,omitempty"`
	// NotEnforced marks a limit that was asked for and that this host does not hold.
	NotEnforced bool `json:"not_enforced,omitempty"`
	// Partly marks one that it holds, but for a part that nothing holds: buffered writes on cgroup v1.
	Partly bool `json:"partly_enforced,omitempty"`
	// Void marks what was asked for and has no effect whatever the host holds: the text says why.
	Void bool `json:"void,omitempty"`
	// Fragile marks a limit that is in force and that somebody else takes away from time to time.
	Fragile bool `json:"fragile,omitempty"`
}

// About says whether a note concerns a limit of a group.
func (n Note) About(group string, key policy.Key) bool {
	return n.Key == key && (n.Group == group && len(n.Groups) == 0 || slices.Contains(n.Groups, group))
}

// Share is what a group can count on.
type Share struct {
	Group      string  `json:"group"`
	Limit      float64 `json:"limit_cores,omitempty"` // its own or the nearest ancestor's cap; 0 is none
	Guaranteed float64 `json:"guaranteed_cores"`      // when everybody wants everything
	Percent    float64 `json:"percent_of_host"`
	Against    string  `json:"against"` // the competitors it was computed over
}

// Plan is the ordered steps with what belongs to them.
type Plan struct {
	Steps    []Step    `json:"steps"`
	Refusals []Refusal `json:"refusals,omitempty"`
	Notes    []Note    `json:"notes,omitempty"`
	Shares   []Share   `json:"shares,omitempty"`
	// Want is every value each directory should hold when the plan is done: what verify and the agent compare.
	Want []Wanted `json:"-"`
	// Network is what each interface shall do when the plan is done, Slots the numbers of the groups, and Counted the
	// directories whose traffic is counted.
	Network []netshape.Wanted        `json:"network,omitempty"`
	Slots   map[string]netshape.Slot `json:"-"`
	Counted []string                 `json:"-"`
	// Directories are those in which programs of ours may be.
	Directories []string `json:"-"`
}

// Wanted is one value the kernel should hold.
type Wanted struct {
	Group   string
	Dir     cgroup.Dir
	File    string
	Key     string
	Value   string
	Setting policy.Setting
	Row     *knob.Row
}
