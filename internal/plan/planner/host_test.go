package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Hosts of the tests: four CPUs on two nodes, 16 GiB, kernel 6.18.

func factsWith(hierarchies ...host.Hierarchy) *host.Facts {
	f := &host.Facts{
		Kernel:   host.Version{Major: 6, Minor: 18, Text: "6.18.0"},
		MemTotal: 16 << 30, SwapTotal: 4 << 30, PageSize: 4096,
		CPUs: idset.New(0, 1, 2, 3),
		Nodes: []host.Node{{ID: 0, CPUs: idset.New(0, 1), MemTotal: 8 << 30},
			{ID: 1, CPUs: idset.New(2, 3), MemTotal: 8 << 30}},
		HugePageSizes: []int64{2 << 20},
		Hierarchies:   hierarchies,
		Devices: []blockdev.Device{
			{Number: "8:0", Name: "sda", Kind: blockdev.Disk, Disk: "8:0"},
			{Number: "8:16", Name: "sdb", Kind: blockdev.Disk, Disk: "8:16"},
		},
		PIDMax: 32768, ThreadsMax: 120000, SysResource: true,
	}
	for _, h := range hierarchies {
		for _, c := range h.Controllers {
			f.Controllers = append(f.Controllers, host.Controller{Name: c, Hierarchy: h.ID, Enabled: true})
		}
	}
	return f
}

func v1(controllers ...string) host.Hierarchy {
	id := strings.Join(controllers, ",")
	return host.Hierarchy{ID: id, Version: 1, Controllers: controllers, Mount: "/sys/fs/cgroup/" + id, Root: "/"}
}

func v2(controllers ...string) host.Hierarchy {
	return host.Hierarchy{ID: "unified", Version: 2, Controllers: controllers, Mount: "/sys/fs/cgroup", Root: "/"}
}

func legacyHost() *host.Facts {
	return factsWith(v1("blkio"), v1("cpu"), v1("cpuacct"), v1("cpuset"), v1("hugetlb"), v1("memory"), v1("pids"))
}

func comountedHost() *host.Facts {
	return factsWith(v1("blkio"), v1("cpu", "cpuacct"), v1("cpuset"), v1("memory"), v1("pids"))
}

func unifiedHost() *host.Facts {
	return factsWith(v2("blkio", "cpu", "cpuset", "hugetlb", "memory", "pids"))
}

func hybridHost() *host.Facts {
	u := v2("blkio", "hugetlb", "memory")
	u.Mount = "/sys/fs/cgroup/unified"
	return factsWith(v1("cpu"), v1("cpuacct"), v1("cpuset"), v1("pids"), u)
}

var hosts = map[string]func() *host.Facts{
	"v1": legacyHost, "v1 co-mounted": comountedHost, "v2": unifiedHost, "hybrid": hybridHost,
}

// settings builds Settings from key, value pairs; "key@on" is for a device or page size.
func settings(from string, pairs ...any) policy.Settings {
	var s policy.Settings
	for i := 0; i < len(pairs); i += 2 {
		key, on, _ := strings.Cut(pairs[i].(string), "@")
		setting := policy.Setting{Key: policy.Key(key), On: on, Value: pairs[i+1].(policy.Value), From: from,
			Pos: policy.Pos{File: "/etc/bulkhead/policy.yaml", Line: 10 + i}}
		if strings.HasPrefix(key, "io.") {
			setting.Dev = on
		}
		s = s.With(setting)
	}
	return s
}

// group builds a concrete group; inner ones are found by groupsOf.
func group(path string, s policy.Settings) classify.Group {
	return classify.Group{Path: path, Parent: layout.ParentGroup(path), Settings: s}
}

func groupsOf(groups ...classify.Group) classify.Result {
	for i := range groups {
		groups[i].Inner = slices.ContainsFunc(groups, func(g classify.Group) bool { return g.Parent == groups[i].Path })
	}
	return classify.Result{Groups: groups}
}

// sim is a host that plans are carried out on: the model of the kernel with what a journal would keep.
type sim struct {
	facts     *host.Facts
	kernel    *cgroupfake.Kernel
	parents   map[int]int
	comms     map[int]string
	scores    map[procfs.ID]int
	homes     plan.Homes
	originals plan.Originals
}

func newSim(f *host.Facts) *sim {
	return &sim{
		facts: f, parents: map[int]int{}, comms: map[int]string{}, scores: map[procfs.ID]int{},
		homes:     plan.Homes{Process: map[procfs.ID]map[string]string{}, Group: map[string]map[string]string{}},
		originals: plan.Originals{OOMScoreAdj: map[procfs.ID]int{}, Subtree: map[cgroup.Dir][]string{}},
		kernel: cgroupfake.New(f.Hierarchies,
			cgroupfake.Options{CPUs: f.CPUs, Nodes: idset.New(0, 1), MemTotal: f.MemTotal}),
	}
}

// spawn starts a process, a child of parent unless that is 0.
func (s *sim) spawn(comm string, parent int) procfs.ID {
	id := s.kernel.Spawn()
	s.parents[id.PID], s.comms[id.PID] = max(parent, 1), comm
	return id
}

func (s *sim) process(id procfs.ID) procfs.Process {
	return procfs.Process{
		ID: id, PPID: s.parents[id.PID], Comm: s.comms[id.PID], State: 'S', Threads: 1,
		Cgroups: s.kernel.Membership(id.PID),
	}
}

// observe reads the model as the control package reads a host.
func (s *sim) observe() plan.Observation {
	o := plan.Observation{
		Dirs: map[cgroup.Dir]map[string]string{}, Subtree: map[cgroup.Dir]plan.Subtree{},
		OOMScoreAdj: maps.Clone(s.scores), Homes: s.homes, Originals: s.originals,
	}
	rows := layout.Rows(s.facts)
	for _, h := range s.facts.Hierarchies {
		var names []string
		for _, r := range rows[h.ID] {
			if r.PerSize {
				names = append(names, r.Name("2MB"))
			} else {
				names = append(names, r.File)
			}
		}
		root := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
		if h.Version == 2 {
			s.observeSubtree(&o, root)
		}
		if slices.Contains(h.Controllers, "memory") || slices.Contains(h.Controllers, "cpuset") {
			o.Dirs[root] = must(s.kernel.ReadMany(root, names))
		}
		for _, dir := range s.ours(h.ID) {
			o.Dirs[dir] = must(s.kernel.ReadMany(dir, names))
			if h.Version == 2 {
				s.observeSubtree(&o, dir)
			}
		}
	}
	for _, id := range s.kernel.Processes() {
		o.Processes = append(o.Processes, s.process(id))
	}
	return o
}

// simNames knows our directories whatever root group they were made with.
var simNames = layout.Names{Former: []string{"", "bulkhead", "ora"}}

// ours gives our directories in a hierarchy, parents before children.
func (s *sim) ours(hierarchy string) (dirs []cgroup.Dir) {
	for _, dir := range must(s.kernel.Walk(cgroup.Dir{Hierarchy: hierarchy, Path: "/"})) {
		if _, ours := simNames.GroupOf(dir.Path); ours {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func (s *sim) observeSubtree(o *plan.Observation, dir cgroup.Dir) {
	available, enabled, err := s.kernel.Subtree(dir)
	if err != nil {
		panic(err)
	}
	o.Subtree[dir] = plan.Subtree{Available: available, Enabled: enabled}
}

// modelMemory is what the model has charged.
type modelMemory struct {
	noMemory
	kernel *cgroupfake.Kernel
}

func (m modelMemory) Charged(dir cgroup.Dir) (current, pinned int64) {
	usage, err := metrics.Read(m.kernel.Tree, dir)
	if err != nil || usage.Memory.Current == nil {
		return 0, 0
	}
	if usage.Memory.Anonymous != nil && usage.Memory.Shared != nil {
		pinned = *usage.Memory.Anonymous + *usage.Memory.Shared
	}
	return *usage.Memory.Current, pinned
}

// memoryInUse is what a test says is in use.
type memoryInUse struct {
	current, pinned  map[cgroup.Dir]int64
	held, heldShared map[procfs.ID]int64
	onNodes          map[string]map[int]int64
	migrates         map[cgroup.Dir]bool
}

func (m *memoryInUse) Charged(d cgroup.Dir) (current, pinned int64) { return m.current[d], m.pinned[d] }
func (m *memoryInUse) Held(id procfs.ID) (all, shared int64)        { return m.held[id], m.heldShared[id] }
func (m *memoryInUse) OnNodes(group string) map[int]int64           { return m.onNodes[group] }
func (m *memoryInUse) Migrates(d cgroup.Dir) bool                   { return m.migrates[d] }

// inUse is what is in use for a plan, to be changed.
func inUse(in *plan.Input) *memoryInUse {
	if in.Memory == nil {
		in.Memory = &memoryInUse{held: map[procfs.ID]int64{}, heldShared: map[procfs.ID]int64{}}
	}
	return in.Memory.(*memoryInUse)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// do carries out one step, and keeps what a journal would.
func (s *sim) do(step plan.Step) error {
	switch {
	case step.Makes():
		return s.kernel.Make(step.Dir())
	case step.Removes():
		return s.kernel.Remove(step.Dir())
	case step.Moves():
		s.keepHome(step)
		return s.kernel.Move(step.Dir(), step.PID())
	case step.Kind == procfs.KindScore:
		if _, ok := s.originals.OOMScoreAdj[step.PID()]; !ok {
			s.originals.OOMScoreAdj[step.PID()] = s.scores[step.PID()]
		}
		n, err := strconv.Atoi(step.New)
		s.scores[step.PID()] = n
		return err
	case step.Kind == cgroup.KindControllers:
		s.keepSubtree(step)
		return s.kernel.Write(step.File(), step.New)
	case step.Kind == cgroup.KindFile:
		return s.kernel.Write(step.File(), step.New)
	}
	return fmt.Errorf("unknown step %s", step.Target)
}

func (s *sim) keepSubtree(step plan.Step) {
	if _, ours := simNames.GroupOf(step.Dir().Path); ours {
		return
	}
	for word := range strings.FieldsSeq(step.New) {
		if name, ok := strings.CutPrefix(word, "+"); ok {
			s.originals.Subtree[step.Dir()] = append(s.originals.Subtree[step.Dir()], name)
		}
	}
}

func (s *sim) keepHome(step plan.Step) {
	if _, ours := simNames.GroupOf(step.Old); ours {
		return
	}
	if s.homes.Process[step.PID()] == nil {
		s.homes.Process[step.PID()] = map[string]string{}
	}
	s.homes.Process[step.PID()][step.Dir().Hierarchy] = step.Old
}

// undo takes one step back, by nothing but what the step says.
func (s *sim) undo(step plan.Step) error {
	if err := s.undoStep(step); err != nil {
		return err
	}
	for _, w := range step.Restore {
		if err := s.kernel.Write(w.File, w.Value); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	}
	return nil
}

func (s *sim) undoStep(step plan.Step) error {
	switch {
	case step.Makes():
		return s.kernel.Remove(step.Dir())
	case step.Removes():
		return s.kernel.Make(step.Dir())
	case step.Moves():
		return s.kernel.Move(cgroup.Dir{Hierarchy: step.Dir().Hierarchy, Path: step.Undo}, step.PID())
	case step.Kind == procfs.KindScore:
		n, err := strconv.Atoi(step.Undo)
		s.scores[step.PID()] = n
		return err
	case step.Undo == "":
		return nil
	case step.Kind == cgroup.KindControllers, step.Kind == cgroup.KindFile:
		return s.kernel.Write(step.File(), step.Undo)
	}
	return fmt.Errorf("unknown step %s", step.Target)
}

// canonicalDump sorts the lines of per-device files, which the kernel keeps in the order of their
// writes, prints an unlimited hugetlb as one number, which the kernel
// does not, and v2's cpusets as they take effect: an
// empty list cannot be written back while processes are inside.
func (s *sim) canonicalDump(at string) string {
	var b strings.Builder
	var dir cgroup.Dir
	for line := range strings.Lines(s.kernel.DumpBelow(at)) {
		name, text, found := strings.Cut(strings.TrimSuffix(line, "\n"), " = ")
		if place, ok := strings.CutPrefix(name, "["); ok {
			dir.Hierarchy, dir.Path, _ = strings.Cut(strings.TrimSuffix(place, "]"), ":")
		}
		if dir.Hierarchy == "unified" && (name == "cpuset.cpus" || name == "cpuset.mems") {
			text = must(s.kernel.Read(dir.File(name + ".effective")))
		}
		if found {
			values := strings.Split(text, " | ")
			slices.Sort(values)
			text = " = " + strings.Join(values, " | ")
		}
		if strings.HasPrefix(name, "hugetlb.") && strings.HasPrefix(text, " = 92233720368") {
			text = " = max"
		}
		fmt.Fprintln(&b, name+text)
	}
	return b.String()
}

// state is everything that a plan may change, as text.
func (s *sim) state() string {
	text := s.canonicalDump("/")
	for _, id := range s.kernel.Processes() {
		text += fmt.Sprintf("oom_score_adj of %d = %d\n", id.PID, s.scores[id])
	}
	return text
}
