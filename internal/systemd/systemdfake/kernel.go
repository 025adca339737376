package systemdfake

import (
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

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

// Adopt makes a process of the kernel's known to systemd, in no unit.
func (m *Manager) Adopt(pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.processes[pid] = &process{}
	m.see()
}

// mirror writes what systemd holds of a unit to the kernel.
func (m *Manager) mirror(u *unit) {
	if m.options.Kernel == nil || u.group == "" || u.group == "/" {
		return
	}
	files := map[string]string{}
	for _, r := range systemd.Table() {
		file := r.V2
		if m.options.Cgroups == 1 {
			file = r.V1
		}
		kind := unitname.TypeOf(u.name)
		// A list of devices has a line for each, which the model of the kernel takes one at a time.
		if file == "" || !r.Known(m.version, kind) || r.Name == "OOMPolicy" || r.Form == systemd.FormFlag ||
			r.Form == systemd.FormDevices {
			continue
		}
		if _, done := files[file]; !done {
			files[file] = defaultOf(file)
			if text, set := u.files[file]; set {
				files[file] = text
			}
		}
	}
	m.options.Kernel.Realize(u.group, files)
}

// enter puts a process into a unit, or a sub-group of it.
func (m *Manager) enter(pid int, unit, sub string) {
	p := m.processes[pid]
	p.unit, p.sub = unit, sub
	if u := m.units[unit]; m.options.Kernel != nil && u != nil {
		if sub != "" {
			m.options.Kernel.Realize(path.Join(u.group, sub), nil)
		}
		m.options.Kernel.Move(pid, path.Join(u.group, sub))
	}
}

// finish ends a process.
func (m *Manager) finish(pid int) {
	if m.processes[pid] != nil && m.options.Kernel != nil {
		m.options.Kernel.End(pid)
	}
	delete(m.processes, pid)
}

// see takes in what happened in the kernel meanwhile: who moved, who ended, which units are empty.
func (m *Manager) see() {
	if m.options.Kernel == nil {
		return
	}
	var ended []func()
	for _, pid := range slices.Sorted(maps.Keys(m.processes)) {
		p := m.processes[pid]
		group := m.options.Kernel.GroupOf(pid)
		if group == "" {
			delete(m.processes, pid)
			if u := m.units[p.unit]; u != nil {
				ended = append(ended, m.exited(u, pid)...)
			}
			continue
		}
		from := m.units[p.unit]
		p.unit, p.sub = m.unitAt(group)
		if from != nil && from.name != p.unit {
			ended = append(ended, m.collect(from)...)
		}
	}
	if len(ended) > 0 {
		go run(ended) // they take the lock
	}
}

// unitAt finds the innermost unit that a directory lies in.
func (m *Manager) unitAt(group string) (unit, sub string) {
	for _, name := range slices.Sorted(maps.Keys(m.units)) {
		u := m.units[name]
		rest, in := strings.CutPrefix(group, u.group)
		if u.group == "" || u.group == "/" || !in || rest != "" && rest[0] != '/' || unitname.TypeOf(name) == "slice" {
			continue
		}
		return name, rest
	}
	return "", ""
}
