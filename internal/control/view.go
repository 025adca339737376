package control

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/plan/planner"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
)

// View is a snapshot of the host, what is asked of it beside the policy, and the plan that follows.
type View struct {
	*snapshot.Snapshot
	Plan     plan.Plan
	Released map[string]bool // groups that are left as they are

	releasing bool // made to give groups back, not to govern them
	askNodes  bool
	conflicts []state.Conflict
	left      map[cgroup.File]string // what of them stays, with what was wanted
}

// look says what a View is made from.
type look struct {
	sources   []policy.Source
	overrides []state.Override
	lifted    []state.Lifted
	skipped   []state.Skipped
	conflicts []state.Conflict
	released  map[string]bool
	canary    *state.Canary // whose settings take the place of its group's
	pins      []state.Pin
	ended     []state.Pin // whose processes leave their groups unless a rule keeps them
	// root is the root group that the groups are below, though the policy names none: an earlier version applied it.
	root string
	// processes is the process table, when the caller has one; else it is read.
	processes []procfs.Process
	// at is the time whose windows hold; zero is now.
	at time.Time
	// shares asks for the competitors of the root group, which effective shares need: a person reads the plan.
	shares bool
	// facts, when the caller has them.
	facts *host.Facts
	// lenient looks go on with what is sound when the policy has problems on the host as it is now: see
	// snapshot.Options.
	lenient bool
	// askNodes refuses a change of NUMA nodes under memory that is there.
	askNodes bool
	// cache, of a caller that looks again and again, spares what has not changed.
	cache *snapshot.Cache
}

// goBy has a look go by the facts and processes that an earlier one of the same pass has read; v may be nil.
func (l *look) goBy(v *View) {
	if v != nil {
		l.facts, l.processes = v.Facts, v.Observed.Processes
	}
}

// reader takes snapshots of the host.
func (c *Controller) reader() *snapshot.Reader {
	c.reads.once.Do(func() {
		c.reads.reader = &snapshot.Reader{
			Host: c.Host, Store: c.Store, Log: c.Log, Exe: c.exe, Local: c.isHere(), Tree: c.tree, Manager: c.manager,
		}
	})
	return c.reads.reader
}

// view looks at the host through a policy. Problems of the policy, also against this host, come
// back as policy.Problems.
func (c *Controller) view(ctx context.Context, l look) (*View, error) {
	v, err := c.classify(ctx, l)
	if err != nil {
		return nil, err
	}
	if err := c.observe(ctx, v, l); err != nil {
		return nil, err
	}
	return v, nil
}

// observe adds to a view what the kernel holds of its groups, and plans.
func (c *Controller) observe(ctx context.Context, v *View, l look) (err error) {
	if v.Snapshot, err = c.reader().Observe(ctx, v.Snapshot); err != nil {
		return err
	}
	v.plan()
	for _, id := range slices.Sorted(maps.Keys(v.Unlaid)) {
		v.Plan.Notes = append(v.Plan.Notes, v.Unlaid[id])
	}
	if l.shares { // somebody reads the plan
		v.Plan.Notes = append(v.Plan.Notes, logNotes(c.Host, v.Snapshot)...)
	}
	if l.cache == nil { // somebody reads it
		v.Plan.Notes = append(v.Plan.Notes, void(v.Snapshot)...)
	}
	return nil
}

// classify does the part of a view that reads no knob: facts, processes, groups, membership.
func (c *Controller) classify(ctx context.Context, l look) (*View, error) {
	o := snapshot.Options{
		Sources: l.sources, Root: l.root, Overrides: l.overrides, Lifted: l.lifted, Skipped: l.skipped,
		Canary: l.canary,
		Pins:   l.pins, Ended: l.ended, At: c.or(l.at), Facts: l.facts, Processes: l.processes, Self: c.Agent,
		Shares: l.shares, Lenient: l.lenient, Cache: l.cache,
	}
	s, err := c.reader().Members(ctx, o)
	if s == nil {
		return nil, err
	}
	v := &View{Snapshot: s, Released: l.released, askNodes: l.askNodes, conflicts: l.conflicts}
	if err != nil {
		return v, err
	}
	v.leave(o.At)
	return v, nil
}

// plan makes the plan of a view.
func (v *View) plan() { v.Plan = planner.Make(v.input()) }

// input is what a plan for a view is made from.
func (v *View) input() plan.Input {
	return plan.Input{
		Facts: v.Facts, Host: v.Policy.Host, Former: v.Names.Former, Agent: v.Policy.Agent, Classified: v.Classified,
		Observed: v.Observed, Memory: v.MemoryInUse(), Released: v.Released, Expel: v.Expel, Systemd: v.Systemd,
		Network: v.Network, Leave: v.left, AskNodes: v.askNodes,
	}
}

// current looks at the host through the applied policy with everything laid over it.
func (c *Controller) current(ctx context.Context, l look) (*View, *state.Documents, error) {
	v, s, err := c.belonging(ctx, &l)
	if err != nil {
		return nil, s, err
	}
	if err := c.observe(ctx, v, l); err != nil {
		return nil, s, err
	}
	return v, s, nil
}

// membership is current for who needs to know groups and their members alone: no limit is read, and nothing is planned.
func (c *Controller) membership(ctx context.Context) (*View, *state.Documents, error) {
	return c.belonging(ctx, &look{})
}

// belonging fills in what is applied and recorded, and looks who belongs where.
func (c *Controller) belonging(ctx context.Context, l *look) (*View, *state.Documents, error) {
	if l.facts == nil {
		facts, err := c.Host.Facts()
		if err != nil {
			return nil, nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
		}
		l.facts = facts
	}
	s, err := c.loadState(l.facts.BootID, c.or(l.at))
	if err != nil {
		return nil, nil, err
	}
	if s.Applied == nil {
		return nil, s, errNotApplied()
	}
	facts, shares, at := l.facts, l.shares, l.at
	*l = lookOver(s, s.Applied.Sources)
	l.facts, l.shares, l.at, l.lenient = facts, shares, at, true
	v, err := c.classify(ctx, *l)
	if err != nil {
		return nil, s, err
	}
	return v, s, nil
}

// errNotApplied says that there is no applied policy yet.
func errNotApplied() error {
	return api.Errorf(api.CodeFailed,
		"write a policy (`bulkhead discover --as-policy` prints a starter) and `bulkhead apply` it",
		"no policy is applied on this host")
}

// notIn lists those of the directories that a process is not in, in the order of the hierarchies.
func (v *View) notIn(p procfs.Process, dirs map[string]cgroup.Dir) (list []cgroup.Dir) {
	for _, h := range v.Facts.Hierarchies {
		if d, is := dirs[h.ID]; is && p.Cgroups[h.ID] != d.Path {
			list = append(list, d)
		}
	}
	return list
}

// hintTaken is what to do about a directory with the name of a group of ours that bulkhead did not make.
func hintTaken(v *View, d cgroup.Dir) string {
	if group, _ := v.Layout.Group(d); group == layout.RootGroup {
		return "give host.root another name, or remove that directory if nobody needs it"
	}
	return "give the group another name, or remove that directory if nobody needs it"
}

// nameTaken reports, as a problem of the policy, a directory with the name of a root group or an outermost group that
// bulkhead did not make: apply refuses it. Who may not read the state directory cannot tell.
func (c *Controller) nameTaken(ctx context.Context, v *View) error {
	if c.Store == nil {
		return nil
	}
	made := c.Store.Made(v.Facts.BootID)
	for _, d := range v.Layout.Dirs() {
		if d.Parent().Path != "/" || made[d] || v.Layout.Theirs(d) {
			continue
		}
		if there, err := v.Tree.Exists(d); err != nil || !there {
			continue
		}
		if owned, err := c.reader().OwnsSlice(ctx, v.Facts, d); err != nil {
			return errUnasked(err)
		} else if owned {
			continue
		}
		at := cmp.Or(v.Policy.Host.RootPos, v.Policy.Host.Pos, policy.Pos{File: v.Policy.Sources[0].Path})
		taken := policy.Problem{Pos: at, Msg: v.Tree.Abs(d) + " already exists and bulkhead did not make it",
			Hint: hintTaken(v, d)}
		return yamlform.Annotate(policy.Problems{taken}, v.Policy.Sources)
	}
	return nil
}
