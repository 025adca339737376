package systemdfake

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"bulkhead/internal/systemd/unitname"
)

// startTransient makes a unit from properties. The file it is kept in is written first, so that a reload finds it.
func (m *pid1) startTransient(name string, list []pair) ([]any, func(), *dbus.Error) {
	if u := m.units[name]; u != nil || m.loaded(name).fragment != "" || m.loaded(name).load == "masked" {
		return nil, nil, fail("org.freedesktop.systemd1.UnitExists",
			"Unit %s was already loaded or has a fragment file.", name)
	}
	u := &unit{name: name, load: "loaded", active: "inactive", sub: "dead", result: "success",
		files: map[string]string{}, subgroups: map[string]bool{}}
	files, err := m.encode(u, list, true)
	if err != nil {
		return nil, nil, err
	}
	pids, err := m.pidsOf(name, files["PIDs"])
	if err != nil {
		return nil, nil, err
	}
	delete(files, "PIDs")
	if unitname.TypeOf(name) == "service" && files["ExecStart"] == nil {
		return nil, nil, fail("org.freedesktop.systemd1.BadUnitSetting", "Unit %s has a bad unit file setting.", name)
	}
	if unitname.TypeOf(name) == "scope" && len(pids) == 0 {
		return nil, nil, fail("org.freedesktop.DBus.Error.FileNotFound",
			"Unit %s failed to load properly, please adjust/correct and reload service manager: No such file or "+
				"directory", name)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# Do not edit.\n[%s]\n", section(name))
	for _, lines := range files {
		text.WriteString(strings.Join(lines, "\n") + "\n")
	}
	must(os.MkdirAll(filepath.Join(m.root, transientDir), 0o755))
	must(os.WriteFile(filepath.Join(m.root, transientDir, name), []byte(text.String()), 0o644))
	m.read(u)
	m.units[name] = u
	j, reply := m.newJob(name, "start")
	return reply, m.begin(j, u, pids), nil
}

func (m *pid1) pidsOf(name string, lines []string) ([]int, *dbus.Error) {
	if lines == nil {
		return nil, nil
	}
	if unitname.TypeOf(name) != "scope" {
		return nil, readOnly("PIDs")
	}
	var pids []int
	for _, text := range strings.Fields(strings.TrimPrefix(lines[0], "PIDs=")) {
		pid, _ := strconv.Atoi(text)
		if m.processes[pid] == nil {
			return nil, fail("org.freedesktop.DBus.Error.UnixProcessIdUnknown", "Process with ID %d does not exist.",
				pid)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

func (m *pid1) startUnit(name string) ([]any, func(), *dbus.Error) {
	u := m.units[name]
	if u == nil {
		u = m.loaded(name)
	}
	if err := loadError(u); err != nil {
		return nil, nil, err
	}
	m.units[name] = u
	j, reply := m.newJob(name, "start")
	return reply, m.begin(j, u, nil), nil
}

// begin starts a unit: what it gives is run, without the lock, after the reply is sent.
func (m *pid1) begin(j *job, u *unit, pids []int) func() {
	if m.stalled[u.name] {
		return func() {}
	}
	result, wait := m.activate(u, pids)
	changed := m.changedSignal(u)
	collected := m.collect(u)
	return func() {
		changed()
		if wait > 0 {
			m.later(wait, j, u, result)
			return
		}
		m.end(j, result)
		run(collected)
	}
}

// later ends a job after a time in which the start did not finish.
func (m *pid1) later(wait time.Duration, j *job, u *unit, result string) {
	time.AfterFunc(wait, func() {
		m.mu.Lock()
		if !j.done && result == "failed" {
			m.killAll(u)
			u.active, u.sub, u.result, u.main = "failed", "failed", "timeout", 0
		}
		changed := m.changedSignal(u)
		m.mu.Unlock()
		m.end(j, result)
		changed()
	})
}

// activate gives the job's result, and how long it takes when the unit never gets ready.
func (m *pid1) activate(u *unit, pids []int) (result string, wait time.Duration) {
	if u.active == "active" {
		return "done", 0
	}
	for _, needed := range u.settings.list("Requires") {
		other := m.units[needed]
		if other == nil {
			other = m.loaded(needed)
			m.units[needed] = other
		}
		if result, _ := m.activate(other, nil); result != "done" {
			return "dependency", 0
		}
	}
	kind := unitname.TypeOf(u.name)
	if kind == "slice" {
		m.startParents(u.name)
		return "done", 0
	}
	m.startParents(sliceOf(u))
	u.group, u.result = groupFor(u), "success"
	m.realize(u)
	if kind == "scope" {
		u.active, u.sub = "active", "running"
		for _, pid := range pids {
			m.place(pid, u.name, "")
		}
		return "done", 0
	}
	return m.exec(u)
}

// exec starts a service's program. Which programs there are is asked of the machine the test runs on.
func (m *pid1) exec(u *unit) (result string, wait time.Duration) {
	program, _, _ := strings.Cut(u.settings.last("ExecStart"), " ")
	failed := func() string {
		u.active, u.sub, u.result = "failed", "failed", "exit-code"
		return "failed"
	}
	kind := u.settings.last("Type")
	if u.files[subtreeControl] != "" && u.settings.last("DelegateSubgroup") == "" {
		return failed(), 0 // no process enters a directory that hands controllers down
	}
	if _, err := os.Stat(program); err != nil {
		if result = failed(); kind != "exec" && kind != "oneshot" {
			result = "done" // simple: it counts as started once it was forked
		}
		return result, 0
	}
	if kind == "oneshot" {
		if filepath.Base(program) == "false" {
			return failed(), 0
		}
		u.active, u.sub = "inactive", "dead"
		return "done", 0
	}
	u.main = m.spawn(u.name)
	if sub := u.settings.last("DelegateSubgroup"); sub != "" {
		u.subgroups["/"+sub] = true
		m.enter(u.main, u.name, "/"+sub)
	}
	if kind == "notify" { // nothing here ever says that it is ready
		u.active, u.sub = "activating", "start"
		start := seconds(cmp.Or(u.settings.last("TimeoutStartSec"), "90"))
		job := seconds(u.settings.last("JobTimeoutSec"))
		if job > 0 && job < start {
			return "timeout", job
		}
		return "failed", start
	}
	u.active, u.sub = "active", "running"
	return "done", 0
}

func (m *pid1) stopUnit(name string) ([]any, func(), *dbus.Error) {
	u := m.units[name]
	if u == nil {
		if u = m.loaded(name); u.load == "not-found" {
			return nil, nil, noSuchUnit("Unit %s not loaded.", name)
		}
	}
	j, reply := m.newJob(name, "stop")
	var after []func()
	for _, other := range m.jobs { // a start that waits is overtaken
		if other.unit == name && other != j {
			after = append(after, func() { m.end(other, "canceled") })
		}
	}
	after = append(after, m.stop(u)...)
	return reply, func() {
		run(after)
		m.end(j, "done")
	}, nil
}

// stop stops a unit and, first, what requires it: of a slice all that lies in it.
func (m *pid1) stop(u *unit) (after []func()) {
	for _, name := range m.requiredBy(u.name) {
		if other := m.units[name]; other != nil && other.active != "inactive" && other.active != "failed" {
			after = append(after, m.stop(other)...)
		}
	}
	if u.active == "failed" {
		return append(after, m.collect(u)...)
	}
	m.killAll(u)
	u.active, u.sub, u.main = "inactive", "dead", 0
	after = append(after, m.changedSignal(u))
	return append(after, m.collect(u)...)
}

func (m *pid1) resetFailed(name string) ([]any, func(), *dbus.Error) {
	u := m.units[name]
	if u == nil {
		return nil, nil, noSuchUnit("Unit %s not loaded.", name)
	}
	var after []func()
	if u.active == "failed" {
		u.active, u.sub, u.result = "inactive", "dead", "success"
		after = m.collect(u)
	}
	return nil, func() { run(slices.Clone(after)) }, nil
}

func (m *pid1) cancelJob(id uint32) ([]any, func(), *dbus.Error) {
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

// seconds reads a time of a unit file; 0 when it is not there.
func seconds(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		d, _ = time.ParseDuration(text + "s")
	}
	return d
}
