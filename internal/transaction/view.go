package transaction

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/plan/planner"
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
	quick     bool      // a look of the agent's: what takes a walk through many files counts as it was set
	live      plan.Live // nil: nobody reads the plan
	use       map[cgroup.Dir]map[string]plan.IOUse
	Conflicts []state.Conflict
	Left      map[change.Target]string // what of them stays, with what was wanted
	Actuators change.Actuators         // of this host, as far as systemd need not be asked
}

// ViewOptions says what a View is made from. A zero At is now, and Self is the agent.
type ViewOptions struct {
	snapshot.Options
	Conflicts []state.Conflict
	Released  map[string]bool
	LeftAlone []string // groups that are left as they are, beside those
	// Use has shared limits shared anew by what was read and written, and nothing moved: see plan.Input.
	Use map[cgroup.Dir]map[string]plan.IOUse
	// AskNodes refuses a change of NUMA nodes under memory that is there.
	AskNodes bool
	// Live has the plan look what processes do, which may take a second: for one that a person is about to read.
	Live bool
}

// GoBy has a look go by the facts and processes that an earlier one of the same pass has read; v may be nil.
func (l *ViewOptions) GoBy(v *View) {
	if v != nil {
		l.Facts, l.Processes = v.Facts, v.Observed.Processes
	}
}

// MakePlan makes the plan of a view.
func (v *View) MakePlan() { v.Plan = planner.Make(v.Input()) }

// ReadWanted reads what the plan wants something of, but for files of directories, which the snapshot has. A target
// that is gone holds nothing.
func (v *View) ReadWanted(ctx context.Context) (failed error) {
	var targets []change.Target
	for _, w := range v.Plan.Want {
		if _, file := cgroup.FileOf(w.Target); !file {
			targets = append(targets, w.Target)
		}
	}
	return v.readValues(ctx, targets)
}

func (v *View) readValues(ctx context.Context, targets []change.Target) (failed error) {
	if v.Observed.Values == nil {
		v.Observed.Values = map[change.Target]string{}
	}
	for _, t := range targets {
		if v.quick && ofSELinux(t) {
			continue
		}
		a, err := v.Actuators.Of(t)
		if err == nil {
			v.Observed.Values[t], err = a.Read(ctx, t.Addr)
		}
		if err != nil {
			delete(v.Observed.Values, t)
			if !errors.Is(err, change.ErrGone) {
				failed = errors.Join(failed, err)
			}
		}
	}
	return failed
}

// Input is what a plan for a view is made from.
func (v *View) Input() plan.Input {
	return plan.Input{
		Facts: v.Facts, Host: v.Policy.Host, Former: v.Names.Former, Agent: v.Policy.Agent, Classified: v.Classified,
		Observed: v.Observed, Memory: v.MemoryInUse(), Live: v.live, Released: v.Released, Expel: v.Expel,
		Systemd: v.Systemd, Network: v.Network, Leave: v.Left, Tune: v.Tune, AskNodes: v.askNodes, Use: v.use,
		NoMoves: v.use != nil,
	}
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
	left := map[change.Target]string{}
	for _, r := range v.Conflicts {
		if r.Stays(now) {
			left[r.Where()] = r.Wanted
		}
	}
	changed = !maps.Equal(left, v.Left)
	v.Left = left
	return changed
}

// ConflictOf is why a target holds something else than what is wanted; "" when nothing is known.
func (v *View) ConflictOf(t change.Target) string {
	for _, r := range v.Conflicts {
		if r.Where() == t && v.Left[t] != "" {
			return r.String()
		}
	}
	return ""
}

// LeaveOut plans again without the groups that are refused, so that they do not hold up the others. They
// stay as they are. Only a plan tells what is refused, and its steps for the other groups go by what these groups have:
// budgets, controllers that are handed down, directories.
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
	v.Release(groups...)
	v.MakePlan()
}

// Release has a plan that is still to be made leave groups as they are.
func (v *View) Release(groups ...string) {
	released := maps.Clone(v.Released)
	if released == nil {
		released = map[string]bool{}
	}
	for _, g := range groups {
		released[g] = true
	}
	v.Released = released
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
