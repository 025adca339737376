// Package systemdfake is a model of PID 1 behind real sockets, for tests without systemd: the client's own code
// runs against it, byte for byte on the wire.
//
// Its state is what the real one's is. Settings live in unit files below a root directory of its own (fragments,
// drop-ins, the files that SetUnitProperties writes), and a daemon-reload is a second reading of them, so that what is
// lost and what is kept there follows from the files and is not said twice. The rules were measured on systemd 252 in a
// virtual machine; the package conformance runs the same assertions on the model and on a real systemd.
//
// Not modelled: unit types beyond service, scope, slice and target, aliases, templates, ordering, conditions, timers,
// reload jobs, users, the Startup… variants, percentages, polkit.
package systemdfake

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// Options describe the modelled host. The zero value is systemd 252 on cgroup v2.
type Options struct {
	Version string  // of systemd; "" is "252.39-1~deb12u2"
	Cgroups int     // version of the cgroup hierarchies; 0 is 2
	Kernel  *Kernel // nil: the model keeps directories and processes by itself
}

// Manager is the model. It is safe for concurrent use.
type Manager struct {
	options Options
	version systemd.Version
	root    string

	mu            sync.Mutex
	clients       map[*client]bool
	anySubscribed atomic.Bool
	units         map[string]*unit
	processes     map[int]*process
	nextPID       int
	nextJob       uint32
	jobs          map[uint32]*job
	hung, away    bool
	stalled       map[string]bool
	down          bool
	calls         []Call
	intercept     func(Call) error
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

// job is one that has not ended.
type job struct {
	id   uint32
	unit string
	kind string
	done bool
}

// New starts a model that ends with the test.
func New(tb testing.TB, o Options) *Manager {
	tb.Helper()
	if o.Version == "" {
		o.Version = "252.39-1~deb12u2"
	}
	if o.Cgroups == 0 {
		o.Cgroups = 2
	}
	version, err := systemd.ParseVersion(o.Version)
	if err != nil {
		tb.Fatal(err)
	}
	root, err := os.MkdirTemp("", "sd") // short: a socket's path has room for 107 bytes
	if err != nil {
		tb.Fatal(err)
	}
	m := &Manager{
		options: o, version: version, root: root, clients: map[*client]bool{}, units: map[string]*unit{},
		processes: map[int]*process{}, nextPID: 100_000, nextJob: 86, jobs: map[uint32]*job{},
	}
	for _, dir := range []string{"run/systemd/system", "run/dbus", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	var listeners []net.Listener
	for _, socket := range []string{"run/systemd/private", "run/dbus/system_bus_socket"} {
		l, err := net.Listen("unix", filepath.Join(root, socket))
		if err != nil {
			tb.Fatal(err)
		}
		listeners = append(listeners, l)
		go m.serve(l, strings.Contains(socket, "dbus"))
	}
	m.units["-.slice"] = &unit{name: "-.slice", load: "loaded", active: "active", sub: "active", group: "/",
		files: map[string]string{}, subgroups: map[string]bool{}}
	m.startParents("system.slice")
	m.units["system.slice"] = m.loaded("system.slice")
	m.activateSlice(m.units["system.slice"])
	tb.Cleanup(func() {
		for _, l := range listeners {
			l.Close()
		}
		m.Drop()
		os.RemoveAll(root)
	})
	return m
}

// Options are those that reach the model; times are short.
func (m *Manager) Options() systemd.Options {
	return systemd.Options{Root: m.root, Timeout: 5 * time.Second, JobTimeout: 5 * time.Second}
}

// Root is the directory that stands for "/".
func (m *Manager) Root() string { return m.root }

// Spawn makes a process in no unit.
func (m *Manager) Spawn() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spawn("")
}

func (m *Manager) spawn(unit string) int {
	pid := m.nextPID + 1
	if m.options.Kernel != nil {
		pid = m.options.Kernel.Spawn()
	}
	m.nextPID = max(pid, m.nextPID)
	m.processes[pid] = &process{}
	m.enter(pid, unit, "")
	return pid
}

// Alive says whether a process is there.
func (m *Manager) Alive(pid int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.processes[pid] != nil
}

// GroupOf gives the directory a process is in, "/" for one in no unit.
func (m *Manager) GroupOf(pid int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.processes[pid]
	if p == nil {
		return ""
	}
	if u := m.units[p.unit]; u != nil {
		return path.Join(u.group, p.sub)
	}
	return "/"
}

// Kill ends a process with SIGKILL, and systemd sees it.
func (m *Manager) Kill(pid int) {
	m.mu.Lock()
	m.see()
	p := m.processes[pid]
	m.finish(pid)
	var after []func()
	if p != nil {
		if u := m.units[p.unit]; u != nil {
			after = m.exited(u, pid)
		}
	}
	m.mu.Unlock()
	run(after)
}

func run(list []func()) {
	for _, f := range list {
		f()
	}
}

// unitIn gives the unit whose directory that is.
func (m *Manager) unitIn(group string) *unit {
	for _, u := range m.units {
		if u.group == group && group != "" {
			return u
		}
	}
	return nil
}

// ReadFile reads a knob file of a unit's directory, as the kernel holds it.
func (m *Manager) ReadFile(group, file string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.unitIn(group); u != nil {
		if text, ok := u.files[file]; ok {
			return text, nil
		}
		return defaultOf(file), nil
	}
	return "", fmt.Errorf("read %q: %w", group, os.ErrNotExist)
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

// WriteFile writes one behind systemd's back.
func (m *Manager) WriteFile(group, file, text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.unitIn(group); u != nil {
		if file == subtreeControl {
			text = handed(u.files[file], text)
		}
		u.files[file] = text
		return nil
	}
	return fmt.Errorf("write %q: %w", group, os.ErrNotExist)
}

// MakeGroup makes a sub-group of a unit's directory.
func (m *Manager) MakeGroup(group string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.unitIn(path.Dir(group)); u != nil {
		u.subgroups["/"+path.Base(group)] = true
		return nil
	}
	return fmt.Errorf("make %q: %w", group, os.ErrNotExist)
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

// members lists the processes of a unit, in any sub-group.
func (m *Manager) members(name string) []int {
	var pids []int
	for pid, p := range m.processes {
		if p.unit == name {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// requiredBy lists the loaded units that lie in a slice, or require a unit.
func (m *Manager) requiredBy(name string) []string {
	var names []string
	for _, other := range slices.Sorted(maps.Keys(m.units)) {
		u := m.units[other]
		if other != name && u.load == "loaded" &&
			(m.sliceOf(u) == name || slices.Contains(u.settings.list("Requires"), name)) {
			names = append(names, other)
		}
	}
	return names
}

// sliceOf is where a unit goes at its next start.
func (m *Manager) sliceOf(u *unit) string {
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
func (m *Manager) groupFor(u *unit) string {
	if unitname.TypeOf(u.name) == "slice" {
		dir, _ := unitname.SliceDir(u.name)
		return dir
	}
	dir, _ := unitname.SliceDir(m.sliceOf(u))
	return path.Join(dir, u.name)
}

// startParents makes the slices above a unit active.
func (m *Manager) startParents(slice string) {
	var chain []string
	for s := slice; s != "" && s != "-.slice"; {
		chain = append(chain, s)
		s, _ = unitname.ParentSlice(s)
	}
	for _, s := range slices.Backward(chain) {
		u := m.units[s]
		if u == nil {
			u = m.loaded(s)
			m.units[s] = u
		}
		m.activateSlice(u)
	}
}

func (m *Manager) activateSlice(u *unit) {
	if u.active == "active" {
		return
	}
	u.active, u.sub, u.group = "active", "active", m.groupFor(u)
	m.realize(u)
}

// realize writes what systemd knows of a unit to its directory. Of what it does not know it keeps off.
func (m *Manager) realize(u *unit) {
	if u.group == "" {
		return
	}
	defer m.mirror(u)
	written := map[string]bool{}
	for _, r := range systemd.Table() {
		file := r.V2
		if m.options.Cgroups == 1 {
			file = r.V1
		}
		kind := unitname.TypeOf(u.name)
		if file == "" || !r.Known(m.version, kind) || r.Name == "OOMPolicy" {
			continue
		}
		if text, ok := m.fileText(u, r, file); ok {
			u.files[file], written[file] = text, true
		} else if !written[file] {
			delete(u.files, file) // back to the default
		}
	}
}

// exited tells systemd that a process of a unit is gone.
func (m *Manager) exited(u *unit, pid int) (after []func()) {
	if pid == u.main {
		u.main, u.active, u.sub, u.result = 0, "failed", "failed", "signal"
		if u.settings.last("KillMode") != "process" {
			for _, other := range m.members(u.name) {
				m.finish(other)
			}
		}
		after = append(after, m.changedSignal(u))
	}
	return append(after, m.collect(u)...)
}

// collect unloads what nobody needs any more: an empty scope, an ended transient unit, a unit without a file.
func (m *Manager) collect(u *unit) (after []func()) {
	empty := len(m.members(u.name)) == 0
	if unitname.TypeOf(u.name) == "scope" && empty && u.active == "active" {
		u.active, u.sub = "inactive", "dead"
	}
	if u.active != "inactive" && u.active != "failed" || !empty {
		return nil
	}
	if m.options.Kernel != nil && u.group != "" {
		m.options.Kernel.Remove(u.group)
	}
	u.group, u.subgroups, u.files = "", map[string]bool{}, map[string]string{}
	if u.active == "failed" && u.settings.last("CollectMode") != "inactive-or-failed" || len(m.requiredBy(u.name)) > 0 {
		return nil
	}
	if !m.isTransient(u) {
		if u.fragment != "" && u.active == "failed" {
			return nil
		}
		delete(m.units, u.name)
	} else {
		delete(m.units, u.name)
		os.Remove(filepath.Join(m.root, transientDir, u.name))
		os.RemoveAll(filepath.Join(m.root, transientDir, u.name+".d"))
	}
	name := u.name
	after = append(after, func() {
		m.emit(managerPath, managerIface, "UnitRemoved", name, objectPath(name))
	})
	if slice := m.units[m.sliceOf(u)]; slice != nil && slice.active == "inactive" {
		after = append(after, m.collect(slice)...)
	}
	return after
}

// changedSignal announces a unit's state.
func (m *Manager) changedSignal(u *unit) func() {
	name, active, sub := u.name, u.active, u.sub
	return func() { m.emitChanged(name, active, sub) }
}
