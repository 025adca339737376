package transaction

import (
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
	// Root is the root group that the groups are below, though the policy names none: an earlier version applied it.
	Root string
	// Processes is the process table, when the caller has one; else it is read.
	Processes []procfs.Process
	// At is the time whose windows hold; zero is now.
	At time.Time
	// Shares asks for the competitors of the root group, which effective shares need: a person reads the plan.
	Shares bool
	// facts, when the caller has them.
	Facts *host.Facts
	// lenient looks go on with what is sound when the policy has problems on the host as it is now: see
	// snapshot.Options.
	Lenient bool
	// askNodes refuses a change of NUMA nodes under memory that is there.
	AskNodes bool
	// Cache, of a caller that looks again and again, spares what has not changed.
	Cache *snapshot.Cache
}

// GoBy has a look go by the facts and processes that an earlier one of the same pass has read; v may be nil.
func (l *ViewOptions) GoBy(v *View) {
	if v != nil {
		l.Facts, l.Processes = v.Facts, v.Observed.Processes
	}
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
