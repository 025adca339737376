package layout

import (
	"slices"

	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

// Forest is the groups with our root group above them.
type Forest struct {
	Nodes    []*Node // parents before children, the root group first
	ByPath   map[string]*Node
	fromUnit map[string]bool   // groups whose processes may be taken out of a unit
	adopts   map[string]bool   // groups that units are to start in
	slices   map[string]string // groups that have a slice of an administrator's
}

// Node is one group.
type Node struct {
	Path     string
	Parent   *Node
	Children []*Node
	Inner    bool
	Settings policy.Settings
	Owner    []policy.Owner
}

// NewForest puts groups, parents before children as classify gives them, below our root group. A group whose parent is
// not among them is left out.
func NewForest(f *host.Facts, hostPart policy.HostPart, groups []classify.Group) *Forest {
	root := &Node{Path: RootGroup, Inner: true, Settings: rootSettings(f, hostPart)}
	t := &Forest{
		Nodes: []*Node{root}, ByPath: map[string]*Node{RootGroup: root},
		fromUnit: map[string]bool{}, adopts: map[string]bool{}, slices: map[string]string{},
	}
	for _, g := range groups {
		parent := t.ByPath[g.Parent]
		if parent == nil { // a child of a released group
			continue
		}
		n := &Node{Path: g.Path, Parent: parent, Inner: g.Inner, Settings: g.Settings, Owner: g.Owner}
		t.fromUnit[g.Path], t.adopts[g.Path] = g.FromUnit, g.Adopt != ""
		if g.Slice != "" {
			t.slices[g.Path] = g.Slice
		}
		parent.Children = append(parent.Children, n)
		t.Nodes = append(t.Nodes, n)
		t.ByPath[g.Path] = n
	}
	left := policy.Cores(len(f.CPUs))*policy.One - hostPart.Reserve.CPU
	if hostPart.Reserve.CPU > 0 && t.Bounds(policy.KeyCPULimit, int64(left)) {
		// A quota over all groups stops all of them at once: it is the last resort.
		root.Settings = slices.DeleteFunc(root.Settings,
			func(s policy.Setting) bool { return s.Key == policy.KeyCPULimit })
	}
	return t
}

// Bounds says whether all outermost groups have a limit, and these come to no more than most together. A group that is
// idle takes no CPU from anybody, unless a root group competes for it; and those of host.others are the rest of the
// host, unless a root group holds them, too.
func (t *Forest) Bounds(key policy.Key, most int64) bool {
	sum := int64(0)
	for _, n := range t.Nodes[0].Children {
		idle, _ := n.Settings.Get(policy.KeyCPUIdle, "")
		if key == policy.KeyCPULimit && idle.Value == policy.Flag(true) && len(t.Nodes[0].Settings) == 0 {
			continue
		}
		if classify.IsOthers(n.Path) && len(t.Nodes[0].Settings) == 0 {
			continue
		}
		setting, _ := n.Settings.Get(key, "")
		switch v := setting.Value.(type) {
		case policy.Cores:
			sum += int64(v)
		case policy.Bytes:
			sum += int64(v)
		default:
			return false
		}
	}
	return sum <= most
}

// asking says what a group asks of one hierarchy.
type asking struct{ any, descends bool }

// asked looks which groups ask for a limit that one of the rows holds. A row whose value new
// directories copy from their parent counts as one that descends: see follow.
func (t *Forest) asked(rows []*knob.Row) map[string]asking {
	asked := make(map[string]asking, len(t.Nodes))
	for _, n := range t.Nodes {
		var sum asking
		for _, r := range rows {
			if r.Asked(n.Settings) {
				sum = asking{any: true, descends: sum.descends || r.Descends || r.Inherits}
			}
		}
		asked[n.Path] = sum
	}
	return asked
}

// askedOf is asked for one hierarchy. Limits on interfaces ask for cgroup2 directories, whatever controllers that has:
// sockets are told apart by them. So does counting how long groups wait (countsWaiting).
func (t *Forest) askedOf(f *host.Facts, h host.Hierarchy, rows []*knob.Row) map[string]asking {
	asked := t.asked(rows)
	needed := countsWaiting(f, h) ||
		slices.ContainsFunc(t.Nodes, func(n *Node) bool { return LimitsNetwork(n.Settings) })
	if first, ok := Unified(f); !ok || first.ID != h.ID || !needed {
		return asked
	}
	for _, n := range t.Nodes {
		if n.Path != RootGroup { // those without a limit are counted
			asked[n.Path] = asking{any: true, descends: true}
		}
	}
	return asked
}

// countsWaiting says whether a hierarchy is there to count how long groups wait (PSI), which v1 does not: a cgroup2
// beside v1. Under systemd the groups' units have directories there anyway.
func countsWaiting(f *host.Facts, h host.Hierarchy) bool {
	return f.Pressure && !f.Systemd && h.Version == 2 && !h.Has("cpu")
}

// spread says for each group whether one above it, and whether one below it, asks.
func (t *Forest) spread(asked map[string]asking) (above, below map[string]bool) {
	above, below = make(map[string]bool, len(t.Nodes)), make(map[string]bool, len(t.Nodes))
	for _, n := range t.Nodes {
		if p := n.Parent; p != nil {
			above[n.Path] = above[p.Path] || asked[p.Path].any
		}
	}
	for _, n := range slices.Backward(t.Nodes) {
		if p := n.Parent; p != nil && (below[n.Path] || asked[n.Path].any) {
			below[p.Path] = true
		}
	}
	return above, below
}

// LimitsNetwork says whether any of the settings is a limit on an interface.
func LimitsNetwork(ss policy.Settings) bool {
	return slices.ContainsFunc(ss, func(s policy.Setting) bool { return s.Key.OfNetwork() })
}

// Unified is the cgroup2 hierarchy, on which programs sit.
func Unified(f *host.Facts) (host.Hierarchy, bool) {
	for _, h := range f.Hierarchies {
		if h.Version == 2 && !h.ReadOnly {
			return h, true
		}
	}
	return host.Hierarchy{}, false
}

// rootSettings are the limits of our root group, where the policy asks for one: its weight against the rest of the
// host, if one is asked for, and what host.reserve leaves of CPU, memory and tasks.
func rootSettings(f *host.Facts, h policy.HostPart) policy.Settings {
	if h.Root == "" {
		return nil
	}
	var settings policy.Settings
	if h.Weight > 0 {
		settings = policy.Settings{{Key: policy.KeyCPUWeight, Value: h.Weight, From: "host.weight", Pos: h.Pos}}
	}
	reserve := func(key policy.Key, v policy.Value) {
		settings = append(settings, policy.Setting{Key: key, Value: v, From: "host.reserve", Pos: h.Reserve.Pos})
	}
	if h.Reserve.CPU > 0 {
		if left := policy.Cores(len(f.CPUs))*policy.One - h.Reserve.CPU; left > 0 {
			reserve(policy.KeyCPULimit, left)
		}
	}
	memory := ReservedMemory(f, h)
	if left := policy.Bytes(f.MemTotal) - memory; memory > 0 && left > 0 {
		reserve(policy.KeyMemoryMax, left)
	}
	if h.Reserve.CPU > 0 || memory > 0 {
		reserve(policy.KeyTasks, tasksCap(f))
	}
	return settings
}

// ReservedMemory is what host.reserve keeps of the memory for the rest of the host, in bytes.
func ReservedMemory(f *host.Facts, h policy.HostPart) policy.Bytes {
	switch v := h.Reserve.Memory.(type) {
	case policy.Bytes:
		return v
	case policy.MemoryPercent:
		return v.Of(policy.Bytes(f.MemTotal))
	}
	return 0
}

// tasksCap is what our root group may have of the host's tasks: all but a tenth, and all but 1000
// where a tenth is less, so that root can still log in and start something.
func tasksCap(f *host.Facts) policy.Count {
	most := f.PIDMax
	if f.ThreadsMax > 0 && (most == 0 || f.ThreadsMax < most) {
		most = f.ThreadsMax
	}
	return policy.Count(max(most-max(most/10, 1000), most/2, 1))
}

// Rows gives the rows that this host holds, by hierarchy ID, in the order of the table.
func Rows(f *host.Facts) map[string][]*knob.Row {
	rows := make(map[string][]*knob.Row, len(f.Hierarchies))
	for _, r := range knob.RowsFor(f) {
		id := r.HierarchyID(f)
		rows[id] = append(rows[id], r)
	}
	return rows
}

// IsBudget says whether a row holds an amount for the processes of the very directory, so that a
// group with several directories must split it between them.
func IsBudget(r *knob.Row) bool { return !r.Descends && !r.Inherits }
