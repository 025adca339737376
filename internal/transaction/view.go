package transaction

import (
	"context"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/disks"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/plan/planner"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
)

// View is a snapshot of the host, what is asked of it beside the policy, and the plan that follows.
type View struct {
	*snapshot.Snapshot
	Plan     plan.Plan
	Released map[string]bool // groups that are left as they are

	Releasing bool // made to give groups back, not to govern them
	askNodes  bool
	Conflicts []state.Conflict
	Left      map[cgroup.File]string // what of them stays, with what was wanted
}

// ViewOptions says what a View is made from.
type ViewOptions struct {
	Sources   []policy.Source
	Overrides []state.Override
	Lifted    []state.Lifted
	Skipped   []state.Skipped
	Conflicts []state.Conflict
	Released  map[string]bool
	Canary    *state.Canary // whose settings take the place of its group's
	Pins      []state.Pin
	Ended     []state.Pin // whose processes leave their groups unless a rule keeps them
	// root is the root group that the groups are below, though the policy names none: an earlier version applied it.
	Root string
	// processes is the process table, when the caller has one; else it is read.
	Processes []procfs.Process
	// at is the time whose windows hold; zero is now.
	At time.Time
	// shares asks for the competitors of the root group, which effective shares need: a person reads the plan.
	Shares bool
	// facts, when the caller has them.
	Facts *host.Facts
	// lenient looks go on with what is sound when the policy has problems on the host as it is now: see
	// snapshot.Options.
	Lenient bool
	// askNodes refuses a change of NUMA nodes under memory that is there.
	AskNodes bool
	// cache, of a caller that looks again and again, spares what has not changed.
	Cache *snapshot.Cache
}

// GoBy has a look go by the facts and processes that an earlier one of the same pass has read; v may be nil.
func (l *ViewOptions) GoBy(v *View) {
	if v != nil {
		l.Facts, l.Processes = v.Facts, v.Observed.Processes
	}
}

// Reader takes snapshots of the host.
func (c *Controller) Reader() *snapshot.Reader {
	c.reads.once.Do(func() {
		c.reads.reader = &snapshot.Reader{
			Host: c.Host, Store: c.Store, Log: c.Log, Exe: c.exe, Local: c.IsHere(), Tree: c.TreeOf, Manager: c.Manager,
		}
	})
	return c.reads.reader
}

// View looks at the host through a policy. Problems of the policy, also against this host, come
// back as policy.Problems.
func (c *Controller) View(ctx context.Context, l ViewOptions) (*View, error) {
	v, err := c.Classify(ctx, l)
	if err != nil {
		return nil, err
	}
	if err := c.Observe(ctx, v, l); err != nil {
		return nil, err
	}
	return v, nil
}

// Observe adds to a view what the kernel holds of its groups, and plans.
func (c *Controller) Observe(ctx context.Context, v *View, l ViewOptions) (err error) {
	if v.Snapshot, err = c.Reader().Observe(ctx, v.Snapshot); err != nil {
		return err
	}
	v.MakePlan()
	for _, id := range slices.Sorted(maps.Keys(v.Unlaid)) {
		v.Plan.Notes = append(v.Plan.Notes, v.Unlaid[id])
	}
	if l.Shares { // somebody reads the plan
		v.Plan.Notes = append(v.Plan.Notes, disks.LogNotes(c.Host, v.Snapshot)...)
	}
	if l.Cache == nil { // somebody reads it
		v.Plan.Notes = append(v.Plan.Notes, void(v.Snapshot)...)
	}
	return nil
}

// Classify does the part of a view that reads no knob: facts, processes, groups, membership.
func (c *Controller) Classify(ctx context.Context, l ViewOptions) (*View, error) {
	o := snapshot.Options{
		Sources: l.Sources, Root: l.Root, Overrides: l.Overrides, Lifted: l.Lifted, Skipped: l.Skipped,
		Canary: l.Canary,
		Pins:   l.Pins, Ended: l.Ended, At: c.or(l.At), Facts: l.Facts, Processes: l.Processes, Self: c.Agent,
		Shares: l.Shares, Lenient: l.Lenient, Cache: l.Cache,
	}
	s, err := c.Reader().Members(ctx, o)
	if s == nil {
		return nil, err
	}
	v := &View{Snapshot: s, Released: l.Released, askNodes: l.AskNodes, Conflicts: l.Conflicts}
	if err != nil {
		return v, err
	}
	v.Leave(o.At)
	return v, nil
}

// MakePlan makes the plan of a view.
func (v *View) MakePlan() { v.Plan = planner.Make(v.Input()) }

// Input is what a plan for a view is made from.
func (v *View) Input() plan.Input {
	return plan.Input{
		Facts: v.Facts, Host: v.Policy.Host, Former: v.Names.Former, Agent: v.Policy.Agent, Classified: v.Classified,
		Observed: v.Observed, Memory: v.MemoryInUse(), Released: v.Released, Expel: v.Expel, Systemd: v.Systemd,
		Network: v.Network, Leave: v.Left, AskNodes: v.askNodes,
	}
}

// Current looks at the host through the applied policy with everything laid over it.
func (c *Controller) Current(ctx context.Context, l ViewOptions) (*View, *state.Documents, error) {
	v, s, err := belonging(ctx, c, &l)
	if err != nil {
		return nil, s, err
	}
	if err := c.Observe(ctx, v, l); err != nil {
		return nil, s, err
	}
	return v, s, nil
}

// Membership is current for who needs to know groups and their members alone: no limit is read, and nothing is planned.
func (c *Controller) Membership(ctx context.Context) (*View, *state.Documents, error) {
	return belonging(ctx, c, &ViewOptions{})
}

// belonging fills in what is applied and recorded, and looks who belongs where.
func belonging(ctx context.Context, c *Controller, l *ViewOptions) (*View, *state.Documents, error) {
	if l.Facts == nil {
		facts, err := c.Host.Facts()
		if err != nil {
			return nil, nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
		}
		l.Facts = facts
	}
	s, err := c.LoadState(l.Facts.BootID, c.or(l.At))
	if err != nil {
		return nil, nil, err
	}
	if s.Applied == nil {
		return nil, s, NotApplied()
	}
	facts, shares, at := l.Facts, l.Shares, l.At
	*l = OptionsOver(s, s.Applied.Sources)
	l.Facts, l.Shares, l.At, l.Lenient = facts, shares, at, true
	v, err := c.Classify(ctx, *l)
	if err != nil {
		return nil, s, err
	}
	return v, s, nil
}

// NotApplied says that there is no applied policy yet.
func NotApplied() error {
	return api.Errorf(api.CodeFailed,
		"write a policy (`bulkhead discover --as-policy` prints a starter) and `bulkhead apply` it",
		"no policy is applied on this host")
}

// NotIn lists those of the directories that a process is not in, in the order of the hierarchies.
func (v *View) NotIn(p procfs.Process, dirs map[string]cgroup.Dir) (list []cgroup.Dir) {
	for _, h := range v.Facts.Hierarchies {
		if d, is := dirs[h.ID]; is && p.Cgroups[h.ID] != d.Path {
			list = append(list, d)
		}
	}
	return list
}

// HintTaken is what to do about a directory with the name of a group of ours that bulkhead did not make.
func HintTaken(v *View, d cgroup.Dir) string {
	if group, _ := v.Layout.Group(d); group == layout.RootGroup {
		return "give host.root another name, or remove that directory if nobody needs it"
	}
	return "give the group another name, or remove that directory if nobody needs it"
}

// NoGroup says that a group is not in the applied policy, and which ones are.
func NoGroup(v *View, name string) error {
	var names []string
	for _, g := range v.Classified.Groups {
		names = append(names, g.Path)
	}
	return api.NoGroup(name, names)
}

// Leave takes over which values stay, and says whether that is anything new.
func (v *View) Leave(now time.Time) (changed bool) {
	left := map[cgroup.File]string{}
	for _, r := range v.Conflicts {
		if r.Stays(now) {
			left[r.Where()] = r.Wanted
		}
	}
	changed = len(left) != len(v.Left)
	for f, wanted := range left {
		changed = changed || v.Left[f] != wanted
	}
	v.Left = left
	return changed
}

// ConflictOf is why a file holds something else than what is wanted; "" when nothing is known.
func (v *View) ConflictOf(f cgroup.File) string {
	for _, r := range v.Conflicts {
		if r.Where() == f && v.Left[f] != "" {
			return r.String()
		}
	}
	return ""
}

// LeaveOut plans again without the groups that are refused, so that they do not hold up the others. They
// stay as they are.
func (v *View) LeaveOut() error {
	groups := make([]string, len(v.Plan.Refusals))
	for i, r := range v.Plan.Refusals {
		groups[i] = r.Group
	}
	if slices.Contains(groups, "") {
		return api.Errorf(api.CodeRefused, "", "nothing is put right until the refusal of the root group is settled")
	}
	v.PlanWithout(groups...)
	return nil
}

// PlanWithout plans again as if groups were released: they stay as they are.
func (v *View) PlanWithout(groups ...string) {
	released := maps.Clone(v.Released)
	if released == nil {
		released = map[string]bool{}
	}
	for _, g := range groups {
		released[g] = true
	}
	v.Released = released
	v.MakePlan()
}

// NamesOf tells what is ours on this host: as the applied policy lays it out, and what the journal says we made
// otherwise.
func NamesOf(s *state.Documents, made []string) layout.Names {
	n := layout.Names{Root: s.Applied.Root(), Former: made}
	if s.Applied != nil {
		if p, err := parse.Policy(s.Applied.Sources); err == nil && p.Host.Root != "" {
			n.Root = p.Host.Root
		}
	}
	return n
}
