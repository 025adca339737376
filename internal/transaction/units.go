package transaction

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
	"bulkhead/internal/systemd/unitname"
)

// Manager gives the connection to systemd, the same one as long as it lasts; nil without an error where systemd does
// not own the tree.
func (c *Controller) Manager(ctx context.Context, f *host.Facts) (*systemd.Manager, error) {
	if !f.Systemd {
		return nil, nil //nolint:nilnil // there is none to connect to
	}
	c.bus.Lock()
	m := c.systemd
	c.bus.Unlock()
	if m != nil {
		return m, nil
	}
	// Nothing is held meanwhile: a systemd that hangs holds up only who asks it, and that one until ctx ends.
	m, err := systemd.Connect(ctx, c.Bus)
	if err != nil {
		return nil, err
	}
	c.bus.Lock()
	defer c.bus.Unlock()
	if c.systemd != nil { // somebody else was faster
		m.Close()
	} else {
		c.systemd = m
	}
	return c.systemd, nil
}

// dropStale forgets them for good. It needs the lock.
func dropStale(c *Controller, v *View) error {
	if len(v.Stale) == 0 || c.Scratch != nil {
		return nil
	}
	kept, err := state.UnitRecords(c.Store)
	if err != nil {
		return err
	}
	before := len(kept)
	for _, unit := range v.Stale {
		delete(kept, unit)
	}
	if len(kept) == before {
		return nil // dropped already, with an earlier plan of this pass
	}
	return state.Save(c.Store, state.DocUnits, kept)
}

// settings are those that a plan sets, by unit, as unit files name them.
func settings(p plan.Plan) map[string][]string {
	all := map[string][]string{}
	for _, s := range p.Steps {
		if s.Makes() && s.Unit != "" { // systemd makes it because it is told to count there
			for _, name := range systemd.AccountingSettings() {
				if !slices.Contains(all[s.Unit], name) {
					all[s.Unit] = append(all[s.Unit], name)
				}
			}
		}
		if s.Unit == "" {
			continue
		}
		set, _ := systemd.Assignments(s.Do) // encoded by the planner
		for _, a := range set {
			if row, ok := systemd.RowOf(a.Name); ok && !slices.Contains(all[s.Unit], row.Setting) {
				all[s.Unit] = append(all[s.Unit], row.Setting)
			}
		}
	}
	return all
}

// keepUnits writes down what systemd has been told of the units that a plan is about to change first.
func keepUnits(ctx context.Context, c *Controller, v *View) error {
	if v.Systemd == nil || v.Systemd.Mute || c.Scratch != nil {
		return nil
	}
	kept, err := state.UnitRecords(c.Store)
	if err != nil {
		return err
	}
	m, err := c.Manager(ctx, v.Facts)
	if err != nil {
		return err
	}
	changed := false
	ours, dirs := settings(v.Plan), map[string]string{}
	for _, d := range v.Layout.Dirs() {
		dirs[v.Layout.Unit(d)] = d.Path
	}
	for _, s := range v.Plan.Steps {
		if !unitfiles.Keeps(s.Change) {
			continue
		}
		unit := s.Addr
		k, known := kept[unit]
		if !known {
			if k.Overrides, err = m.Overrides(unit); err != nil {
				return err
			}
			k.Boot = v.Facts.BootID
		}
		more := slices.DeleteFunc(ours[unit], func(name string) bool { return slices.Contains(k.Ours, name) })
		if !known || k.Group != s.Group || k.Dir != dirs[unit] || len(more) > 0 {
			k.Group, k.Dir, k.Ours, changed = s.Group, dirs[unit], append(k.Ours, more...), true
			kept[unit] = k
		}
	}
	if !changed {
		return nil
	}
	return state.Save(c.Store, state.DocUnits, kept)
}

// forgetUnits drops the records of units that a plan gave back what they had.
func forgetUnits(c *Controller, v *View, leftOut []plan.Step) error {
	if v.Systemd == nil || c.Scratch != nil ||
		!slices.ContainsFunc(v.Plan.Steps, plan.Step.Reverts) {
		return nil
	}
	kept, err := state.UnitRecords(c.Store)
	if err != nil {
		return err
	}
	for _, s := range v.Plan.Steps {
		failed := slices.ContainsFunc(leftOut, func(l plan.Step) bool { return l.Reverts() && l.Addr == s.Addr })
		again := slices.ContainsFunc(v.Plan.Steps,
			func(o plan.Step) bool { return unitfiles.Keeps(o.Change) && o.Addr == s.Addr })
		if !s.Reverts() || failed || again {
			continue
		}
		held, err := unitfiles.Held(s.New)
		if err != nil {
			return err
		}
		k := kept[s.Addr]
		k.Ours = slices.DeleteFunc(k.Ours, func(name string) bool {
			return len(held.Settings) == 0 || slices.Contains(held.Settings, name)
		})
		if kept[s.Addr] = k; len(k.Ours) == 0 {
			delete(kept, s.Addr)
		}
	}
	return state.Save(c.Store, state.DocUnits, kept)
}

// units is how plans reach systemd.
type units struct {
	*systemd.Manager
	tree  *cgroup.Tree
	facts *host.Facts
}

// keeperPrograms does nothing as long as it is let: the main process of a keeper.
var keeperPrograms = []string{"/usr/bin/sleep", "/bin/sleep"}

// Make starts a slice or a keeper; see apply.Units.
func (u units) Make(ctx context.Context, unit string, d cgroup.Dir) error {
	now, err := u.Unit(ctx, unit)
	if err != nil {
		return err
	}
	accounting, err := systemd.Encode(systemd.Accounting(u.Version(), unitname.TypeOf(unit)))
	if err != nil {
		return err
	}
	switch {
	case now.LoadState == systemd.LoadMasked || now.LoadState == systemd.LoadBadSetting:
		return now.Usable()
	case now.Active() && now.Transient:
		return nil // a directory in another hierarchy came with it
	case now.Active():
		return u.SetProperties(ctx, unit, systemd.Runtime, accounting...)
	case now.FragmentPath != "" && now.LoadState == systemd.LoadLoaded:
		return u.Start(ctx, unit) // an administrator's slice, or a keeper whose process has ended
	}
	t := systemd.Transient{Name: unit, Description: "bulkhead group", Properties: accounting}
	if unitname.TypeOf(unit) == "slice" {
		return u.StartTransient(ctx, t)
	}
	program := keeperPrograms[0]
	for _, p := range keeperPrograms {
		if _, err := os.Stat(p); err == nil {
			program = p
			break
		}
	}
	if row, ok := systemd.RowOf("TasksMax"); ok && row.Known(u.Version(), "service") {
		t.Properties = append(t.Properties, systemd.Property{Name: row.Name,
			Value: systemd.Infinity}) // DefaultTasksMax= would hold the group's processes
	}
	t.Description, t.Slice, t.Exec = "bulkhead: keeps the processes of a group that are in no unit",
		path.Base(path.Dir(d.Path)), []string{program, "infinity"}
	t.Controllers = u.delegated()
	return u.StartKeeper(ctx, t)
}

// delegated are the controllers that a keeper's directory gets on cgroup2: those that count. Its group's slice holds
// the limits; cpuset would come to every unit of the host with it.
func (u units) delegated() (names []string) {
	h, ok := u.facts.Hierarchy(layout.Tracker(u.facts))
	if !ok || h.Version != 2 || !u.Version().AtLeast(delegateListSince) {
		return nil
	}
	for _, c := range []string{"blkio", "cpu", "memory", "pids"} {
		if h.Has(c) {
			names = append(names, host.V2Name(c))
		}
	}
	return names
}

// delegateListSince is the release whose Delegate= takes a list of controllers (systemd.resource-control(5), NEWS of
// 236).
const delegateListSince = 236

// scopeWait is how long systemd may take to notice that a scope is empty. On cgroup v1 the kernel starts a program that
// tells it.
const scopeWait = 5 * time.Second

// endScope waits until a scope whose processes have left has ended. One that systemd does not let go of by itself is
// stopped, which would kill whoever is in it: so nobody may be.
func (u units) endScope(ctx context.Context, unit string) error {
	pause := time.Millisecond
	for end := time.Now().Add(scopeWait); ; pause = min(2*pause, 100*time.Millisecond) {
		now, err := u.Unit(ctx, unit)
		switch {
		case err != nil:
			return err
		case now.ActiveState == "failed":
			return u.ResetFailed(ctx, unit)
		case !now.Active():
			return nil
		}
		for _, h := range u.facts.Hierarchies {
			pids, err := u.tree.Procs(cgroup.Dir{Hierarchy: h.ID, Path: now.ControlGroup})
			if err == nil && len(pids) > 0 {
				return fmt.Errorf("end %s: process %d still runs in it", unit, pids[0])
			}
		}
		if time.Now().After(end) || Sleep(ctx, pause) != nil {
			return u.Manager.Stop(ctx, unit)
		}
	}
}

// Stop ends a unit of ours; see apply.Units.
func (u units) Stop(ctx context.Context, unit string) error {
	if unitname.TypeOf(unit) == "scope" {
		return u.endScope(ctx, unit)
	}
	now, err := u.Unit(ctx, unit)
	if err != nil {
		return err
	}
	if now.Active() {
		err = u.Manager.Stop(ctx, unit)
	} else if now.ActiveState == "failed" {
		err = u.ResetFailed(ctx, unit)
	}
	if err == nil && !now.Transient && now.FragmentPath == "" {
		// A slice that systemd had made for a unit was given its limits in files.
		err = u.RestoreOverrides(ctx, unit, nil)
	}
	return err
}

// Set sets properties; see apply.Units. Those of a unit with a file of its own outlive the boot, so that they hold
// from its next start on; those of a slice of ours go with it.
func (u units) Set(ctx context.Context, unit string, set []systemd.Assignment) error {
	properties, err := systemd.Encode(set)
	if err != nil {
		return err
	}
	now, err := u.Unit(ctx, unit)
	if err != nil {
		return err
	}
	if err := now.Usable(); err != nil {
		return err
	}
	lifetime := systemd.Persistent
	if now.FragmentPath == "" {
		lifetime = systemd.Runtime
	}
	return u.SetProperties(ctx, unit, lifetime, properties...)
}

// Unasked is why systemd could not be asked, as the error of a verb.
func Unasked(cause error) error {
	if errors.Is(cause, journal.ErrDamaged) {
		return api.Errorf(api.CodeFailed, "`bulkhead apply` puts it aside and goes on with its copy", "%w", cause)
	}
	if cause == nil {
		cause = errors.New("no answer")
	}
	return api.Errorf(api.CodeFailed, "`systemctl status` tells whether it answers; `bulkhead release` works without",
		"ask systemd, which owns the groups of this host: %w", cause)
}

// GoingDown says that the host takes its units away one after the other; whoever made them again would only be in its
// way.
func GoingDown(ctx context.Context, c *Controller, f *host.Facts) bool {
	m, err := c.Manager(ctx, f)
	if err != nil || m == nil {
		return false
	}
	down, err := m.GoingDown(ctx)
	return err == nil && down
}
