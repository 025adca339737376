package systemdfake

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// Options describe the modelled host. The zero value is systemd 252 on cgroup v2.
type Options struct {
	Version string  // of systemd; "" is "252.39-1~deb12u2"
	Cgroups int     // version of the cgroup hierarchies; 0 is 2
	Kernel  *Kernel // nil: the model keeps directories and processes by itself
}

// Kernel is a model of the kernel in which the units' directories and processes are, for tests of what works on both.
// It is called with the lock of the Manager held, and calls nothing of it.
type Kernel struct {
	// Realize makes a directory, with what leads there, and writes files of it.
	Realize func(group string, files map[string]string)
	// Remove removes a directory with what is below it.
	Remove func(group string)
	Spawn  func() (pid int)
	Move   func(pid int, group string)
	End    func(pid int)
	// GroupOf is where a process is, "" for one that has ended.
	GroupOf func(pid int) string
}

// host is what systemd manages: units with their files and directories, and processes.
type host struct {
	options   Options
	version   systemd.Version
	root      string
	units     map[string]*unit
	processes map[int]*process
	nextPID   int
}

// unit is one loaded unit.
type unit struct {
	name, load          string
	active, sub, result string
	fragment            string
	dropIns             []string
	settings            settings
	group               string            // its directory, "" when it has none
	files               map[string]string // of that directory
	subgroups           map[string]bool
	main                int
	stamp               string
}

// process is one process: the unit it is in, "" for none, and the sub-group there.
type process struct{ unit, sub string }

func isTransient(u *unit) bool { return strings.HasPrefix(u.fragment, "/"+transientDir) }

// loaded reads a unit from its files. It keeps no state of one that is loaded already.
func (h *host) loaded(name string) *unit {
	u := &unit{name: name, load: "not-found", active: "inactive", sub: "dead", result: "success",
		files: map[string]string{}, subgroups: map[string]bool{}}
	h.read(u)
	return u
}

// read sets what a unit's files say.
func (h *host) read(u *unit) {
	u.load, u.fragment, u.dropIns, u.settings = "not-found", "", nil, nil
	for _, dir := range []string{transientDir, adminDir, "run/systemd/system", "usr/lib/systemd/system"} {
		file := filepath.Join(h.root, dir, u.name)
		if target, err := os.Readlink(file); err == nil && target == "/dev/null" {
			u.load = "masked"
			break
		}
		if text, err := os.ReadFile(file); err == nil {
			u.load, u.fragment, u.settings = "loaded", "/"+dir+"/"+u.name, parseFile(string(text))
			break
		}
	}
	kind := unitname.TypeOf(u.name)
	if u.load == "not-found" && kind == "slice" {
		u.load = "loaded" // a slice needs no file
	}
	for _, dropIn := range h.dropIns(u.name) {
		text, err := os.ReadFile(filepath.Join(h.root, dropIn))
		if err == nil && u.load != "masked" {
			u.dropIns = append(u.dropIns, "/"+dropIn)
			u.settings = append(u.settings, parseFile(string(text))...)
		}
	}
	if u.load == "loaded" && kind == "service" && len(u.settings.list("ExecStart")) == 0 {
		u.load = "bad-setting"
	}
	u.stamp = h.stampOf(u.name)
}

// dropIns lists a unit's drop-ins in the order they count: by name, over all directories.
func (h *host) dropIns(name string) []string {
	byName := map[string]string{}
	for _, dir := range slices.Backward(searchPath) {
		files, _ := os.ReadDir(filepath.Join(h.root, dir, name+".d")) // most units have none
		for _, file := range files {
			if strings.HasSuffix(file.Name(), ".conf") {
				byName[file.Name()] = filepath.Join(dir, name+".d", file.Name())
			}
		}
	}
	var paths []string
	for _, path := range byName {
		paths = append(paths, path)
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Compare(filepath.Base(a), filepath.Base(b)) })
	return paths
}

// stampOf tells whether a unit's files are those that were read.
func (h *host) stampOf(name string) string {
	var b strings.Builder
	for _, file := range append(h.dropIns(name), filepath.Join(adminDir, name)) {
		text, _ := os.ReadFile(filepath.Join(h.root, file))
		fmt.Fprintf(&b, "%s %q\n", file, text)
	}
	return b.String()
}

func (h *host) spawn(unit string) int {
	pid := h.nextPID + 1
	if h.options.Kernel != nil {
		pid = h.options.Kernel.Spawn()
	}
	h.nextPID = max(pid, h.nextPID)
	h.processes[pid] = &process{}
	h.enter(pid, unit, "")
	return pid
}

// enter puts a process into a unit, or a sub-group of it.
func (h *host) enter(pid int, unit, sub string) {
	p := h.processes[pid]
	p.unit, p.sub = unit, sub
	if u := h.units[unit]; h.options.Kernel != nil && u != nil {
		if sub != "" {
			h.options.Kernel.Realize(path.Join(u.group, sub), nil)
		}
		h.options.Kernel.Move(pid, path.Join(u.group, sub))
	}
}

// finish ends a process.
func (h *host) finish(pid int) {
	if h.processes[pid] != nil && h.options.Kernel != nil {
		h.options.Kernel.End(pid)
	}
	delete(h.processes, pid)
}

func (h *host) killAll(u *unit) {
	h.finish(u.main)
	if u.settings.last("KillMode") == "process" {
		return
	}
	for _, pid := range h.members(u.name) {
		h.finish(pid)
	}
}

// members lists the processes of a unit, in any sub-group.
func (h *host) members(name string) []int {
	var pids []int
	for pid, p := range h.processes {
		if p.unit == name {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// unitIn gives the unit whose directory that is.
func (h *host) unitIn(group string) *unit {
	for _, u := range h.units {
		if u.group == group && group != "" {
			return u
		}
	}
	return nil
}

// unitAt finds the innermost unit that a directory lies in.
func (h *host) unitAt(group string) (unit, sub string) {
	for _, name := range slices.Sorted(maps.Keys(h.units)) {
		u := h.units[name]
		rest, in := strings.CutPrefix(group, u.group)
		if u.group == "" || u.group == "/" || !in || rest != "" && rest[0] != '/' || unitname.TypeOf(name) == "slice" {
			continue
		}
		return name, rest
	}
	return "", ""
}

// requiredBy lists the loaded units that lie in a slice, or require a unit.
func (h *host) requiredBy(name string) []string {
	var names []string
	for _, other := range slices.Sorted(maps.Keys(h.units)) {
		u := h.units[other]
		if other != name && u.load == "loaded" &&
			(sliceOf(u) == name || slices.Contains(u.settings.list("Requires"), name)) {
			names = append(names, other)
		}
	}
	return names
}

// sliceOf is where a unit goes at its next start.
func sliceOf(u *unit) string {
	switch unitname.TypeOf(u.name) {
	case "slice":
		if u.name == "-.slice" {
			return ""
		}
		parent, _ := unitname.ParentSlice(u.name)
		return parent
	case "service", "scope":
		if s := u.settings.last("Slice"); s != "" {
			return s
		}
		return "system.slice"
	}
	return ""
}

// groupFor is the directory a unit gets at its next start.
func groupFor(u *unit) string {
	if unitname.TypeOf(u.name) == "slice" {
		dir, _ := unitname.SliceDir(u.name)
		return dir
	}
	dir, _ := unitname.SliceDir(sliceOf(u))
	return path.Join(dir, u.name)
}

// startParents makes the slices above a unit active.
func (h *host) startParents(slice string) {
	var chain []string
	for s := slice; s != "" && s != "-.slice"; {
		chain = append(chain, s)
		s, _ = unitname.ParentSlice(s)
	}
	for _, s := range slices.Backward(chain) {
		u := h.units[s]
		if u == nil {
			u = h.loaded(s)
			h.units[s] = u
		}
		h.activateSlice(u)
	}
}

func (h *host) activateSlice(u *unit) {
	if u.active == "active" {
		return
	}
	u.active, u.sub, u.group = "active", "active", groupFor(u)
	h.realize(u)
}

// realize writes what systemd knows of a unit to its directory. Of what it does not know it keeps off.
func (h *host) realize(u *unit) {
	if u.group == "" {
		return
	}
	defer h.mirror(u)
	written := map[string]bool{}
	for _, r := range systemd.Table() {
		file := h.fileOf(u, r)
		if file == "" {
			continue
		}
		if text, ok := fileText(u.settings, r, file); ok {
			u.files[file], written[file] = text, true
		} else if !written[file] {
			delete(u.files, file) // back to the default
		}
	}
}

// fileOf gives the file of a unit's directory that a property is written to; "" for none.
func (h *host) fileOf(u *unit, r *systemd.Row) string {
	switch {
	case !r.Known(h.version, unitname.TypeOf(u.name)), r.Name == "OOMPolicy":
		return ""
	case h.options.Cgroups == 1:
		return r.V1
	}
	return r.V2
}

// mirror writes what systemd holds of a unit to the kernel.
func (h *host) mirror(u *unit) {
	if h.options.Kernel == nil || u.group == "" || u.group == "/" {
		return
	}
	files := map[string]string{}
	for _, r := range systemd.Table() {
		file := h.fileOf(u, r)
		// A list of devices has a line for each, which the model of the kernel takes one at a time.
		if file == "" || r.Form == systemd.FormFlag || r.Form == systemd.FormDevices {
			continue
		}
		if _, done := files[file]; !done {
			files[file] = defaultOf(file)
			if text, set := u.files[file]; set {
				files[file] = text
			}
		}
	}
	h.options.Kernel.Realize(u.group, files)
}

const subtreeControl = "cgroup.subtree_control"

// handed gives the controllers handed down after a write of "+memory -cpu".
func handed(before, change string) string {
	list := strings.Fields(before)
	for _, one := range strings.Fields(change) {
		list = slices.DeleteFunc(list, func(name string) bool { return name == one[1:] })
		if one[0] == '+' {
			list = append(list, one[1:])
		}
	}
	return strings.Join(list, " ")
}

// defaultOf is what a fresh directory's file holds.
func defaultOf(file string) string {
	switch file {
	case "memory.min", "memory.low":
		return "0"
	case "cpu.weight":
		return "100"
	case "cpu.shares":
		return "1024"
	case "cpu.max":
		return "max 100000"
	case "cpu.cfs_quota_us":
		return "-1"
	case "memory.limit_in_bytes":
		return "9223372036854771712"
	case "io.max", "cpuset.cpus", "cpuset.mems", subtreeControl:
		return ""
	}
	return "max"
}
