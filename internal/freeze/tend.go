package freeze

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"time"

	"bulkhead/internal/apply"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Tend ends the freezes whose time is over, and stops who has come to a frozen group since. The agent calls it on every
// look; it does not wait for the lock. The process table is nil where nobody has come.
func Tend(ctx context.Context, c *transaction.Controller, procs []procfs.Process, now time.Time) error {
	if err := ThawDue(ctx, c, now); err != nil || procs == nil {
		return err
	}
	return catchUp(ctx, c, procs)
}

// lateness is how long past its end a freeze may be before its watchdog ends it: whose work that is may be about it.
const lateness = 2 * time.Second

// Outlast ends the freezes of one request when their time is over and whose work that is has not: the agent, or without
// one the command that waits for it. It returns when none of them is left, or with the cause of ctx's end.
func Outlast(ctx context.Context, c *transaction.Controller, id string) error {
	for {
		over, err := outlastOnce(ctx, c, id)
		if over {
			return nil
		}
		if err != nil {
			c.Log.Error("a freeze that is over could not be ended; trying again", "err", err)
		}
		if err := transaction.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// outlastOnce looks once. Over says that none of the freezes is left.
func outlastOnce(ctx context.Context, c *transaction.Controller, id string) (over bool, err error) {
	d, err := state.Load(c.Store, state.DocFreezes)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(d.Freezes, func(f state.Freeze) bool { return idOf(f.Ends) == id })
	if i < 0 {
		return true, nil
	}
	now := time.Now()
	if !d.Freezes[i].Ended(now.Add(-lateness), procfs.SinceBoot()-lateness) {
		return false, nil
	}
	return false, thawDueWithin(ctx, c, cmp.Or(c.LockWait, transaction.DefaultLockWait), now)
}

// catchUp brings members into the v1 freezer who came to a frozen group since: the directories into which the agent
// places them stop nobody there. On cgroup v2 they do.
func catchUp(ctx context.Context, c *transaction.Controller, procs []procfs.Process) error {
	if d, err := state.Load(c.Store, state.DocFreezes); err != nil || len(d.Freezes) == 0 {
		return err
	}
	facts, s, err := c.Recorded()
	if err != nil || s.Rests() {
		return err
	}
	if h, ok := facts.HierarchyOf("freezer"); !ok || h.Version != 1 || inPlace(facts, h) {
		return nil
	}
	v, steps, err := latecomers(ctx, c, facts, s, procs)
	if err != nil || len(steps) == 0 {
		return err
	}
	lock, err := c.LockWithin(ctx, 0, "look", ownName(c))
	if err != nil {
		return err
	}
	defer lock.Release()
	now, err := c.LoadState(facts.BootID, c.Now())
	if _, pending := c.Store.Pending(); err != nil || pending || !reflect.DeepEqual(now.Freezes, s.Freezes) {
		return err // the next look goes by what is then
	}
	_, err = c.Runner(ctx, v).Run(ctx, plan.Plan{Steps: steps},
		apply.Options{Verb: "freeze", By: ownName(c), Unrecorded: true})
	return err
}

// latecomers plans the way into the v1 freezer for members of frozen groups that are not in there.
func latecomers(ctx context.Context, c *transaction.Controller, f *host.Facts, s *state.Documents,
	procs []procfs.Process) (v *transaction.View, steps []plan.Step, err error) {
	l := transaction.OptionsOver(s, s.Applied.Sources)
	l.Facts, l.Processes, l.Lenient = f, procs, true
	if v, err = c.Classify(ctx, l); err != nil {
		return nil, nil, err
	}
	// A group below another goes first: a process sits in the directory of the nearest.
	freezes := slices.Clone(s.Freezes)
	slices.SortFunc(freezes, func(a, b state.Freeze) int { return len(b.Group) - len(a.Group) })
	var pids []int
	planned := map[int]bool{}
	for _, fr := range freezes {
		dir, err := freezerDir(v, fr.Group)
		if h, _ := f.Hierarchy(dir.Hierarchy); err != nil || inPlace(f, h) {
			continue
		}
		if there, err := v.Tree.Exists(dir); err != nil || !there {
			continue
		}
		for _, step := range intoFreezer(v, fr.Group, dir).Steps {
			if pid := step.PID().PID; step.Moves() && !planned[pid] {
				steps, pids, planned[pid] = append(steps, step), append(pids, pid), true
			}
		}
	}
	if len(pids) == 0 {
		return v, nil, nil
	}
	// The process table is kept up to date by events, and none tells of a move.
	if procs, err = c.Host.Proc.Processes(procfs.Options{PIDs: pids}); err != nil {
		return nil, nil, err
	}
	where := map[procfs.ID]string{}
	for _, p := range procs {
		where[p.ID] = p.Cgroups[steps[0].Dir().Hierarchy]
	}
	for i := range steps {
		steps[i].Change = change.Of(steps[i].Target, where[steps[i].PID()], steps[i].New)
	}
	return v, slices.DeleteFunc(steps, func(s plan.Step) bool {
		return s.Old == "" || atOrBelow(s.Old, s.Dir().Path)
	}), nil
}
