package control

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/verify"
)

// Status is what `status` shows. Field names are stable (--json).
type Status struct {
	Revision  int           `json:"revision"`
	AppliedAt time.Time     `json:"applied_at,omitzero"`
	AppliedBy string        `json:"applied_by,omitempty"`
	Agent     AgentStatus   `json:"agent"`
	Load      string        `json:"load"` // /proc/loadavg, first three figures
	Groups    []GroupStatus `json:"groups"`
	Overrides []string      `json:"overrides,omitempty"`
	// Unlaid is what owners have set and that is not in force, and why.
	Unlaid []string `json:"unlaid,omitempty"`
	// Conflicts are limits that somebody else changed.
	Conflicts []state.Conflict `json:"conflicts,omitempty"`
	// Lifted are memory.high that were lifted, since their groups were stuck at them.
	Lifted []state.Lifted `json:"lifted,omitempty"`
	// Schedules of the policy, in its order.
	Schedules []ScheduleStatus `json:"schedules,omitempty"`
	Released  []string         `json:"released,omitempty"`
	Notes     []plan.Note      `json:"notes,omitempty"`
	// Problems of the applied policy on the host as it is now.
	Problems policy.Problems `json:"problems,omitempty"`
	// Pending is an interrupted change that `rollback` undoes.
	Pending string `json:"pending,omitempty"`
	// Trial is a change that waits to be confirmed.
	Trial *state.Trial `json:"trial,omitempty"`
	// UnderWay is a change that somebody makes at this moment.
	UnderWay string `json:"under_way,omitempty"`
	// Differs counts the steps that would bring the host back to the policy.
	Differs  int      `json:"differs"`
	Warnings []string `json:"warnings,omitempty"`
	// Orphans look like databases or helpers and are in no group.
	Orphans []classify.Orphan `json:"orphans,omitempty"`
}

// AgentStatus is what is known of the agent.
type AgentStatus struct {
	Running  bool      `json:"running"`
	PID      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Source   string    `json:"source,omitempty"`      // where it learns of new processes, and why not from events
	Events   int64     `json:"events,omitempty"`      // that the kernel sent
	Lost     int64     `json:"events_lost,omitempty"` // known to be lost; each loss was answered by a look at every process
	LastLook time.Time `json:"last_look,omitzero"`
	Looks    int64     `json:"looks,omitempty"`
	Moved    int64     `json:"moved,omitempty"`
	// Inherited counts members that were seen in their groups without having been moved: born inside, or started there.
	Inherited int64 `json:"inherited,omitempty"`
	Retries   int64 `json:"retries,omitempty"` // looks that left something to the next one
	// Placement is how long it took to place those that were moved.
	Placement *Placement `json:"placement,omitempty"`
	Gone      int64      `json:"gone_before_placed,omitempty"` // that exited when they were about to be moved
	Mistaken  int64      `json:"mistaken_moves,omitempty"`     // of a process that had just got another one's number; each was put back
	Repaired  int64      `json:"repaired,omitempty"`           // values put back that somebody else had changed
	Error     string     `json:"error,omitempty"`              // of the last look
}

// Placement is how long it took from a process's exec, or from its change of user, group or name, until it was in its
// group. Only those count of which an event told.
type Placement struct {
	Count   int64         `json:"count"`
	Slowest time.Duration `json:"slowest_ns"`
	// Within counts by the smallest of the bounds that held; Bound 0 is more than all of them.
	Within []PlacedWithin `json:"within"`
}

// PlacedWithin is one bar of the histogram: beyond the bound before it, and within this one.
type PlacedWithin struct {
	Bound time.Duration `json:"bound_ns"`
	Count int64         `json:"count"`
}

// Share gives the smallest bound within which a share of them (0 to 1) was placed: an upper limit of that quantile. It
// is the slowest one where no bound is.
func (p *Placement) Share(share float64) time.Duration {
	need, seen := int64(math.Ceil(share*float64(p.Count))), int64(0)
	for _, w := range p.Within {
		if seen += w.Count; seen >= need && w.Bound > 0 {
			return min(w.Bound, p.Slowest)
		}
	}
	return p.Slowest
}

// GroupStatus is one group with what it was asked, what is in force and what it uses.
type GroupStatus struct {
	Group    string         `json:"group"`
	Role     policy.Role    `json:"role,omitempty"`
	Instance string         `json:"instance,omitempty"`
	Frozen   string         `json:"frozen_until,omitempty"`
	Overdue  bool           `json:"overdue,omitempty"` // the freeze has ended and is still in force
	Released bool           `json:"released,omitempty"`
	Members  []Member       `json:"members"`
	Limits   []verify.Limit `json:"limits"`
	Share    plan.Share     `json:"share"`
	Usage    metrics.Usage  `json:"usage"`
	// MemorySource says where the memory figures are from: "cgroup", or "processes" where no limit needs
	// the memory controller and they are sums over the members, shared pages counted once per member.
	MemorySource string `json:"memory_source"`
	// ChargedElsewhere is at least how much anonymous memory of a member, bytes, is charged where it was before it
	// came: the kernel moves no charge on v2, nor on v1 unless told to. The group's limits do not see it.
	ChargedElsewhere int64              `json:"charged_elsewhere,omitempty"`
	Tasks            metrics.TaskStates `json:"tasks"`
	// Load is kept by the agent, from its start on; nil without one.
	Load *metrics.Load `json:"load_average,omitempty"`
	// Traffic is what it sends and receives, when interfaces are governed.
	Traffic *GroupTraffic `json:"traffic,omitempty"`
}

// Member is a process of a group.
type Member struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
	User string `json:"user"`
	// Placed is false when it belongs to the group and is not in its directories (yet).
	Placed bool   `json:"placed"`
	By     string `json:"by"` // the rule or pin that claims it
}

// Status looks at everything that is governed. Agent facts are filled in by the caller that has them.
func (c *Controller) Status(ctx context.Context) (*Status, error) {
	pending, underWay := c.changing()
	v, s, err := c.current(ctx, look{shares: true})
	if pending != "" && err != nil && s != nil && s.Applied == nil {
		return nil, fail(CodeFailed, "`bulkhead rollback` undoes it",
			"no policy is applied on this host, and a change was interrupted: %s", pending)
	}
	if err != nil {
		return nil, err
	}
	st := &Status{
		Pending: pending, UnderWay: underWay,
		Revision: s.Applied.Revision, AppliedAt: s.Applied.At, AppliedBy: s.Applied.By,
		Problems: v.Problems, Notes: v.Plan.Notes, Differs: len(v.Plan.Steps), Warnings: c.Warnings(),
	}
	if st.Trial, err = c.trial(); err != nil {
		st.Warnings = append(st.Warnings, err.Error())
	}
	if t := st.Trial; t != nil && t.Guard != nil {
		for i := range t.Guard.Clauses {
			t.Guard.Clauses[i].DSN = "" // it may hold a password
		}
	}
	st.Load, _ = c.Host.LoadAverage()
	st.Overrides = v.InForce(s.Overrides)
	for _, id := range slices.Sorted(maps.Keys(v.Unlaid)) {
		st.Unlaid = append(st.Unlaid, v.Unlaid[id].Text)
	}
	st.Lifted, st.Conflicts = s.Lifted, s.Conflicts
	st.Schedules = ScheduleStatuses(v.Policy, s.Skipped, c.now())
	for g := range s.Released {
		if g == "" {
			g = everything
		}
		st.Released = append(st.Released, g)
	}
	slices.Sort(st.Released)
	for _, g := range v.Classified.Groups {
		st.Groups = append(st.Groups, c.groupStatus(v, s, g.Path))
	}
	c.addTraffic(ctx, v, st)
	inside := make(map[procfs.ID]bool, len(v.Members))
	for _, m := range v.Members {
		inside[m.Process.ID] = true
	}
	st.Orphans = classify.Orphans(v.Rules, v.Classified.Skips, func(id procfs.ID) bool { return inside[id] })
	return st, nil
}

// everything is what is released when no group is named.
const everything = "everything"

// changing says what became of a change that has no end: it was cut off, or somebody is about it right now.
func (c *Controller) changing() (pending, underWay string) {
	by, err := c.Store.Quiet(func() (err error) {
		pending, err = c.unfinished()
		return err
	})
	if err != nil {
		c.Log.Warn("could not tell whether a change was interrupted", "err", err)
	}
	switch {
	case by == nil:
		return pending, ""
	case by.PID == 0:
		return "", "by somebody who did not say so yet"
	}
	if _, open := c.Store.Pending(); by.Verb == "look" && !open {
		return "", "" // the agent, about its everyday work
	}
	underWay = by.Verb
	if by.Who != "" {
		underWay += " by " + by.Who
	}
	return "", fmt.Sprintf("%s since %s; process %d", underWay, by.Since.Local().Format(time.DateTime), by.PID)
}

// groupStatus is the status of one group.
func (c *Controller) groupStatus(v *View, s *state.Documents, name string) GroupStatus {
	g := GroupStatus{Group: name, Released: isReleased(s.Released, name), Members: []Member{}, Limits: []verify.Limit{}}
	for _, group := range v.Classified.Groups {
		if group.Path == name {
			g.Role, g.Instance = group.Role, group.Instance
		}
	}
	for _, f := range s.Freezes {
		if f.Group == name {
			g.Frozen, g.Overdue = f.Until(), f.Ended(time.Now())
		}
	}
	for _, sh := range v.Plan.Shares {
		if sh.Group == name {
			g.Share = sh
		}
	}
	g.Limits = append(g.Limits, verifiable(v).Limits(name)...)
	for _, p := range v.Members {
		if p.Group != name {
			continue
		}
		g.Members = append(g.Members, Member{
			PID: p.Process.PID, Comm: p.Process.Comm, User: c.Host.Users.UserName(p.Process.UID),
			Placed: v.Layout.Placed(&p.Process, name), By: p.Rule,
		})
		addTasks(c.Host, &g.Tasks, p.Process)
	}
	c.addUsage(v, &g)
	return g
}

// addTasks counts a member's threads and their states.
func addTasks(h *host.Host, t *metrics.TaskStates, p procfs.Process) {
	tasks, err := h.Proc.Tasks(p.PID)
	if err != nil {
		return // exited meanwhile
	}
	for _, task := range tasks {
		t.Count(task.State)
	}
}

// addUsage fills in what the group's directory counts in each hierarchy; a group with children shows
// its children with it, as the kernel does.
func (c *Controller) addUsage(v *View, g *GroupStatus) {
	g.Usage, _ = countedIn(v, g.Group).Read(v.Tree)
	g.MemorySource = "cgroup"
	if g.Usage.Memory.Current == nil {
		g.MemorySource = "processes"
		g.Usage.Memory = sumMemory(c.Host, v, g.Group)
	} else if anonymous := g.Usage.Memory.Anonymous; anonymous != nil {
		g.ChargedElsewhere = max(0, largest(c.Host, v, g.Group)-*anonymous)
	}
}

// countedIn says which directories count what a group uses.
func countedIn(v *View, group string) (g metrics.Group) {
	for hierarchy, d := range v.Layout.Member(group) {
		if own, ok := v.Layout.Own(group)[hierarchy]; ok {
			if _, there := v.Observed.Dirs[own]; there {
				d = own
			}
		}
		g.Dirs = append(g.Dirs, append([]cgroup.Dir{d}, v.Layout.Outside(group, hierarchy)...))
	}
	return g
}

// largest is the anonymous memory of the member that has most, bytes. Sums would count what forked processes share
// more than once.
func largest(h *host.Host, v *View, group string) int64 {
	var most int64
	for _, p := range v.Members {
		if !covers([]string{group}, p.Group) {
			continue
		}
		if m, err := h.Proc.Memory(p.Process.PID); err == nil {
			most = max(most, m.Anon)
		}
	}
	return most
}

// sumMemory adds up the members' own figures, where no cgroup counts them.
func sumMemory(h *host.Host, v *View, group string) metrics.Memory {
	var sum procfs.Memory
	for _, p := range v.Members {
		if !covers([]string{group}, p.Group) {
			continue
		}
		m, err := h.Proc.Memory(p.Process.PID)
		if err != nil {
			continue // exited meanwhile
		}
		sum.Anon += m.Anon
		sum.File += m.File
		sum.Shmem += m.Shmem
		sum.Huge += m.Huge
		sum.Swap += m.Swap
	}
	return metrics.Memory{Anonymous: &sum.Anon, File: &sum.File, Shared: &sum.Shmem, Huge: &sum.Huge, Swap: &sum.Swap}
}
