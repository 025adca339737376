// Package freeze stops the processes of groups until an end, and lets them go on: by the freezer of cgroup v2, or of
// v1, which has directories of its own where groups have no others. Each freeze is recorded before anything stops.
package freeze

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/access"
	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Freeze stops the processes of groups until an end.
func Freeze(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	slices.Sort(r.Groups)
	r.Groups = slices.Compact(r.Groups)
	v, s, err := c.Current(ctx, transaction.ViewOptions{})
	if err != nil {
		return err
	}
	for _, group := range r.Groups {
		if !v.HasGroup(group) {
			return transaction.NoGroup(v, group)
		}
		if err := errors.Join(transaction.RefuseReleased(s, group),
			access.May(r.Caller, v.Snapshot, group, policy.MayFreeze),
			access.MayRefreeze(r.Caller, s.Freezes, group)); err != nil {
			return err
		}
		if err := errors.Join(mayFreeze(v, group, r.Force), outside(c, v, group)); err != nil {
			return err
		}
	}
	if r.DryRun {
		reply.Text = fmt.Sprintf("would stop %s until %s", policy.Counted(countMembers(v, r.Groups), "process"),
			time.Now().Add(r.For).Local().Format(time.DateTime))
		return nil
	}
	ends := time.Now().Add(r.For).Round(0) // as it is read back: without the monotonic clock
	endsAfter := procfs.SinceBoot() + r.For
	wd, err := transaction.StartAlone(ctx, c, WatchdogFlag, idOf(ends))
	if err != nil {
		return api.Errorf(api.CodeFailed, "nothing was stopped", "%w", err)
	}
	if wd != nil {
		defer wd.Leave()
	}
	freezes := slices.DeleteFunc(slices.Clone(s.Freezes),
		func(f state.Freeze) bool { return slices.Contains(r.Groups, f.Group) })
	for _, group := range r.Groups {
		reply.Frozen = append(reply.Frozen, state.Freeze{Group: group, Ends: ends, EndsAfter: endsAfter, By: r.By,
			Reason: r.Reason, Boot: v.Facts.BootID, Owner: r.Caller.OwnerID()})
	}
	// The record goes first: a freeze nobody knows of has no end.
	if err := c.Store.Save(state.DocFreezes, append(freezes, reply.Frozen...)); err != nil {
		return api.Errorf(api.CodeFailed, "", "record the freeze: %w", err)
	}
	for _, group := range r.Groups {
		if err := stop(ctx, c, v, group, r, reply); err != nil {
			return errors.Join(err, takeBack(context.WithoutCancel(ctx), c, v, r, s.Freezes))
		}
	}
	reply.Changed = true
	reply.Text = "frozen until " + reply.Frozen[0].Until()
	transaction.Note(c, r, reply, reply.Text)
	return nil
}

// WatchdogFlag has `bulkhead watchdog` outlast the freezes of one request, whose id follows.
const WatchdogFlag = "--freeze"

// idOf tells the freezes of one request from those of any other: by their end.
func idOf(ends time.Time) string { return strconv.FormatInt(ends.UnixNano(), 36) }

// takeBack undoes a freeze that failed half way. The record of one that cannot be undone stays, so that it
// is tried again at its end.
func takeBack(ctx context.Context, c *transaction.Controller, v *transaction.View, r api.Request,
	before []state.Freeze) error {
	if err := wake(ctx, c, v, r, r.Groups, before); err != nil {
		return err
	}
	return c.Store.Save(state.DocFreezes, before)
}

// mayFreeze refuses to stop a database: its clients hang, its replicas fall behind, a cluster throws
// it out.
func mayFreeze(v *transaction.View, group string, force bool) error {
	for _, g := range v.Classified.Groups {
		if !policy.Covers([]string{group}, g.Path) || force {
			continue
		}
		if g.Role == policy.RoleDatabase || v.HoldsInstance(g.Path) {
			return api.Errorf(api.CodeRefused, "--force --reason TEXT does it all the same",
				"group %q holds a database: its clients would hang and a cluster may throw it out", g.Path)
		}
	}
	return nil
}

// Outside refuses, with CodeRefused, when the calling process or one of its ancestors is in one of the
// groups: for who has an agent freeze them.
func Outside(ctx context.Context, c *transaction.Controller, groups []string) error {
	v, _, err := c.Current(ctx, transaction.ViewOptions{})
	if err != nil {
		return err
	}
	for _, group := range groups {
		if err := outside(c, v, group); err != nil {
			return err
		}
	}
	return nil
}

// outside refuses to stop this process or one of its ancestors: stopped with the lock held, bulkhead could
// never let anything go again. No --force gets past it.
func outside(c *transaction.Controller, v *transaction.View, group string) error {
	dir, err := freezerDir(v, group)
	if err != nil {
		return err
	}
	byPID := map[int]procfs.Process{}
	for _, p := range v.Observed.Processes {
		byPID[p.PID] = p
	}
	placed := map[procfs.ID]string{}
	for _, p := range v.Members {
		placed[p.Process.ID] = p.Group
	}
	p, known := byPID[c.Self.PID]
	for known {
		in, member := placed[p.ID]
		if member && policy.Covers([]string{group}, in) || atOrBelow(p.Cgroups[dir.Hierarchy], dir.Path) {
			return api.Errorf(api.CodeRefused, "run it from outside",
				"you are inside group %q: process %d (%s) would stop too", group, p.PID, p.Comm)
		}
		parent := p.PPID
		delete(byPID, p.PID) // whatever the table says, this ends
		p, known = byPID[parent]
	}
	return nil
}

func countMembers(v *transaction.View, groups []string) int {
	n := 0
	for _, p := range v.Members {
		if policy.Covers(groups, p.Group) {
			n++
		}
	}
	return n
}

// Thaw lets frozen groups run again.
func Thaw(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	facts, s, err := c.Recorded()
	if err != nil {
		return err
	}
	for _, group := range r.Groups {
		if !slices.ContainsFunc(s.Freezes, func(f state.Freeze) bool { return f.Group == group }) {
			return api.Errorf(api.CodeUsage, "`bulkhead status` shows which groups are frozen",
				"group %q is not frozen", group)
		}
	}
	if err := mayThaw(ctx, c, r, s); err != nil {
		return err
	}
	if r.DryRun {
		reply.Text = "would thaw"
		return nil
	}
	return thawGroups(ctx, c, facts, s, r, reply)
}

// thawGroups ends the freezes of groups, wakes who is then frozen by none, and records it as one entry.
func thawGroups(ctx context.Context, c *transaction.Controller, f *host.Facts, s *state.Documents, r api.Request,
	reply *transaction.Outcome) error {
	stay := slices.DeleteFunc(slices.Clone(s.Freezes),
		func(fr state.Freeze) bool { return slices.Contains(r.Groups, fr.Group) })
	were := wereFrozen(s.Freezes, r.Groups)
	names := transaction.NamesOf(s, c.Reader().Roots(f))
	host := policy.HostPart{Root: names.Root}
	v := &transaction.View{Snapshot: &snapshot.Snapshot{
		Facts: f, Tree: c.TreeOf(f), Names: names, Policy: &policy.Policy{Host: host},
		Layout: layout.New(f, names, layout.NewForest(f, host, nil), nil),
	}}
	if err := wake(ctx, c, v, r, r.Groups, stay); err != nil {
		return err
	}
	if err := c.Store.Save(state.DocFreezes, stay); err != nil {
		return api.Errorf(api.CodeFailed, "", "record the thaw: %w", err)
	}
	s.Freezes = stay
	reply.Changed = true
	reply.Text = stillFrozen(r.Groups, stay)
	transaction.Note(c, r, reply, strings.Join(append([]string{reply.Text}, were...), "; "))
	return nil
}

// wereFrozen says when the freezes of groups were to end, and who began them.
func wereFrozen(freezes []state.Freeze, groups []string) []string {
	var texts []string
	for _, f := range freezes {
		if slices.Contains(groups, f.Group) {
			texts = append(texts, fmt.Sprintf("%s was frozen until %s by %s", f.Group, f.Until(), f.By))
		}
	}
	return texts
}

// stillFrozen says what a thaw of groups did beside the freezes that go on.
func stillFrozen(groups []string, stay []state.Freeze) string {
	var texts []string
	awake := false
	for _, group := range groups {
		f, stopped := frozenAbove(stay, group)
		if stopped {
			texts = append(texts, fmt.Sprintf("group %q stays stopped: group %q is frozen until %s", group, f.Group,
				f.Until()))
		}
		awake = awake || !stopped
	}
	if awake {
		texts = slices.Insert(texts, 0, "running again")
	}
	for _, f := range stay {
		if _, stopped := frozenAbove(stay, f.Group); policy.Covers(groups, f.Group) && !stopped {
			texts = append(texts, fmt.Sprintf("group %q stays frozen until %s", f.Group, f.Until()))
		}
	}
	return strings.Join(texts, "; ")
}

// RefuseFrozen refuses to put a process into a group that is stopped, or below one: on cgroup v2 it would stop
// with it, and if it is bulkhead itself, with the lock held.
func RefuseFrozen(s *state.Documents, group string) error {
	for _, f := range s.Freezes {
		if policy.Covers([]string{f.Group}, group) {
			return api.Errorf(api.CodeRefused, "`bulkhead thaw "+f.Group+"` lets it run", "group %q is frozen until %s",
				f.Group, f.Until())
		}
	}
	return nil
}

// MayLeave refuses to take processes by hand out of a group that is stopped: the v1 freezer would go on to hold
// them, in a group that nothing shows as frozen.
func MayLeave(c *transaction.Controller, f *host.Facts, s *state.Documents, procs ...procfs.Process) error {
	layout := layout.New(f, transaction.NamesOf(s, c.Reader().Roots(f)), layout.NewForest(f, policy.HostPart{}, nil),
		nil)
	for _, p := range procs {
		for hierarchy, at := range p.Cgroups {
			h, _ := f.Hierarchy(hierarchy)
			if !inPlace(f, h) && (h.Version != 1 || !h.Has("freezer")) {
				continue
			}
			group, ours := layout.Group(cgroup.Dir{Hierarchy: hierarchy, Path: at})
			if !ours {
				continue
			}
			var frozen *api.Error
			if err := RefuseFrozen(s, group); errors.As(err, &frozen) {
				return api.Errorf(frozen.Code, frozen.Hint, "move process %d (%s): %w, and it with it", p.PID, p.Comm,
					err)
			}
		}
	}
	return nil
}

// ThawDue wakes the groups whose freeze has ended. It does not wait for the lock.
func ThawDue(ctx context.Context, c *transaction.Controller, now time.Time) error {
	return thawDueWithin(ctx, c, 0, now)
}

// thawDueWithin is ThawDue that waits so long for the lock.
func thawDueWithin(ctx context.Context, c *transaction.Controller, wait time.Duration, now time.Time) error {
	due, err := anyDue(c, now)
	if err != nil || !due {
		return err
	}
	lock, err := c.LockWithin(ctx, wait, "thaw", ownName(c))
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := c.Recover(ctx, &transaction.Outcome{}); err != nil {
		return err
	}
	return ThawDueLocked(ctx, c, now)
}

// anyDue says whether a freeze that is recorded has ended.
func anyDue(c *transaction.Controller, now time.Time) (bool, error) {
	d, err := state.Load(c.Store, state.DocFreezes)
	if err != nil {
		return false, api.Errorf(api.CodeFailed, "", "%w", err)
	}
	sinceBoot := procfs.SinceBoot()
	return slices.ContainsFunc(d.Freezes, func(f state.Freeze) bool { return f.Ended(now, sinceBoot) }), nil
}

// ThawDueLocked ends the freezes whose time is over and that nobody ended: no agent runs, and the command that
// was to do it was killed. The caller holds the lock, and no change is pending.
func ThawDueLocked(ctx context.Context, c *transaction.Controller, now time.Time) error {
	if due, err := anyDue(c, now); err != nil || !due {
		return err
	}
	facts, s, err := freezeState(c)
	if err != nil {
		return err
	}
	r := api.Request{Verb: "thaw", By: ownName(c), Reason: "the freeze has ended"}
	sinceBoot := procfs.SinceBoot()
	for _, f := range s.Freezes {
		if f.Ended(now, sinceBoot) {
			r.Groups = append(r.Groups, f.Group)
		}
	}
	if len(r.Groups) == 0 { // of an earlier boot, all of them
		return c.Store.Save(state.DocFreezes, s.Freezes)
	}
	return thawGroups(ctx, c, facts, s, r, &transaction.Outcome{})
}

// freezeState is the recorded state as far as it can be read: a damaged document must not keep a group
// stopped.
func freezeState(c *transaction.Controller) (*host.Facts, *state.Documents, error) {
	facts, err := c.Host.Facts()
	if err != nil {
		return nil, nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
	}
	s, err := c.LoadState(facts.BootID, time.Now())
	if err == nil {
		return facts, s, nil
	}
	c.Log.Warn("ending freezes without the recorded state", "err", err)
	if s, err = state.Load(c.Store, state.DocFreezes); err != nil {
		return nil, nil, api.Errorf(api.CodeFailed, "", "%w", err)
	}
	return facts, s.Prune(state.Moment{Boot: facts.BootID}), nil
}

// ownName is who ends a freeze that is over.
func ownName(c *transaction.Controller) string {
	if c.Agent != (procfs.ID{}) {
		return "agent"
	}
	return "bulkhead"
}

// End ends freezes for the caller that began them (Reply.Frozen), and says what came of it. One that
// was ended meanwhile, or replaced by a freeze of somebody else, is left alone.
func End(ctx context.Context, c *transaction.Controller, own []state.Freeze, by string) (string, error) {
	lock, err := c.Lock(ctx, "thaw", by)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	if err := c.Recover(ctx, &transaction.Outcome{}); err != nil {
		return "", err
	}
	facts, s, err := freezeState(c)
	if err != nil {
		return "", err
	}
	r := api.Request{Verb: "thaw", By: by}
	var left []string
	for _, f := range own {
		i := slices.IndexFunc(s.Freezes, func(now state.Freeze) bool { return now.Group == f.Group })
		switch {
		case i < 0:
			left = append(left, fmt.Sprintf("group %q is not frozen any more", f.Group))
		case !s.Freezes[i].Ends.Equal(f.Ends):
			left = append(left, fmt.Sprintf("group %q was frozen again by %s, until %s", f.Group, s.Freezes[i].By,
				s.Freezes[i].Until()))
		default:
			r.Groups, r.Reason = append(r.Groups, f.Group), f.Reason
		}
	}
	if len(r.Groups) == 0 {
		return strings.Join(left, "; "), nil
	}
	var reply transaction.Outcome
	if err := thawGroups(ctx, c, facts, s, r, &reply); err != nil {
		return "", err
	}
	return strings.Join(append(append([]string{reply.Text}, reply.Notes...), left...), "; "), nil
}

// mayThaw refuses an owner to end a freeze of a group that is not its own, or that root began.
func mayThaw(ctx context.Context, c *transaction.Controller, r api.Request, s *state.Documents) error {
	if r.Caller == nil {
		return nil
	}
	v, _, err := c.Membership(ctx)
	if err != nil {
		return err
	}
	for _, group := range r.Groups {
		if err := errors.Join(access.May(r.Caller, v.Snapshot, group, policy.MayFreeze),
			access.MayRefreeze(r.Caller, s.Freezes, group)); err != nil {
			return err
		}
	}
	return nil
}
