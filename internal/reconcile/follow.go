package reconcile

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Fork is one process that made another, as an event told.
type Fork struct{ Parent, Child int }

// heirTime is for how long the forks of a process that was placed are held against it: events of what it
// forked before it was inside come within milliseconds.
const heirTime = 2 * time.Second

// byInheritance marks a process that its parent forked while the parent was on its way into a group.
const byInheritance = "inheritance"

// mover is a process that was on its way into a group a moment ago.
type mover struct {
	group string
	from  map[string]string // its cgroups before
	at    time.Time
}

// inherit places what a process forked while it was on its way into a group: had the move been faster, it
// would have been born inside. It goes by events, which say who forked whom when; a process that a rule, a pin
// or a protection has a say about is left to them.
func (m *memory) inherit(v *transaction.View, forks []Fork, now time.Time) {
	if m.movers == nil {
		m.movers = map[int]mover{}
	}
	for pid, was := range m.movers {
		if now.Sub(was.at) > heirTime {
			delete(m.movers, pid)
		}
	}
	for _, f := range forks {
		delete(m.movers, f.Child) // a process before it had the number
	}
	claimed := map[int]bool{}
	for _, p := range v.Classified.Placements {
		claimed[p.Process.PID] = true
		if !policy.Released(v.Released, p.Group) && !v.Layout.Placed(&p.Process, p.Group) {
			m.movers[p.Process.PID] = mover{p.Group, p.Process.Cgroups, now}
		}
	}
	if len(forks) == 0 || len(m.movers) == 0 {
		return
	}
	for _, s := range v.Classified.Skips {
		claimed[s.Process.PID] = true
	}
	var heirs []classify.Placement
	protected := sync.OnceValue(func() func(int) string { return classify.Protector(v.Rules) })
	for _, f := range forks {
		parent, moving := m.movers[f.Parent]
		if !moving || claimed[f.Child] {
			continue
		}
		m.movers[f.Child] = mover{parent.group, parent.from, now} // alive or not: it may have forked too
		i, alive := slices.BinarySearchFunc(v.Observed.Processes, f.Child,
			func(p procfs.Process, pid int) int { return p.PID - pid })
		if !alive {
			continue
		}
		p := v.Observed.Processes[i]
		if !stayedBehind(p, v.Layout.Place(&p, parent.group), parent.from) || v.Expel[p.ID] ||
			protected()(p.PID) != "" {
			continue
		}
		heirs = append(heirs, classify.Placement{
			Process: p, Group: parent.group, By: byInheritance, Rule: "its parent was on its way there when it forked",
		})
	}
	v.Snapshot = v.With(heirs...)
}

// misplaced lists the members of groups that are not released and that are not in their directories.
func misplaced(v *transaction.View) (all []procfs.ID) {
	for _, p := range v.Classified.Placements {
		if !policy.Released(v.Released, p.Group) && !v.Layout.Placed(&p.Process, p.Group) {
			all = append(all, p.Process.ID)
		}
	}
	return all
}

// stayedBehind says whether a process is not in all the directories, and else where its parent was.
func stayedBehind(p procfs.Process, dirs map[string]cgroup.Dir, from map[string]string) bool {
	behind := false
	for hierarchy, d := range dirs {
		switch p.Cgroups[hierarchy] {
		case d.Path:
		case from[hierarchy]:
			behind = true
		default:
			return false
		}
	}
	return behind
}

// ungoverned says whether a process of a group is in a unit that the last look did not know as the group's: whose
// limits are then its properties, or the group's no more.
func ungoverned(v *transaction.View, p classify.Placement) bool {
	if v.Systemd == nil {
		return false
	}
	dir, _, ok := v.Names.UnitDir(&p.Process)
	return ok && v.Systemd.Governed[dir].Group != p.Group
}

// withAncestors adds to processes their ancestors and one more, in order of pid. Served says that one of them is
// the main process of an instance: then what it is to the instance only a whole look tells.
func withAncestors(fresh []procfs.Process, more int, instances []engine.Instance,
	table func(pid int) (procfs.Process, bool)) (procs []procfs.Process, served bool) {
	some := make(map[int]procfs.Process, 2*len(fresh))
	for _, p := range fresh {
		some[p.PID] = p
	}
	add := func(pid int) (parent int, isNew bool) {
		if _, known := some[pid]; known {
			return 0, false
		}
		p, found := table(pid)
		if found {
			some[pid] = p
		}
		return p.PPID, found
	}
	for _, p := range fresh {
		for parent, isNew := add(p.PPID); isNew; parent, isNew = add(parent) {
			continue
		}
	}
	for i := range instances {
		if p, there := some[instances[i].Main.PID]; there && p.ID == instances[i].Main {
			return nil, true
		}
	}
	add(more)
	return slices.SortedFunc(maps.Values(some), func(a, b procfs.Process) int { return a.PID - b.PID }), false
}

// place puts processes that have just come into their groups, and reads no knob: it plans with what the last
// full look saw, and leaves all but the moves to the next one. Where a group has no directory yet, or anything
// has changed since, ok is false and nothing was done: then the host must be looked at as a whole.
func (c *Reconciler) place(ctx context.Context, v *transaction.View, s *state.Documents) (done LookResult, ok bool,
	err error) {
	if c.memory.observed == nil || c.memory.Facts != v.Facts {
		return done, false, nil
	}
	lock, err := c.LockWithin(ctx, 0, "look", "agent")
	if err != nil {
		return LookResult{Retry: true}, true, err
	}
	defer lock.Release()
	if _, pending := c.Store.Pending(); pending {
		return done, false, nil
	}
	now, err := c.LoadState(v.Facts.BootID, c.Now())
	if err != nil {
		return done, true, err
	}
	if !reflect.DeepEqual(now, s) {
		return done, false, nil
	}
	w := &transaction.View{Snapshot: c.Reader().Narrow(v.Snapshot, misplaced(v), *c.memory.observed),
		Released: v.Released}
	w.MakePlan()
	if len(w.Plan.Refusals) > 0 || slices.ContainsFunc(w.Plan.Steps,
		func(s plan.Step) bool { return s.Op == plan.OpMakeDir }) {
		return done, false, nil
	}
	w.Plan.Steps = slices.DeleteFunc(w.Plan.Steps,
		func(s plan.Step) bool { return s.Op != plan.OpMove && s.Op != plan.OpOOMScore })
	if len(w.Plan.Steps) == 0 { // a zombie, or a task that the kernel does not let in
		return done, true, nil
	}
	done = puts(w.Plan, c.memory.members)
	r := api.Request{Verb: "look", By: "agent", Reason: broughtBack(w.Plan, c.memory.members)}
	err = c.Run(ctx, w, r, s.Applied.Revision, &transaction.Outcome{})
	switch {
	case errors.Is(err, context.Canceled):
		err = nil
	case errors.Is(err, cgroup.ErrGone): // somebody else removed a directory; everything was undone
		c.memory.observed = nil
		return LookResult{}, false, nil
	case err != nil:
		c.memory.observed, done.Retry = nil, true
	}
	return done, true, err
}
