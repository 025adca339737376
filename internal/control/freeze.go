package control

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
)

// freeze stops the processes of groups until an end.
func (c *Controller) freeze(ctx context.Context, r api.Request, reply *outcome) error {
	slices.Sort(r.Groups)
	r.Groups = slices.Compact(r.Groups)
	v, s, err := c.current(ctx, look{})
	if err != nil {
		return err
	}
	for _, group := range r.Groups {
		if !v.HasGroup(group) {
			return errNoGroup(v, group)
		}
		if err := errors.Join(refuseReleased(s, group), may(r.Caller, v.Snapshot, group, policy.MayFreeze),
			mayRefreeze(r.Caller, s.Freezes, group)); err != nil {
			return err
		}
		if err := errors.Join(mayFreeze(v, group, r.Force), c.outside(v, group)); err != nil {
			return err
		}
	}
	if r.DryRun {
		reply.Text = fmt.Sprintf("would stop %s until %s", policy.Counted(countMembers(v, r.Groups), "process"),
			time.Now().Add(r.For).Local().Format(time.DateTime))
		return nil
	}
	ends := time.Now().Add(r.For).Round(0) // as it is read back: without the monotonic clock
	freezes := slices.DeleteFunc(slices.Clone(s.Freezes),
		func(f state.Freeze) bool { return slices.Contains(r.Groups, f.Group) })
	for _, group := range r.Groups {
		reply.Frozen = append(reply.Frozen, state.Freeze{Group: group, Ends: ends, By: r.By, Reason: r.Reason,
			Boot: v.Facts.BootID, Owner: r.Caller.OwnerID()})
	}
	// The record goes first: a freeze nobody knows of has no end.
	if err := c.Store.Save(state.DocFreezes, append(freezes, reply.Frozen...)); err != nil {
		return api.Errorf(api.CodeFailed, "", "record the freeze: %w", err)
	}
	for _, group := range r.Groups {
		if err := c.stop(ctx, v, group, r, reply); err != nil {
			return errors.Join(err, c.takeBack(context.WithoutCancel(ctx), v, r, s.Freezes))
		}
	}
	reply.Changed = true
	reply.Text = "frozen until " + reply.Frozen[0].Until()
	c.note(r, reply, reply.Text)
	return nil
}

// takeBack undoes a freeze that failed half way. The record of one that cannot be undone stays, so that it
// is tried again at its end.
func (c *Controller) takeBack(ctx context.Context, v *View, r api.Request, before []state.Freeze) error {
	if err := c.wake(ctx, v, r, r.Groups, before); err != nil {
		return err
	}
	return c.Store.Save(state.DocFreezes, before)
}

// mayFreeze refuses to stop a database: its clients hang, its replicas fall behind, a cluster throws
// it out.
func mayFreeze(v *View, group string, force bool) error {
	for _, g := range v.Classified.Groups {
		if !policy.Covers([]string{group}, g.Path) || force {
			continue
		}
		if g.Role == policy.RoleDatabase || holdsInstance(v, g.Path) {
			return api.Errorf(api.CodeRefused, "--force --reason TEXT does it all the same",
				"group %q holds a database: its clients would hang and a cluster may throw it out", g.Path)
		}
	}
	return nil
}

// holdsInstance says whether a group holds the main process of a database.
func holdsInstance(v *View, group string) bool {
	for _, p := range v.Members {
		if p.Group != group {
			continue
		}
		for _, i := range v.Instances {
			if i.Main == p.Process.ID {
				return true
			}
		}
	}
	return false
}

// Outside refuses, with CodeRefused, when the calling process or one of its ancestors is in one of the
// groups: for who has an agent freeze them.
func (c *Controller) Outside(ctx context.Context, groups []string) error {
	v, _, err := c.current(ctx, look{})
	if err != nil {
		return err
	}
	for _, group := range groups {
		if err := c.outside(v, group); err != nil {
			return err
		}
	}
	return nil
}

// outside refuses to stop this process or one of its ancestors: stopped with the lock held, bulkhead could
// never let anything go again. No --force gets past it.
func (c *Controller) outside(v *View, group string) error {
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
	p, known := byPID[c.self.PID]
	for known {
		in, member := placed[p.ID]
		if member && policy.Covers([]string{group}, in) || atOrBelow(p.Cgroups[dir.Hierarchy], dir.Path) {
			return api.Errorf(api.CodeRefused, "run it from outside",
				"you are inside group %q: process %d (%s) would stop too",
				group, p.PID, p.Comm)
		}
		parent := p.PPID
		delete(byPID, p.PID) // whatever the table says, this ends
		p, known = byPID[parent]
	}
	return nil
}

// atOrBelow says whether a cgroup path is another one or below it.
func atOrBelow(at, top string) bool { return at == top || strings.HasPrefix(at, top+"/") }

func countMembers(v *View, groups []string) int {
	n := 0
	for _, p := range v.Members {
		if policy.Covers(groups, p.Group) {
			n++
		}
	}
	return n
}

// thaw lets frozen groups run again.
func (c *Controller) thaw(ctx context.Context, r api.Request, reply *outcome) error {
	facts, s, err := c.recorded()
	if err != nil {
		return err
	}
	for _, group := range r.Groups {
		if !slices.ContainsFunc(s.Freezes, func(f state.Freeze) bool { return f.Group == group }) {
			return api.Errorf(api.CodeUsage, "`bulkhead status` shows which groups are frozen",
				"group %q is not frozen", group)
		}
	}
	if err := c.mayThaw(ctx, r, s); err != nil {
		return err
	}
	if r.DryRun {
		reply.Text = "would thaw"
		return nil
	}
	return c.thawGroups(ctx, facts, s, r, reply)
}

// thawGroups ends the freezes of groups, wakes who is then frozen by none, and records it as one entry.
func (c *Controller) thawGroups(ctx context.Context, f *host.Facts, s *state.Documents, r api.Request,
	reply *outcome) error {
	stay := slices.DeleteFunc(slices.Clone(s.Freezes),
		func(fr state.Freeze) bool { return slices.Contains(r.Groups, fr.Group) })
	were := wereFrozen(s.Freezes, r.Groups)
	names := treeNames(s, c.reader().Roots(f))
	host := policy.HostPart{Root: names.Root}
	v := &View{Snapshot: &snapshot.Snapshot{
		Facts: f, Tree: c.tree(f), Names: names, Policy: &policy.Policy{Host: host},
		Layout: layout.New(f, names, layout.NewForest(f, host, nil), nil),
	}}
	if err := c.wake(ctx, v, r, r.Groups, stay); err != nil {
		return err
	}
	if err := c.Store.Save(state.DocFreezes, stay); err != nil {
		return api.Errorf(api.CodeFailed, "", "record the thaw: %w", err)
	}
	s.Freezes = stay
	reply.Changed = true
	reply.Text = stillFrozen(r.Groups, stay)
	c.note(r, reply, strings.Join(append([]string{reply.Text}, were...), "; "))
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

// frozenAbove gives the freeze of the nearest group above that is frozen.
func frozenAbove(freezes []state.Freeze, group string) (state.Freeze, bool) {
	for group != "." && group != "" {
		group = path.Dir(group)
		if i := slices.IndexFunc(freezes, func(f state.Freeze) bool { return f.Group == group }); i >= 0 {
			return freezes[i], true
		}
	}
	return state.Freeze{}, false
}

// refuseFrozen refuses to put a process into a group that is stopped, or below one: on cgroup v2 it would stop
// with it, and if it is bulkhead itself, with the lock held.
func refuseFrozen(s *state.Documents, group string) error {
	for _, f := range s.Freezes {
		if policy.Covers([]string{f.Group}, group) {
			return api.Errorf(api.CodeRefused, "`bulkhead thaw "+f.Group+"` lets it run", "group %q is frozen until %s",
				f.Group,
				f.Until())
		}
	}
	return nil
}

// mayLeave refuses to take processes by hand out of a group that is stopped: the v1 freezer would go on to hold
// them, in a group that nothing shows as frozen.
func (c *Controller) mayLeave(f *host.Facts, s *state.Documents, procs ...procfs.Process) error {
	layout := layout.New(f, treeNames(s, c.reader().Roots(f)), layout.NewForest(f, policy.HostPart{}, nil), nil)
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
			if err := refuseFrozen(s, group); errors.As(err, &frozen) {
				return api.Errorf(frozen.Code, frozen.Hint, "move process %d (%s): %w, and it with it", p.PID, p.Comm,
					err)
			}
		}
	}
	return nil
}

// refuseReleased refuses to change a group that holds no limits until the next apply.
func refuseReleased(s *state.Documents, group string) error {
	if policy.Released(s.Released, group) {
		return api.Errorf(api.CodeFailed, "`bulkhead apply` governs it again",
			"group %q was released: it holds no limits", group)
	}
	return nil
}

// ThawDue wakes the groups whose freeze has ended. The agent calls it on every look; it does not wait for the lock.
func (c *Controller) ThawDue(ctx context.Context, now time.Time) error {
	due, err := c.anyDue(now)
	if err != nil || !due {
		return err
	}
	lock, err := c.lockWithin(ctx, 0, "thaw", c.ownName())
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := c.recover(ctx, &outcome{}); err != nil {
		return err
	}
	return c.wakeDue(ctx, now)
}

// anyDue says whether a freeze that is recorded has ended.
func (c *Controller) anyDue(now time.Time) (bool, error) {
	d, err := state.Load(c.Store, state.DocFreezes)
	if err != nil {
		return false, api.Errorf(api.CodeFailed, "", "%w", err)
	}
	return slices.ContainsFunc(d.Freezes, func(f state.Freeze) bool { return f.Ended(now) }), nil
}

// wakeDue ends the freezes whose time is over and that nobody ended: no agent runs, and the command that
// was to do it was killed. The caller holds the lock, and no change is pending.
func (c *Controller) wakeDue(ctx context.Context, now time.Time) error {
	if due, err := c.anyDue(now); err != nil || !due {
		return err
	}
	facts, s, err := c.freezeState()
	if err != nil {
		return err
	}
	r := api.Request{Verb: "thaw", By: c.ownName(), Reason: "the freeze has ended"}
	for _, f := range s.Freezes {
		if f.Ended(now) {
			r.Groups = append(r.Groups, f.Group)
		}
	}
	if len(r.Groups) == 0 { // of an earlier boot, all of them
		return c.Store.Save(state.DocFreezes, s.Freezes)
	}
	return c.thawGroups(ctx, facts, s, r, &outcome{})
}

// freezeState is the recorded state as far as it can be read: a damaged document must not keep a group
// stopped.
func (c *Controller) freezeState() (*host.Facts, *state.Documents, error) {
	facts, err := c.Host.Facts()
	if err != nil {
		return nil, nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
	}
	s, err := c.loadState(facts.BootID, time.Now())
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
func (c *Controller) ownName() string {
	if c.Agent != (procfs.ID{}) {
		return "agent"
	}
	return "bulkhead"
}

// EndFreezes ends freezes for the caller that began them (Reply.Frozen), and says what came of it. One that
// was ended meanwhile, or replaced by a freeze of somebody else, is left alone.
func (c *Controller) EndFreezes(ctx context.Context, own []state.Freeze, by string) (string, error) {
	lock, err := c.lock(ctx, "thaw", by)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	if err := c.recover(ctx, &outcome{}); err != nil {
		return "", err
	}
	facts, s, err := c.freezeState()
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
	var reply outcome
	if err := c.thawGroups(ctx, facts, s, r, &reply); err != nil {
		return "", err
	}
	return strings.Join(append(append([]string{reply.Text}, reply.Notes...), left...), "; "), nil
}

// note writes the one history entry of a verb that is done. That it cannot be written undoes nothing: a freeze
// in force needs its end all the more.
func (c *Controller) note(r api.Request, reply *outcome, text string) {
	c.remember(journal.Entry{Time: time.Now(), Verb: r.Verb, What: r.What(), By: r.By, Reason: r.Reason,
		Outcome: journal.Committed, Text: text}, reply)
}
