package systemdfake

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/godbus/dbus/v5"

	"bulkhead/internal/systemd/unitname"
)

// pid1 is what systemd holds and does. Who calls its methods holds mu, but for those of bus, which has a lock of its
// own, and for do, property, method and end, which take it.
type pid1 struct {
	bus

	mu sync.Mutex
	host
	nextJob uint32
	jobs    map[uint32]*job
	stalled map[string]bool
	down    bool
}

// job is one that has not ended.
type job struct {
	id   uint32
	unit string
	kind string
	done bool
}

func jobPath(id uint32) dbus.ObjectPath {
	return dbus.ObjectPath(fmt.Sprintf("%s/job/%d", managerPath, id))
}

// newJob queues a job and gives the reply and what ends it.
func (m *pid1) newJob(unit, kind string) (*job, []any) {
	m.nextJob++
	j := &job{id: m.nextJob, unit: unit, kind: kind}
	m.jobs[j.id] = j
	return j, []any{jobPath(j.id)}
}

// end takes a job away and announces it, once.
func (m *pid1) end(j *job, result string) {
	m.mu.Lock()
	over := j.done
	j.done = true
	delete(m.jobs, j.id)
	m.mu.Unlock()
	if !over {
		m.emit(managerPath, managerIface, "JobRemoved", j.id, jobPath(j.id), j.unit, result)
	}
}

// place moves a process; the unit that it leaves may end with that.
func (m *pid1) place(pid int, unit, sub string) {
	p := m.processes[pid]
	from := m.units[p.unit]
	m.enter(pid, unit, sub)
	if from != nil && from.name != unit {
		m.collect(from)
	}
}

// see takes in what happened in the kernel meanwhile: who moved, who ended, which units are empty.
func (m *pid1) see() {
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

// exited tells systemd that a process of a unit is gone.
func (m *pid1) exited(u *unit, pid int) (after []func()) {
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
func (m *pid1) collect(u *unit) (after []func()) {
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
	transient := isTransient(u)
	if !transient && u.fragment != "" && u.active == "failed" {
		return nil
	}
	delete(m.units, u.name)
	if transient {
		os.Remove(filepath.Join(m.root, transientDir, u.name))
		os.RemoveAll(filepath.Join(m.root, transientDir, u.name+".d"))
	}
	name := u.name
	after = append(after, func() {
		m.emit(managerPath, managerIface, "UnitRemoved", name, objectPath(name))
	})
	if slice := m.units[sliceOf(u)]; slice != nil && slice.active == "inactive" {
		after = append(after, m.collect(slice)...)
	}
	return after
}

// changedSignal announces a unit's state.
func (m *pid1) changedSignal(u *unit) func() {
	name, active, sub := u.name, u.active, u.sub
	return func() { m.emitChanged(name, active, sub) }
}

func run(list []func()) {
	for _, f := range list {
		f()
	}
}
