package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// optionalFiles are the v1 files that hang on a build or boot option, by controller. The top directory of a
// hierarchy shows whether they are there: Debian's kernels have no CONFIG_RT_GROUP_SCHED, and swap
// accounting had to be switched on before 6.1 on some.
var optionalFiles = map[string]string{"cpu": "cpu.rt_runtime_us", "memory": "memory.memsw.limit_in_bytes"}

// v1Controllers are the controllers there have been on v1 (cgroups(7)). /proc/cgroups knows better,
// but a kernel without v1 does not fill it.
var v1Controllers = []string{"blkio", "cpu", "cpuacct", "cpuset", "debug", "devices", "freezer", "hugetlb",
	"memory", "misc", "net_cls", "net_prio", "ns", "perf_event", "pids", "rdma"}

// V1Name gives a controller of cgroup2 the name it has on v1, under which bulkhead knows it.
func V1Name(controller string) string {
	if controller == "io" {
		return "blkio"
	}
	return controller
}

// V2Name is the name of a controller in the files of cgroup2.
func V2Name(controller string) string {
	if controller == "blkio" {
		return "io"
	}
	return controller
}

// V1Names gives controllers their v1 names, sorted.
func V1Names(controllers []string) []string {
	names := make([]string, len(controllers))
	for i, name := range controllers {
		names[i] = V1Name(name)
	}
	slices.Sort(names)
	return names
}

func (h *Host) cgroupFacts(f *Facts) error {
	var err error
	if f.Mounts, err = mountinfo.Read(h.Root); err != nil {
		return err
	}
	known, err := h.kernelControllers()
	if err != nil {
		return err
	}
	f.Hierarchies = hierarchies(f.Mounts, known)
	for i := range f.Hierarchies {
		if f.Hierarchies[i].Version != 2 {
			f.Hierarchies[i].Lacks = h.lacks(f.Hierarchies[i])
			continue
		}
		offered, err := h.Root.ReadText(path.Join(f.Hierarchies[i].Mount, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for _, name := range strings.Fields(offered) {
			f.Hierarchies[i].Controllers = append(f.Hierarchies[i].Controllers, V1Name(name))
		}
		slices.Sort(f.Hierarchies[i].Controllers)
	}
	f.Controllers = placeControllers(known, f.Hierarchies, f.Mounts)
	h.blinded(f)
	return nil
}

// lacks looks which optional files a v1 hierarchy is without. One that cannot be looked at lacks nothing
// that is known.
func (h *Host) lacks(of Hierarchy) (files []string) {
	var optional []string
	for _, c := range of.Controllers {
		if file, ok := optionalFiles[c]; ok {
			optional = append(optional, file)
		}
	}
	if len(optional) == 0 {
		return nil
	}
	names, err := h.Root.ReadDir(of.Mount)
	if err != nil || !slices.Contains(names, "tasks") { // every v1 directory has that one
		return nil
	}
	return slices.DeleteFunc(optional, func(file string) bool { return slices.Contains(names, file) })
}

// kernelController is one line of /proc/cgroups.
type kernelController struct {
	name      string
	hierarchy int // 0: cgroup2, or not mounted
	enabled   bool
}

func (h *Host) kernelControllers() ([]kernelController, error) {
	text, err := h.Root.ReadFile("/proc/cgroups")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // built without CONFIG_PROC_CGROUPS or without cgroups
	}
	if err != nil {
		return nil, err
	}
	return parseControllers(text)
}

// parseControllers reads "cpu	1	2	1": name, hierarchy, number of groups, enabled.
func parseControllers(text []byte) ([]kernelController, error) {
	var list []kernelController
	err := sysroot.Lines("cgroups", text, func(line string) error {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			return nil
		}
		if len(fields) < 4 {
			return fmt.Errorf("%q has fewer than four fields", line)
		}
		number, err := strconv.Atoi(fields[1])
		if err != nil {
			return fmt.Errorf("hierarchy %q is not a number", fields[1])
		}
		list = append(list, kernelController{fields[0], number, fields[3] == "1"})
		return nil
	})
	return list, err
}

// hierarchies returns every mounted cgroup hierarchy once, by ID. Of several mounts of the same one
// (bind mounts, containers) it takes a visible one, if it can the whole tree, writable, with the
// shortest path.
func hierarchies(mounts mountinfo.Mounts, known []kernelController) []Hierarchy {
	var list []Hierarchy
	for _, m := range mounts {
		if hierarchy, is := asHierarchy(m, known); is && mounts.Visible(m) {
			list = append(list, hierarchy)
		}
	}
	slices.SortStableFunc(list, func(a, b Hierarchy) int {
		return cmp.Or(
			strings.Compare(a.ID, b.ID),
			first(a.Root == "/", b.Root == "/"),
			first(!a.ReadOnly, !b.ReadOnly),
			cmp.Compare(len(a.Mount), len(b.Mount)),
			strings.Compare(a.Mount, b.Mount),
		)
	})
	return slices.CompactFunc(list, func(a, b Hierarchy) bool { return a.ID == b.ID })
}

// first orders what has a property before what has not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func asHierarchy(m mountinfo.Mount, known []kernelController) (Hierarchy, bool) {
	h := Hierarchy{
		Version:  1,
		Mount:    m.Point,
		Root:     m.Root,
		Options:  m.Super,
		ReadOnly: slices.Contains(m.Options, "ro") || slices.Contains(m.Super, "ro"),
	}
	switch m.Type {
	case "cgroup2":
		h.Version, h.ID = 2, procfs.UnifiedID
		return h, true
	case "cgroup":
		name := ""
		for _, option := range m.Super {
			if strings.HasPrefix(option, "name=") {
				name = option
			}
			if isController(option, known) {
				h.Controllers = append(h.Controllers, option)
			}
		}
		slices.Sort(h.Controllers)
		h.ID = procfs.HierarchyID(h.Controllers, name)
		return h, h.ID != ""
	}
	return Hierarchy{}, false
}

func isController(name string, known []kernelController) bool {
	return slices.Contains(v1Controllers, name) ||
		slices.ContainsFunc(known, func(k kernelController) bool { return k.name == name })
}

// placeControllers says for every controller of the kernel which hierarchy holds it, by name.
func placeControllers(known []kernelController, list []Hierarchy, mounts mountinfo.Mounts) []Controller {
	enabled := map[string]bool{}
	for _, k := range known {
		enabled[k.name] = k.enabled
	}
	where := map[string]string{}
	for _, h := range list {
		for _, name := range h.Controllers {
			where[name], enabled[name] = h.ID, true
		}
	}
	var controllers []Controller
	for name, on := range enabled {
		c := Controller{Name: name, Hierarchy: where[name], Enabled: on}
		if c.Hierarchy == "" && on {
			c.Hint = mountHint(name, list, mounts)
		}
		controllers = append(controllers, c)
	}
	slices.SortFunc(controllers, func(a, b Controller) int { return strings.Compare(a.Name, b.Name) })
	return controllers
}

// mountHint is the command that mounts a controller as a v1 hierarchy where this host keeps its others.
func mountHint(controller string, list []Hierarchy, mounts mountinfo.Mounts) string {
	const usual = "/sys/fs/cgroup"
	base, prepare := usual, ""
	top, _ := mounts.Of(usual)
	switch parent := usualParent(list); {
	case parent != "":
		base = parent
	case top.Point == usual && top.Type == "cgroup2":
		base = "/run/cgroup" // a directory below usual would be a cgroup
	case top.Point != usual:
		prepare = "mount -t tmpfs cgroup_root " + usual + " && " // sysfs itself takes no directory
	}
	if holder, found := mounts.Of(base); found && slices.Contains(holder.Options, "ro") {
		prepare = "mount -o remount,rw " + holder.Point + " && " // systemd leaves its tmpfs read-only
	}
	dir := path.Join(base, controller)
	return fmt.Sprintf("%smkdir -p %s && mount -t cgroup -o %s none %s", prepare, dir, controller, dir)
}

// usualParent returns the directory in which most v1 hierarchies are mounted, "" when none is.
func usualParent(list []Hierarchy) string {
	count := map[string]int{}
	best := ""
	for _, h := range list {
		if h.Version != 1 {
			continue
		}
		parent := path.Dir(h.Mount)
		if count[parent]++; count[parent] > count[best] {
			best = parent
		}
	}
	return best
}

// blinded looks whether somebody's use of net_cls or net_prio hides the cgroup2 directories of sockets. A socket had
// room for the one or the other, and from the first use on, until the next boot, for that of v1 alone
// (cgroup_sk_alloc_disable), until 5.15 (8520e224f547). Distributions have brought that to older kernels (Debian's
// 5.10.262: measured), so the kernel is asked, where it can be: from 5.8 on.
func (h *Host) blinded(f *Facts) {
	unified, ok := f.Unified()
	if !ok || f.Kernel.Major == 0 || f.Kernel.AtLeast(5, 15) {
		return
	}
	h.sight.mu.Lock()
	defer h.sight.mu.Unlock()
	if h.sight.sees {
		return
	}
	used, left := "", mostClassDirs
	for _, in := range f.Hierarchies {
		if used == "" && in.Version == 1 && (in.Has("net_cls") || in.Has("net_prio")) {
			used = h.classedBelow(in.Mount, &left)
		}
	}
	f.BlindedBy = used
	if !h.Root.Live() {
		return
	}
	sees, known := false, h.sight.blind
	if !known {
		sees, known = seesOwnSocket(unified.Mount)
	}
	switch {
	case known && sees:
		h.sight.sees, f.BlindedBy = used != "", ""
	case known:
		h.sight.blind, f.BlindedBy = true, cmp.Or(used, "a class or priority that somebody gave sockets since the boot")
	}
}

// classedBelow finds a directory with a class, dir or one below it.
func (h *Host) classedBelow(dir string, left *int) string {
	if *left--; *left < 0 {
		return ""
	}
	classes, err := h.Root.ReadText(path.Join(dir, "net_cls.classid"))
	priorities, err2 := h.Root.ReadText(path.Join(dir, "net_prio.ifpriomap"))
	if err != nil && err2 != nil { // no directory of theirs
		return ""
	}
	if classes != "" && classes != "0" || prioritised(priorities) {
		return dir
	}
	names, err := h.Root.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, name := range names {
		if isKernelFile(name) {
			continue
		}
		if found := h.classedBelow(path.Join(dir, name), left); found != "" {
			return found
		}
	}
	return ""
}
