package plan

import (
	"slices"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/bpf"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// IOUse is what the processes of a directory read from and wrote to one device, in a second.
type IOUse struct{ ReadBytes, ReadOps, WriteBytes, WriteOps int64 }

// Of is what a limit of io with this key counts of it.
func (u IOUse) Of(key policy.Key) int64 {
	switch key {
	case policy.KeyIOReadBandwidth:
		return u.ReadBytes
	case policy.KeyIOReadIOPS:
		return u.ReadOps
	case policy.KeyIOWriteBandwidth:
		return u.WriteBytes
	case policy.KeyIOWriteIOPS:
		return u.WriteOps
	}
	return 0
}

// DiskFiles are what is changed of a disk so that the weights of groups count there, in the order in which it is given
// back: what is behind another one is that one's business, too. A scheduler and iocost both switch the kernel's own
// write-back throttling off and leave it to whoever takes them away to have it again.
var DiskFiles = []string{knob.CostQoS, knob.CostModel, cgroup.QueueScheduler, cgroup.QueueWriteBack}

// FavorDynmods is where the kernel's way of moving processes is switched, for all hierarchies: an option of the cgroup2
// one.
var FavorDynmods = cgroup.File{Dir: cgroup.Dir{Hierarchy: procfs.UnifiedID, Path: "/"}, Name: cgroup.FavorDynmods}

// Network is what is known of interfaces and of what the kernel can shape there; nil in Input leaves them all alone.
type Network struct {
	Has netshape.Capabilities
	// Devices are the interfaces that groups have limits on, and those that bulkhead governs already.
	Devices []NetDevice
	// Slots are the numbers that groups have had so far.
	Slots map[string]netshape.Slot
	// Ports are the TCP ports that are known of each group's processes.
	Ports map[string][]uint16
	// Sorters and Counters are our programs on the directories of groups.
	Sorters, Counters []bpf.Program
	// Strays are the changes that remove virtual NICs whose interface is gone.
	Strays []netshape.Change
	// Directories are those of cgroup2 in which programs of ours may be.
	Directories []string
	// Was is what the groups of an interface had last, by its name: a release of some of them leaves the others as they
	// are.
	Was map[string]netshape.Wanted
}

// NetDevice is one interface.
type NetDevice struct {
	State netshape.State
	// Link is what it carries, 0 when nobody knows.
	Link     tc.Rate
	Governed bool              // has our qdiscs, or had a foreign one replaced
	Original *netshape.Foreign // what was there before bulkhead
}

// UsesNetwork says whether any group asks for a limit on an interface.
func UsesNetwork(groups []classify.Group) bool {
	return slices.ContainsFunc(groups, func(g classify.Group) bool { return layout.LimitsNetwork(g.Settings) })
}

// Input is everything a plan depends on.
type Input struct {
	Facts      *host.Facts
	Host       policy.HostPart // resolved
	Agent      policy.AgentPart
	Classified classify.Result
	Observed   Observation
	Memory     Memory          // nil: nothing is in use
	Live       Live            // nil: nobody looks what processes do, and nothing is said of it
	Released   map[string]bool // groups that were released and stay so until apply
	// Tune are the settings of the kernel that the host is to have; Observed.Values has what they hold.
	Tune []policy.Tuning
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
	// Leave holds what was wanted of targets that keep what somebody else wrote there, as long as it is still wanted.
	Leave map[change.Target]string
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

// Live tells what processes do while the plan is made. A plan asks of those alone that it is about to slow down.
type Live interface {
	// Cores watches processes for that long and gives how many CPUs each keeps busy; those of which it is not known are
	// left out.
	Cores(ids []procfs.ID, during time.Duration) map[procfs.ID]float64
	// Clients names, of processes, those that are connected to a database instance and no part or helper of one, with
	// the instance.
	Clients(ids []procfs.ID) map[procfs.ID]string
}

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
	// Values holds what those targets held that a plan wants something of and that are not files of directories.
	Values map[change.Target]string
}

// Held is what a target held, in the form in which it is written: what counts of a file that shows more. It is "" for a
// device without a line; there is false for a target that was not there.
func (o *Observation) Held(t change.Target) (value string, there bool) {
	f, file := cgroup.FileOf(t)
	if !file {
		value, there = o.Values[t]
		return value, there
	}
	if value, there = o.Dirs[f.Dir][f.Name]; f.Key != "" {
		value = cgroup.Line(value, f.Key)
	}
	if row := knob.RowOf(f); row != nil && value != "" {
		value = row.Parse(value)
	}
	return value, there
}

// Originals are the values from the journal that no directory of ours holds.
type Originals struct {
	OOMScoreAdj map[procfs.ID]int // of processes whose oom_score_adj bulkhead changed
	// Subtree holds, per v2 directory above our root, the controllers that bulkhead enabled in its
	// cgroup.subtree_control (v1 names). A release of everything takes them away again.
	Subtree map[cgroup.Dir][]string
	// Disks holds what files of disks held before bulkhead changed them (DiskFiles).
	Disks map[change.Target]string
	// Tuned holds what settings of the kernel and boot files held before bulkhead changed them, in whichever boot.
	Tuned map[change.Target]string
	// Wrote holds what bulkhead wrote there last.
	Wrote map[change.Target]string
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

// InForce gives the groups that are not released. What lies below a released group goes with it.
func (in *Input) InForce() []classify.Group {
	return slices.DeleteFunc(slices.Clone(in.Classified.Groups),
		func(g classify.Group) bool { return in.IsReleased(g.Path) })
}

// IsReleased says whether the group or one above it was released. "" releases everything.
func (in *Input) IsReleased(group string) bool { return policy.Released(in.Released, group) }

// Releases says whether the group is one to release, or below one.
func (in *Input) Releases(group string) bool {
	return slices.ContainsFunc(in.Release, func(g string) bool {
		_, within := layout.Below(g, group)
		return within || g == layout.RootGroup
	})
}
