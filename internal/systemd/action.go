package systemd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/systemd/unitname"

	api "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Result is how a job ended (org.freedesktop.systemd1(5), JobRemoved).
type Result string

// Results.
const (
	ResultDone       Result = "done"
	ResultFailed     Result = "failed"
	ResultCanceled   Result = "canceled"
	ResultTimeout    Result = "timeout"
	ResultDependency Result = "dependency"
	ResultSkipped    Result = "skipped"
)

var resultHints = map[Result]string{
	ResultFailed:     "`systemctl status` and `journalctl -u` of the unit say why",
	ResultCanceled:   "another job took its place: is the machine going down, or did somebody stop the unit?",
	ResultTimeout:    "the job was taken back; `systemctl list-jobs` shows what it waits for",
	ResultDependency: "a unit that it needs did not start: `systemctl list-dependencies` names them",
	ResultSkipped:    "the job did not apply to the unit's state",
}

func errPID(pid int) error { return fmt.Errorf("%d is no process id", pid) }

// job starts a job and waits for its end. One that takes longer than allowed is cancelled, so that it does not take
// effect behind the caller's back.
func (m *Manager) job(ctx context.Context, op, unit string,
	start func(context.Context, *link, chan<- string) (int, error)) error {
	ended := make(chan string, 1)
	var id int
	var on *link
	err := m.checked(ctx, op, unit, func(ctx context.Context, l *link) (err error) {
		on = l
		id, err = start(ctx, l, ended)
		return err
	})
	if err != nil {
		return err
	}
	timer := time.NewTimer(m.options.JobTimeout)
	defer timer.Stop()
	ask := jobTicker(m.options.JobTimeout)
	defer ask.Stop()
	var result Result
	for result == "" {
		select {
		case text := <-ended:
			result = Result(text)
		case <-on.signals.Context().Done():
			return failed(op, unit, dbus.ErrClosed)
		case <-on.calls.Context().Done():
			return failed(op, unit, dbus.ErrClosed)
		case <-ask.C:
			if on.hasJob(ctx, m.options.Timeout, id) {
				Progress(ctx)
			}
		case <-timer.C:
			result = ResultTimeout
		case <-ctx.Done():
			result = ResultTimeout
		}
	}
	if result == ResultDone {
		return nil
	}
	e := &Error{Op: op, Unit: unit, Kind: ErrJob, Result: result, Hint: resultHints[result]}
	if result == ResultTimeout {
		on.cancelJob(ctx, m.options.Timeout, id)
		e.Cause = ctx.Err()
	}
	return e
}

// jobLook is how often a job that is waited for is looked at.
const jobLook = 5 * time.Second

// jobTicker ticks while something is waited for.
func jobTicker(timeout time.Duration) *time.Ticker {
	return time.NewTicker(max(min(timeout/10, jobLook), time.Millisecond))
}

// hasJob says whether systemd answers, and is still about a job.
func (l *link) hasJob(ctx context.Context, timeout time.Duration, id int) bool {
	ctx, cancel := context.WithTimeout(ctx, min(timeout, jobLook))
	defer cancel()
	return l.calls.Object(busName, managerPath).CallWithContext(ctx, managerIface+".GetJob", 0, uint32(id)).Err == nil
}

// progressKey is the context key of who wants to hear of progress.
type progressKey struct{}

// WithProgress has f called while what is done with the context gets on: for a watchdog, which takes long silence for
// the end. A job that systemd is about, and says so, is progress, and so is a daemon-reload, in which it answers
// nobody; waiting for another answer of systemd's is none.
func WithProgress(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, progressKey{}, f)
}

// Progress says that something was done.
func Progress(ctx context.Context) {
	if f, ok := ctx.Value(progressKey{}).(func()); ok {
		f()
	}
}

func (l *link) cancelJob(ctx context.Context, timeout time.Duration, id int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	// A job that has ended meanwhile is no such job.
	_ = l.calls.Object(busName, managerPath).CallWithContext(ctx, managerIface+".CancelJob", 0, uint32(id)).Err
}

// Start starts a unit that has a file, or a transient one that is still loaded: a keeper that was killed.
func (m *Manager) Start(ctx context.Context, unit string) error {
	return m.job(ctx, "start", unit, func(ctx context.Context, l *link, ended chan<- string) (int, error) {
		return l.StartUnitContext(ctx, unit, "replace", ended)
	})
}

// Stop stops a unit. A slice in which units still run is refused with ErrBusy: systemd would stop, and so kill, them
// all (each requires its slice; measured on 252).
func (m *Manager) Stop(ctx context.Context, unit string) error {
	if unitname.TypeOf(unit) == "slice" {
		busy, err := runningIn(ctx, m, unit)
		if err != nil {
			return err
		}
		if len(busy) > 0 {
			return &Error{Op: "stop", Unit: unit, Kind: ErrBusy, Cause: fmt.Errorf("%s", strings.Join(busy, ", ")),
				Hint: "stopping a slice stops what runs in it; lift its limits instead"}
		}
	}
	return m.job(ctx, "stop", unit, func(ctx context.Context, l *link, ended chan<- string) (int, error) {
		return l.StopUnitContext(ctx, unit, "replace", ended)
	})
}

// runningIn lists the units that lie in a slice and are active, or about to be: stopping the slice would take their
// start out of the queue.
func runningIn(ctx context.Context, m *Manager, slice string) ([]string, error) {
	u, err := m.Unit(ctx, slice)
	if err != nil {
		return nil, err
	}
	all, err := m.Units(ctx)
	if err != nil {
		return nil, err
	}
	var busy []string
	for _, s := range all {
		if slices.Contains(u.RequiredBy, s.Name) &&
			(s.ActiveState != "inactive" && s.ActiveState != "failed" || s.Job != "") {
			busy = append(busy, s.Name)
		}
	}
	return busy, nil
}

// ResetFailed forgets that a unit failed. A failed transient unit with nothing left in it is gone with that.
func (m *Manager) ResetFailed(ctx context.Context, unit string) error {
	return m.checked(ctx, "reset", unit, func(ctx context.Context,
		l *link) error {
		return l.ResetFailedUnitContext(ctx, unit)
	})
}

// Reload has systemd read its unit files again. It writes every limit that it knows of a unit anew, so that what
// others wrote into those files is gone.
func (m *Manager) Reload(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() {
		ended <- m.callFor(ctx, m.options.JobTimeout, "reload systemd", "",
			func(ctx context.Context, l *link) error { return l.ReloadContext(ctx) })
	}()
	tick := jobTicker(m.options.JobTimeout)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-tick.C:
			Progress(ctx)
		}
	}
}

// Lifetime is how long properties set on a unit with a file stay. A transient unit keeps them as long as itself.
type Lifetime bool

// Lifetimes. Runtime ones live in /run and go with the boot. Where a persistent one of the same name exists, or a
// drop-in that sorts after "50-NAME.conf", a daemon-reload brings that one back (systemd#16592; measured on 252).
const (
	Persistent Lifetime = false
	Runtime    Lifetime = true
)

// SetProperties sets properties of a unit, all or none of them. A list replaces the one before.
func (m *Manager) SetProperties(ctx context.Context, unit string, lifetime Lifetime, properties ...Property) error {
	if len(properties) == 0 {
		return nil
	}
	return m.checked(ctx, "set properties of", unit, func(ctx context.Context, l *link) error {
		return l.SetUnitPropertiesContext(ctx, unit, bool(lifetime), wire(properties)...)
	})
}

// wire gives properties the types of the library. systemd adds to a list that is set, so a list is reset first.
func wire(properties []Property) []api.Property {
	var list []api.Property
	add := func(name string, value any) {
		list = append(list, api.Property{Name: name, Value: dbus.MakeVariant(value)})
	}
	for _, p := range properties {
		switch v := p.Value.(type) {
		case []DeviceValue:
			add(p.Name, []DeviceValue{})
			if len(v) > 0 {
				add(p.Name, v)
			}
		case []byte:
			add(p.Name, []byte{})
			if len(v) > 0 {
				add(p.Name, v)
			}
		default:
			add(p.Name, v)
		}
	}
	return list
}

// Attach moves processes into a sub-group ("/sub", which must be there already) of a delegated unit, as PID 1. The
// sub-group "" is the unit's own directory, which takes nothing once controllers are handed down below it (EBUSY).
func (m *Manager) Attach(ctx context.Context, unit, sub string, pids ...int) error {
	if !m.version.AtLeast(attachSince) {
		return &Error{Op: "attach processes to", Unit: unit, Kind: ErrOld,
			Cause: fmt.Errorf("came with %d, this is %s", attachSince, m.version),
			Hint:  "write cgroup.procs of its directory"}
	}
	list := make([]uint32, 0, len(pids))
	for _, pid := range pids {
		if pid < 1 || pid > 1<<22 { // 0 would be the caller
			return &Error{Op: "attach processes to", Unit: unit, Kind: ErrInvalid, Cause: errPID(pid)}
		}
		list = append(list, uint32(pid))
	}
	return m.checked(ctx, "attach processes to", unit, func(ctx context.Context, l *link) error {
		return l.AttachProcessesToUnit(ctx, unit, sub, list)
	})
}

// Releases that brought what transient units use (NEWS of each).
const (
	attachSince      = 238
	collectSince     = 236
	execTypeSince    = 240
	oomPolicySince   = 243
	subgroupSince    = 254 // DelegateSubgroup=, systemd.resource-control(5)
	oomOfScopeSince  = 253 // OOMPolicy= of a scope, systemd.scope(5)
	startLimitByName = 230 // StartLimitIntervalUSec; StartLimitInterval before
)

// KeeperSubgroup is where a keeper's own process lives from 254 on, so that the unit's directory can hand controllers
// down. Before, whoever does that moves the process there.
const KeeperSubgroup = "keeper"

// Transient describes a unit without a file, which is gone when it ends.
type Transient struct {
	Name        string
	Description string
	Slice       string   // where it goes; "" is systemd's default. A slice's follows from its name
	Exec        []string // of a service: an absolute path and arguments
	PIDs        []int    // of a scope: running processes, at least one
	Delegate    bool     // ours to make sub-groups in
	// Controllers are those of cgroup2 that a delegated unit gets, since 236; none is all that systemd has. Each comes
	// to all siblings of the unit and of the slices above it, too: cpuset takes them the CPU affinity they chose,
	// before kernel 6.2.
	Controllers []string
	Dir         string   // of a service
	Env         []string // of a service: "NAME=value"
	User, Group string   // of a service
	Properties  []Property
}

// StartTransient makes a slice, a scope around processes that run already, or a service, and starts it. A scope is gone
// when the last of its processes ends. One that exists already is ErrExists: set its properties instead.
func (m *Manager) StartTransient(ctx context.Context, t Transient) error {
	fits := false
	switch unitname.TypeOf(t.Name) {
	case "slice": // its place follows from its name
		fits = t.Slice == "" && len(t.Exec)+len(t.PIDs) == 0
	case "scope":
		fits = len(t.Exec) == 0 && len(t.PIDs) > 0
	case "service":
		fits = len(t.Exec) > 0 && strings.HasPrefix(t.Exec[0], "/") && len(t.PIDs) == 0
	}
	if !fits {
		return &Error{Op: "start", Unit: t.Name, Kind: ErrInvalid, Cause: errors.New(
			"a transient unit is a slice, a scope around processes, or a service that runs an absolute path")}
	}
	return m.startTransient(ctx, t, nil)
}

// StartRun makes the scope of a command around the process that is about to become it. The group's limits hold it and
// not those that systemd gives any scope (DefaultTasksMax=), the kernel's OOM killer ends whom it chose and nobody
// beside (DefaultOOMPolicy=), and nothing of the unit stays after the command, however that ended.
func (m *Manager) StartRun(ctx context.Context, t Transient) error {
	if unitname.TypeOf(t.Name) != "scope" || len(t.Exec) > 0 || len(t.PIDs) != 1 || t.Slice == "" {
		return &Error{Op: "start", Unit: t.Name, Kind: ErrInvalid,
			Cause: fmt.Errorf("the scope of a command has a slice and one process")}
	}
	var more []Property
	if m.version.AtLeast(collectSince) {
		more = append(more, Property{"CollectMode", "inactive-or-failed"})
	}
	if m.version.AtLeast(oomOfScopeSince) {
		more = append(more, Property{"OOMPolicy", "continue"})
	}
	if row, ok := RowOf("TasksMax"); ok && row.Known(m.version, "scope") {
		more = append(more, Property{"TasksMax", Infinity})
	}
	return m.startTransient(ctx, t, more)
}

// StartKeeper starts the service whose delegated directory holds a group's loose processes. systemd never ends
// those: with its default KillMode= a keeper that is killed takes every process of the unit with it (measured on 252).
// It is not started again by systemd, so that its end is seen (ActiveState "failed"); Start does
// that, as often as needed, and the processes stay where they are.
func (m *Manager) StartKeeper(ctx context.Context, t Transient) error {
	if unitname.TypeOf(t.Name) != "service" || len(t.Exec) == 0 || t.Slice == "" {
		return &Error{Op: "start", Unit: t.Name, Kind: ErrInvalid,
			Cause: fmt.Errorf("a keeper is a service with a slice and something to run")}
	}
	t.Delegate = true
	more := []Property{{"Restart", "no"}, {"KillMode", "process"}}
	if m.version.AtLeast(startLimitByName) {
		more = append(more, Property{"StartLimitIntervalUSec", uint64(0)})
	}
	if m.version.AtLeast(execTypeSince) {
		more = append(more, Property{"Type", "exec"}) // started means that the program runs
	}
	if m.version.AtLeast(oomPolicySince) {
		more = append(more, Property{"OOMPolicy", "continue"})
	}
	if m.version.AtLeast(subgroupSince) {
		more = append(more, Property{"DelegateSubgroup", KeeperSubgroup})
	}
	return m.startTransient(ctx, t, more)
}

func (m *Manager) startTransient(ctx context.Context, t Transient, more []Property) error {
	for _, pid := range t.PIDs {
		if pid < 1 || pid > 1<<22 {
			return &Error{Op: "start", Unit: t.Name, Kind: ErrInvalid, Cause: errPID(pid)}
		}
	}
	properties := t.wire(more)
	return m.job(ctx, "start", t.Name, func(ctx context.Context, l *link, ended chan<- string) (int, error) {
		return l.StartTransientUnitContext(ctx, t.Name, "fail", properties, ended)
	})
}

func (t Transient) wire(more []Property) []api.Property {
	var p []Property
	text := func(name, value string) {
		if value != "" {
			p = append(p, Property{name, value})
		}
	}
	text("Description", t.Description)
	text("Slice", t.Slice)
	text("WorkingDirectory", t.Dir)
	text("User", t.User)
	text("Group", t.Group)
	switch {
	case t.Delegate && len(t.Controllers) > 0:
		p = append(p, Property{"DelegateControllers", t.Controllers})
	case t.Delegate:
		p = append(p, Property{"Delegate", true})
	}
	if len(t.Env) > 0 {
		p = append(p, Property{"Environment", t.Env})
	}
	if len(t.PIDs) > 0 {
		pids := make([]uint32, len(t.PIDs))
		for i, pid := range t.PIDs {
			pids[i] = uint32(pid)
		}
		p = append(p, Property{"PIDs", pids})
	}
	list := wire(slices.Concat(p, more, t.Properties))
	if len(t.Exec) > 0 {
		list = append(list, api.PropExecStart(t.Exec, false))
	}
	return list
}
