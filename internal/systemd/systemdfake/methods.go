package systemdfake

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/godbus/dbus/v5"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

const (
	managerPath  = "/org/freedesktop/systemd1"
	managerIface = "org.freedesktop.systemd1.Manager"
)

// Call is one method call that came in.
type Call struct {
	Path, Interface, Method string
	Args                    []any
}

func objectPath(unit string) dbus.ObjectPath { return dbus.ObjectPath(unitname.ObjectPath(unit)) }

// fail makes an error reply in systemd's words.
func fail(name, format string, args ...any) *dbus.Error {
	return &dbus.Error{Name: name, Body: []any{fmt.Sprintf(format, args...)}}
}

func noSuchUnit(format, unit string) *dbus.Error {
	return fail("org.freedesktop.systemd1.NoSuchUnit", format, unit)
}

func invalid(format string, args ...any) *dbus.Error {
	return fail("org.freedesktop.DBus.Error.InvalidArgs", format, args...)
}

func readOnly(name string) *dbus.Error {
	return fail("org.freedesktop.DBus.Error.PropertyReadOnly", "Cannot set property %s, or unknown property.", name)
}

// do answers one call; after runs once the reply is sent.
func (m *Manager) do(c *client, call Call) (body []any, after func(), err *dbus.Error) {
	m.mu.Lock()
	m.calls = append(m.calls, call)
	intercept := m.intercept
	m.mu.Unlock()
	if intercept != nil {
		switch err := intercept(call); {
		case errors.Is(err, ErrDenied):
			return nil, nil, fail("org.freedesktop.DBus.Error.AccessDenied", "%v", err)
		case err != nil:
			return nil, nil, invalid("%v", err)
		}
	}
	switch call.Interface {
	case "org.freedesktop.DBus":
		return c.busMethod(call)
	case "org.freedesktop.DBus.Peer":
		return nil, nil, nil
	case "org.freedesktop.DBus.Properties":
		return m.property(call)
	case managerIface:
		return m.method(call)
	}
	return nil, nil, fail("org.freedesktop.DBus.Error.UnknownMethod", "Unknown method %s or interface %s.", call.Method,
		call.Interface)
}

// busMethod is the bus daemon's part; on the private socket there is none.
func (c *client) busMethod(call Call) ([]any, func(), *dbus.Error) {
	switch {
	case !c.bus:
		return nil, nil, fail("org.freedesktop.DBus.Error.UnknownObject", "Unknown object '%s'.", call.Path)
	case call.Method == "Hello":
		return []any{":1.1"}, nil, nil
	case call.Method == "AddMatch":
		c.mu.Lock()
		defer c.mu.Unlock()
		c.matches = append(c.matches, call.Args[0].(string))
		return nil, nil, nil
	}
	return nil, nil, fail("org.freedesktop.DBus.Error.UnknownMethod", "Unknown method %s.", call.Method)
}

func (m *Manager) property(call Call) ([]any, func(), *dbus.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.see()
	if call.Method == "Get" && call.Path == managerPath && call.Args[1] == "Version" {
		return []any{dbus.MakeVariant(m.options.Version)}, nil, nil
	}
	if call.Method == "Get" && call.Path == managerPath && call.Args[1] == "SystemState" {
		state := "running"
		if m.down {
			state = "stopping"
		}
		return []any{dbus.MakeVariant(state)}, nil, nil
	}
	name, ok := unitname.UnitOfObject(call.Path)
	if !ok || call.Method != "GetAll" {
		return nil, nil, fail("org.freedesktop.DBus.Error.UnknownMethod", "Unknown method %s.", call.Method)
	}
	if unitname.CheckName(name) != nil {
		return nil, nil, invalid("Unit name %s is neither a valid invocation ID nor unit name.", name)
	}
	u := m.units[name]
	if u == nil {
		u = m.loaded(name)
	}
	return []any{m.properties(u)}, nil, nil
}

// properties are those of a unit on all its interfaces.
func (m *Manager) properties(u *unit) map[string]dbus.Variant {
	kind := unitname.TypeOf(u.name)
	p := map[string]any{
		"Id": u.name, "LoadState": u.load, "ActiveState": u.active, "SubState": u.sub, "FragmentPath": u.fragment,
		"DropInPaths": append([]string{}, u.dropIns...), "Transient": m.isTransient(u),
		"NeedDaemonReload": u.stamp != m.stampOf(u.name) && m.units[u.name] != nil,
		"RequiredBy":       append([]string{}, m.requiredBy(u.name)...), "Description": u.settings.last("Description"),
		"ControlGroup": u.group,
	}
	type queued struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	p["Job"] = queued{Path: "/"}
	for id, j := range m.jobs {
		if j.unit == u.name {
			p["Job"] = queued{id, jobPath(id)}
		}
	}
	type loadError struct{ Name, Text string }
	switch u.load {
	case "not-found":
		p["LoadError"] = loadError{"org.freedesktop.systemd1.NoSuchUnit", "Unit " + u.name + " not found."}
	case "masked":
		p["LoadError"] = loadError{"org.freedesktop.systemd1.UnitMasked", "Unit " + u.name + " is masked."}
	case "bad-setting":
		p["LoadError"] = loadError{"org.freedesktop.systemd1.BadUnitSetting",
			"Unit " + u.name + " has a bad unit file setting."}
	default:
		p["LoadError"] = loadError{}
	}
	if kind != "target" {
		p["Slice"] = m.sliceOf(u)
		for _, r := range systemd.Table() {
			if r.Known(m.version, kind) {
				p[r.Name] = m.value(u, r)
			}
		}
	}
	if kind == "service" || kind == "scope" {
		p["Result"], p["Delegate"] = u.result, isDelegated(u.settings.last("Delegate"))
		p["KillMode"] = or(u.settings.last("KillMode"), "control-group")
	}
	if kind == "service" {
		p["MainPID"], p["Type"] = uint32(u.main), or(u.settings.last("Type"), "simple")
	}
	variants := make(map[string]dbus.Variant, len(p))
	for name, value := range p {
		variants[name] = dbus.MakeVariant(value)
	}
	return variants
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

func (m *Manager) method(call Call) ([]any, func(), *dbus.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.see()
	text := func(i int) string { s, _ := call.Args[i].(string); return s }
	switch call.Method {
	case "Subscribe":
		m.anySubscribed.Store(true)
		return nil, nil, nil
	case "ListUnits":
		return []any{m.listUnits()}, nil, nil
	case "GetUnitByPID":
		return m.unitByPID(call.Args[0].(uint32))
	case "Reload":
		return nil, m.reload(), nil
	case "GetJob":
		id := call.Args[0].(uint32)
		if m.jobs[id] == nil {
			return nil, nil, fail("org.freedesktop.systemd1.NoSuchJob", "Job %d does not exist.", id)
		}
		return []any{jobPath(id)}, nil, nil
	case "CancelJob":
		return m.cancelJob(call.Args[0].(uint32))
	case "AttachProcessesToUnit":
		if !m.version.AtLeast(238) {
			break
		}
		return nil, nil, m.attach(text(0), text(1), call.Args[2].([]uint32))
	case "SetUnitProperties":
		return nil, nil, m.setUnit(text(0), call.Args[1].(bool), pairs(call.Args[2]))
	case "StartUnit", "StopUnit", "StartTransientUnit", "ResetFailedUnit":
		if unitname.CheckName(text(0)) != nil {
			return nil, nil, invalid("Unit name %s is not valid.", text(0))
		}
		switch call.Method {
		case "StartUnit":
			return m.startUnit(text(0))
		case "StopUnit":
			return m.stopUnit(text(0))
		case "ResetFailedUnit":
			return m.resetFailed(text(0))
		}
		return m.startTransient(text(0), pairs(call.Args[2]))
	}
	return nil, nil, fail("org.freedesktop.DBus.Error.UnknownMethod", "Unknown method %s or interface %s.", call.Method,
		call.Interface)
}

// pair is one property of a call.
type pair struct {
	name  string
	value any
}

func pairs(arg any) []pair {
	var list []pair
	for _, one := range arg.([][]any) {
		list = append(list, pair{one[0].(string), one[1].(dbus.Variant).Value()})
	}
	return list
}

// listed is a line of ListUnits.
type listed struct {
	Name, Description, Load, Active, Sub, Followed string
	Path                                           dbus.ObjectPath
	Job                                            uint32
	JobType                                        string
	JobPath                                        dbus.ObjectPath
}

func (m *Manager) listUnits() []listed {
	list := []listed{}
	for _, name := range slices.Sorted(maps.Keys(m.units)) {
		u := m.units[name]
		line := listed{Name: name, Load: u.load, Active: u.active, Sub: u.sub, Path: objectPath(name), JobPath: "/"}
		for _, j := range m.jobs {
			if j.unit == name {
				line.Job, line.JobType, line.JobPath = j.id, j.kind, jobPath(j.id)
			}
		}
		list = append(list, line)
	}
	return list
}

func (m *Manager) unitByPID(pid uint32) ([]any, func(), *dbus.Error) {
	if p := m.processes[int(pid)]; p != nil && m.units[p.unit] != nil {
		return []any{objectPath(p.unit)}, nil, nil
	}
	return nil, nil, fail("org.freedesktop.systemd1.NoUnitForPID", "PID %d does not belong to any loaded unit.", pid)
}

// reload reads all files again and writes what it knows anew; 257, seen on a real one, leaves that to the next change
// of a property. Units that nothing needs are unloaded.
func (m *Manager) reload() func() {
	for _, name := range slices.Sorted(maps.Keys(m.units)) {
		u := m.units[name]
		m.read(u)
		if !m.version.AtLeast(257) {
			m.realize(u)
		}
	}
	return func() {
		m.emit(managerPath, managerIface, "Reloading", true)
		m.emit(managerPath, managerIface, "Reloading", false)
	}
}

func (m *Manager) attach(name, sub string, pids []uint32) *dbus.Error {
	u := m.units[name]
	if u == nil {
		return noSuchUnit("Unit %s not loaded.", name)
	}
	if !isDelegated(u.settings.last("Delegate")) {
		return invalid("Process migration not available on non-delegated units.")
	}
	if u.active != "active" {
		return invalid("Unit is not active, refusing.")
	}
	for _, pid := range pids {
		if m.processes[int(pid)] == nil {
			return fail("org.freedesktop.DBus.Error.UnixProcessIdUnknown", "Process with ID %d does not exist.", pid)
		}
	}
	if sub != "" && !u.subgroups[sub] {
		return fail("org.freedesktop.DBus.Error.FileNotFound",
			"Failed to attach processes to control group: No such file or directory")
	}
	for _, pid := range pids {
		m.place(int(pid), name, sub)
	}
	return nil
}

// place moves a process; the unit that it leaves may end with that.
func (m *Manager) place(pid int, unit, sub string) {
	p := m.processes[pid]
	from := m.units[p.unit]
	m.enter(pid, unit, sub)
	if from != nil && from.name != unit {
		m.collect(from)
	}
}

func jobPath(id uint32) dbus.ObjectPath {
	return dbus.ObjectPath(fmt.Sprintf("%s/job/%d", managerPath, id))
}

// newJob queues a job and gives the reply and what ends it.
func (m *Manager) newJob(unit, kind string) (*job, []any) {
	m.nextJob++
	j := &job{id: m.nextJob, unit: unit, kind: kind}
	m.jobs[j.id] = j
	return j, []any{jobPath(j.id)}
}

// end takes a job away and announces it, once.
func (m *Manager) end(j *job, result string) {
	m.mu.Lock()
	over := j.done
	j.done = true
	delete(m.jobs, j.id)
	m.mu.Unlock()
	if !over {
		m.emit(managerPath, managerIface, "JobRemoved", j.id, jobPath(j.id), j.unit, result)
	}
}

func (m *Manager) cancelJob(id uint32) ([]any, func(), *dbus.Error) {
	j := m.jobs[id]
	if j == nil {
		return nil, nil, fail("org.freedesktop.systemd1.NoSuchJob", "Job %d does not exist.", id)
	}
	if u := m.units[j.unit]; u != nil && m.stalled[j.unit] {
		m.collect(u) // it never began
	}
	delete(m.jobs, id)                               // as systemd, which answers when the job is gone
	return nil, func() { m.end(j, "canceled") }, nil // the unit stays "activating"
}

func (m *Manager) emitChanged(name, active, sub string) {
	m.emit(string(objectPath(name)), "org.freedesktop.DBus.Properties", "PropertiesChanged",
		"org.freedesktop.systemd1.Unit",
		map[string]dbus.Variant{"ActiveState": dbus.MakeVariant(active), "SubState": dbus.MakeVariant(sub)}, []string{})
}

// seconds reads a time of a unit file; 0 when it is not there.
func seconds(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		d, _ = time.ParseDuration(text + "s")
	}
	return d
}
