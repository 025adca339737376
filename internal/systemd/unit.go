package systemd

import (
	"context"
	"errors"
	"slices"
	"strings"

	"bulkhead/internal/systemd/unitname"

	"github.com/godbus/dbus/v5"
)

// Unit is what systemd says of a unit. One that is not there has the LoadState "not-found".
type Unit struct {
	Name        string `json:"name"` // the primary one; what was asked for may be an alias
	LoadState   string `json:"load_state"`
	LoadError   string `json:"load_error,omitempty"`
	ActiveState string `json:"active_state"`
	SubState    string `json:"sub_state"`
	Result      string `json:"result,omitempty"` // of a service or scope: why it ended

	Slice        string `json:"slice,omitempty"`         // where it goes at its next start
	ControlGroup string `json:"control_group,omitempty"` // where it is, "" when it has none now
	MainPID      int    `json:"main_pid,omitempty"`      // of a service
	Type         string `json:"type,omitempty"`          // of a service: "forking"
	KillMode     string `json:"kill_mode,omitempty"`
	Delegate     bool   `json:"delegate,omitempty"`
	Queued       bool   `json:"queued,omitempty"` // a job of it waits or runs: a start, stop or restart

	FragmentPath     string   `json:"fragment_path,omitempty"`
	DropInPaths      []string `json:"drop_in_paths,omitempty"`
	Transient        bool     `json:"transient,omitempty"`
	NeedDaemonReload bool     `json:"need_daemon_reload,omitempty"` // its files are newer than what is loaded

	// Accounting lists what is counted: "cpu", "io", "memory", "tasks".
	Accounting []string `json:"accounting,omitempty"`
	// RequiredBy are the loaded units that go down with this one; of a slice those that lie in it.
	RequiredBy []string `json:"-"`
	// Properties are all that systemd told, as Property.Value types them.
	Properties map[string]any `json:"-"`
}

// Load states that callers branch on.
const (
	LoadLoaded     = "loaded"
	LoadMasked     = "masked"
	LoadNotFound   = "not-found"
	LoadBadSetting = "bad-setting"
)

// Active says whether the unit runs, or is on its way up or down.
func (u *Unit) Active() bool { return u.ActiveState != "inactive" && u.ActiveState != "failed" }

// Usable gives nil for a unit that can be governed, else what stands against it: it is masked, not there, or its
// file is refused.
func (u *Unit) Usable() error {
	kind := map[string]error{LoadMasked: ErrMasked, LoadNotFound: ErrNoUnit, LoadBadSetting: ErrBadSetting,
		"error": ErrBadSetting}[u.LoadState]
	if kind == nil {
		return nil
	}
	e := &Error{Op: "use", Unit: u.Name, Kind: kind, Hint: hints[kind]}
	if u.LoadError != "" {
		e.Cause = errors.New(u.LoadError)
	}
	return e
}

// unitOf fills a Unit from its properties.
func unitOf(name string, p map[string]any) *Unit {
	u := &Unit{Name: name, Properties: p}
	for key, field := range map[string]*string{
		"Id": &u.Name, "LoadState": &u.LoadState, "ActiveState": &u.ActiveState, "SubState": &u.SubState,
		"Result": &u.Result,
		"Slice":  &u.Slice, "ControlGroup": &u.ControlGroup, "Type": &u.Type, "KillMode": &u.KillMode,
		"FragmentPath": &u.FragmentPath,
	} {
		if text, ok := p[key].(string); ok {
			*field = text
		}
	}
	for key, field := range map[string]*bool{"Delegate": &u.Delegate, "Transient": &u.Transient,
		"NeedDaemonReload": &u.NeedDaemonReload} {
		*field, _ = p[key].(bool)
	}
	u.DropInPaths, _ = p["DropInPaths"].([]string)
	u.RequiredBy, _ = p["RequiredBy"].([]string)
	if pid, ok := p["MainPID"].(uint32); ok {
		u.MainPID = int(pid)
	}
	if pair, ok := p["Job"].([]any); ok && len(pair) == 2 { // its number, 0 for none, and object
		u.Queued = pair[0] != uint32(0)
	}
	if pair, ok := p["LoadError"].([]any); ok && len(pair) == 2 {
		u.LoadError, _ = pair[1].(string)
	}
	for _, name := range AccountingSettings() {
		if on, _ := p[name].(bool); on {
			u.Accounting = append(u.Accounting, strings.ToLower(strings.TrimSuffix(name, "Accounting")))
		}
	}
	return u
}

// plain turns what the D-Bus library gives into the types of Property.Value where the table knows the form.
func plain(value any) any {
	lines, ok := value.([][]any)
	if !ok {
		return value
	}
	devices := make([]DeviceValue, 0, len(lines))
	for _, line := range lines {
		if len(line) != 2 {
			return value
		}
		name, ok1 := line[0].(string)
		n, ok2 := line[1].(uint64)
		if !ok1 || !ok2 {
			return value
		}
		devices = append(devices, DeviceValue{name, n})
	}
	return devices
}

// Unit looks a unit up by name and loads it if need be. A unit that is not there is not an error here: its LoadState
// says so.
func (m *Manager) Unit(ctx context.Context, name string) (*Unit, error) {
	var p map[string]any
	ctx, answered := asking(ctx)
	err := answered(m.checked(ctx, "look up", name, func(ctx context.Context, l *link) error {
		var all map[string]dbus.Variant
		// The interface "" is every one of the object's, those of its type included.
		err := l.calls.Object(busName, dbus.ObjectPath(unitname.ObjectPath(name))).
			CallWithContext(ctx, "org.freedesktop.DBus.Properties.GetAll", 0, "").Store(&all)
		p = make(map[string]any, len(all))
		for key, v := range all {
			p[key] = plain(v.Value())
		}
		return err
	}))
	if err != nil {
		return nil, err
	}
	return unitOf(name, p), nil
}

// Status is one line of the list of loaded units.
type Status struct {
	Name        string `json:"name"`
	LoadState   string `json:"load_state"`
	ActiveState string `json:"active_state"`
	SubState    string `json:"sub_state"`
	Job         string `json:"job,omitempty"` // type of a job that waits: "start"
}

// Units lists the loaded units, sorted by name.
func (m *Manager) Units(ctx context.Context) ([]Status, error) {
	var list []Status
	err := m.call(ctx, "list units", "", func(ctx context.Context, l *link) error {
		units, err := l.ListUnitsContext(ctx)
		for _, u := range units {
			list = append(list, Status{u.Name, u.LoadState, u.ActiveState, u.SubState, u.JobType})
		}
		return err
	})
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

// GoingDown says whether the machine is being shut down or started anew (systemctl(1), is-system-running).
func (m *Manager) GoingDown(ctx context.Context) (bool, error) {
	var state string
	err := m.call(ctx, "ask systemd for its state", "", func(ctx context.Context, l *link) error {
		return managerProperty(ctx, l.calls, "SystemState", &state)
	})
	return state == "stopping", err
}

// Properties reads properties of a unit by their D-Bus names, typed as Property.Value is. Those that this systemd does
// not have on that unit are missing from the answer.
func (m *Manager) Properties(ctx context.Context, unit string, names ...string) (map[string]any, error) {
	u, err := m.Unit(ctx, unit)
	if err != nil {
		return nil, err
	}
	got := make(map[string]any, len(names))
	for _, name := range names {
		if value, ok := u.Properties[name]; ok {
			got[name] = value
		}
	}
	return got, nil
}
