package systemdfake

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// do answers one call; after runs once the reply is sent.
func (m *pid1) do(c *client, call Call) (body []any, after func(), err *dbus.Error) {
	switch err := m.intercepted(call); {
	case errors.Is(err, ErrDenied):
		return nil, nil, fail("org.freedesktop.DBus.Error.AccessDenied", "%v", err)
	case err != nil:
		return nil, nil, invalid("%v", err)
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

func (m *pid1) property(call Call) ([]any, func(), *dbus.Error) {
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
func (m *pid1) properties(u *unit) map[string]dbus.Variant {
	kind := unitname.TypeOf(u.name)
	p := map[string]any{
		"Id": u.name, "LoadState": u.load, "ActiveState": u.active, "SubState": u.sub, "FragmentPath": u.fragment,
		"DropInPaths": append([]string{}, u.dropIns...), "Transient": isTransient(u),
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
		p["Slice"] = sliceOf(u)
		for _, r := range systemd.Table() {
			if r.Known(m.version, kind) {
				p[r.Name] = value(u.settings, r)
			}
		}
	}
	if kind == "service" || kind == "scope" {
		p["Result"], p["Delegate"] = u.result, isDelegated(u.settings.last("Delegate"))
		p["KillMode"] = cmp.Or(u.settings.last("KillMode"), "control-group")
	}
	if kind == "service" {
		p["MainPID"], p["Type"] = uint32(u.main), cmp.Or(u.settings.last("Type"), "simple")
	}
	variants := make(map[string]dbus.Variant, len(p))
	for name, value := range p {
		variants[name] = dbus.MakeVariant(value)
	}
	return variants
}

func (m *pid1) method(call Call) ([]any, func(), *dbus.Error) {
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

// listed is a line of ListUnits.
type listed struct {
	Name, Description, Load, Active, Sub, Followed string
	Path                                           dbus.ObjectPath
	Job                                            uint32
	JobType                                        string
	JobPath                                        dbus.ObjectPath
}

func (m *pid1) listUnits() []listed {
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

// reload reads all files again and writes what it knows anew; 257, seen on a real one, leaves that to the next change
// of a property. Units that nothing needs are unloaded.
func (m *pid1) reload() func() {
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

func (m *pid1) attach(name, sub string, pids []uint32) *dbus.Error {
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

func (m *pid1) setUnit(name string, runtime bool, list []pair) *dbus.Error {
	if unitname.CheckName(name) != nil {
		return invalid("Unit name %s is not valid.", name)
	}
	u := m.units[name]
	if u == nil {
		u = m.loaded(name)
	}
	if err := loadError(u); err != nil {
		return err
	}
	dir := controlDir
	switch {
	case isTransient(u):
		dir = transientDir
	case runtime:
		dir = runtimeDir
	}
	files, err := m.encode(u, list, false)
	if err != nil {
		return err
	}
	for key, lines := range files {
		file := filepath.Join(m.root, dir, name+".d", "50-"+key+".conf")
		must(os.MkdirAll(filepath.Dir(file), 0o755))
		must(os.WriteFile(file, []byte("# Do not edit.\n["+section(name)+"]\n"+strings.Join(lines, "\n")+"\n"), 0o644))
	}
	// What was set counts now, whatever a file that sorts later says: that comes back with the next reload.
	fragment, stamp := u.settings, u.stamp
	for key, lines := range files {
		fragment = slices.DeleteFunc(fragment, func(s setting) bool { return s.key == key })
		fragment = append(fragment, parseFile(strings.Join(lines, "\n"))...)
	}
	m.read(u)
	u.settings = fragment
	if stamp == "" {
		u.stamp = ""
	}
	m.realize(u)
	return nil
}

func loadError(u *unit) *dbus.Error {
	switch u.load {
	case "not-found":
		return noSuchUnit("Unit %s not found.", u.name)
	case "masked":
		return fail("org.freedesktop.systemd1.UnitMasked", "Unit %s is masked.", u.name)
	case "bad-setting":
		return fail("org.freedesktop.systemd1.BadUnitSetting", "Unit %s has a bad unit file setting.", u.name)
	}
	return nil
}
