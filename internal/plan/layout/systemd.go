package layout

import (
	"cmp"
	"path"
	"slices"

	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// Systemd is what a plan has to know of the systemd that owns the host's cgroup tree.
type Systemd struct {
	Version systemd.Version
	// Mute: it does not answer. Then there are only its files and the kernel's, and nothing but a release is planned.
	Mute bool
	// Governed are the units whose own properties carry a group's limits, by their directory.
	Governed map[string]Governed
	// Main is the main process of each service that a group claims a part of, by unit; it is never moved. As long as it
	// is not known, while the service starts, nobody is taken out.
	Main map[string]int
	// Keepers are the directories of keepers whose process lives.
	Keepers map[string]bool
	// Pinned are the processes that somebody placed by hand: these are taken out of their units without further asking.
	Pinned map[procfs.ID]bool
	// Kept are the units that bulkhead has set properties of, and what systemd was told of them before.
	Kept map[string]Kept
	// Set are the settings that systemd holds of a unit because of bulkhead, by unit: "MemoryMax".
	Set map[string][]string
	// Adopted are the slices that our drop-ins give units, by unit.
	Adopted map[string]string
	// Later are the settings of drop-ins that win over a property of the same name at each daemon-reload, by unit.
	Later map[string][]systemd.FileSetting
	// Own is the memory limit, in bytes, of the files of units that bulkhead has set one of: what they go back to.
	Own map[string]int64
	// Between are the units on their way up or down: who runs in them now says nothing of whose they are.
	Between map[string]bool
}

// UnitControllers are the controllers of cgroup v2 that systemd hands down by itself, as the properties of units ask
// for them (cgroup-util.h, CGROUP_MASK_V2; cpuset since 244).
var UnitControllers = []string{"blkio", "cpu", "cpuset", "memory", "pids"}

// Governed is a unit that one group claims.
type Governed struct {
	Unit  string
	Group string
	// Inside: it lies in the slice of its group, ours or an administrator's, which holds it; only limits that do not
	// descend are its own.
	Inside bool
}

// Kept is what systemd was told of a unit before bulkhead, for the way back.
type Kept struct {
	Group     string             `json:"group"` // whose limits it carries
	Dir       string             `json:"dir"`   // its directory below a hierarchy's mount
	Boot      string             `json:"boot"`  // in which it was written down
	Overrides []systemd.Override `json:"overrides,omitempty"`
	Ours      []string           `json:"ours,omitempty"` // the settings that bulkhead has ever set of it: "MemoryMax"
}

// Members is the sub-group of a group's keeper in which its loose processes sit. systemd leaves it to us.
const Members = "members"

// tracker is the v1 hierarchy by which systemd itself knows who belongs to which unit.
const tracker = "name=systemd"

// ownedControllers are the v1 controllers in whose hierarchies systemd makes directories for units
// (cgroup-util.h, CGROUP_MASK_V1).
var ownedControllers = []string{"cpu", "cpuacct", "blkio", "memory", "pids", "devices"}

// Owned says whether systemd makes the directories of a hierarchy.
func Owned(f *host.Facts, h host.Hierarchy) bool {
	return f.Systemd && (h.Version == 2 || h.ID == tracker || slices.ContainsFunc(ownedControllers, h.Has))
}

// Tracks says whether a hierarchy holds no limit and tells systemd who belongs to a unit.
func Tracks(f *host.Facts, h host.Hierarchy) bool {
	return Owned(f, h) && len(h.Controllers) == 0
}

// UnitPath is where systemd has a process: its path in the hierarchy by which it knows units.
func UnitPath(p *procfs.Process) string {
	return cmp.Or(p.Cgroups[tracker], p.Cgroups[procfs.UnifiedID])
}

// Govern finds the units that one group claims: their oldest process belongs to it, and so does, or to groups below it,
// whatever else is claimed there that no process of the unit has started. What these start is the unit's, whoever
// claims it, and so is what nobody claims and came later: a database runs commands of its own, and systemd some beside
// it (ExecStartPost=). Of a unit that several claim, or one claims in part, only those processes are moved whose group
// says from_unit.
func (n Names) Govern(classified classify.Result, processes []procfs.Process) map[string]Governed {
	group := make(map[procfs.ID]string, len(classified.Placements))
	for i := range classified.Placements {
		p := &classified.Placements[i]
		group[p.Process.ID] = p.Group
	}
	dirs := make(map[int]string, len(processes))
	for i := range processes {
		if dir, _, ok := n.UnitDir(&processes[i]); ok && !processes[i].Exited() {
			dirs[processes[i].PID] = dir
		}
	}
	claims := map[string]*claim{}
	for i := range processes {
		p := &processes[i]
		dir := dirs[p.PID]
		if dir == "" || dirs[p.PPID] == dir && p.PPID != p.PID {
			continue // in none, or started by one in it
		}
		if claims[dir] == nil {
			claims[dir] = &claim{oldest: p.ID}
		}
		claims[dir].add(p.ID, group[p.ID])
	}
	theirs := map[string]string{}
	for _, g := range classified.Groups {
		theirs[g.Path] = g.Slice
	}
	governed := map[string]Governed{}
	for dir, c := range claims {
		if c.torn || group[c.oldest] == "" {
			continue
		}
		slice, err := n.slice(c.group)
		if name := theirs[c.group]; name != "" {
			slice, err = unitname.SliceDir(name)
		}
		_, inside := Below(slice, dir)
		governed[dir] = Governed{Unit: path.Base(dir), Group: c.group, Inside: err == nil && inside}
	}
	return governed
}

// claim is what the processes of a unit tell that no other of its processes has started.
type claim struct {
	group  string // that holds all that are claimed
	oldest procfs.ID
	torn   bool // no group but the root does
}

func (c *claim) add(id procfs.ID, group string) {
	if id.Start < c.oldest.Start || id.Start == c.oldest.Start && id.PID < c.oldest.PID {
		c.oldest = id
	}
	switch {
	case group == "" || c.torn:
	case c.group == "":
		c.group = group
	default:
		c.group = common(c.group, group)
		c.torn = c.group == RootGroup
	}
}

// KeptOf is the record of a unit, if there is one.
func (s *Systemd) KeptOf(unit string) (Kept, bool) {
	if s == nil || unit == "" {
		return Kept{}, false
	}
	k, known := s.Kept[unit]
	return k, known
}

// Tracker is the hierarchy in which every unit of systemd's has a directory.
func Tracker(f *host.Facts) string {
	for _, h := range f.Hierarchies {
		if Tracks(f, h) && h.Version == 1 {
			return h.ID
		}
	}
	return procfs.UnifiedID
}
