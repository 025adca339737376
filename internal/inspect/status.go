package inspect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
	"bulkhead/internal/verify"
)

// Status looks at everything that is governed. Agent facts are filled in by the caller that has them.
func Status(ctx context.Context, c *transaction.Controller) (*api.Status, error) {
	pending, underWay := Changing(c)
	v, s, err := c.Current(ctx, transaction.ViewOptions{Options: snapshot.Options{Shares: true}})
	if pending != "" && err != nil && s != nil && s.Applied == nil {
		return nil, api.Errorf(api.CodeFailed, "`bulkhead rollback` undoes it",
			"no policy is applied on this host, and a change was interrupted: %s", pending)
	}
	if err != nil {
		return nil, err
	}
	st := &api.Status{
		Pending: pending, UnderWay: underWay,
		Revision: s.Applied.Revision, AppliedAt: s.Applied.At, AppliedBy: s.Applied.By,
		Problems: v.Problems, Notes: v.Plan.Notes, Differs: len(v.Plan.Steps), Warnings: c.Warnings(),
	}
	if st.Trial, err = state.OnTrial(c.Store); err != nil {
		st.Warnings = append(st.Warnings, err.Error())
	}
	if t := st.Trial; t != nil && t.Guard != nil {
		for i := range t.Guard.Clauses {
			t.Guard.Clauses[i].DSN = "" // it may hold a password
		}
	}
	if st.Load, _ = c.Host.LoadAverage(); !s.Released[""] {
		st.Tuned = len(v.Tune)
	}
	st.Overrides = v.InForce(s.Overrides)
	for _, id := range slices.Sorted(maps.Keys(v.Unlaid)) {
		st.Unlaid = append(st.Unlaid, v.Unlaid[id].Text)
	}
	st.Lifted, st.Conflicts = s.Lifted, s.Conflicts
	st.Schedules = ScheduleStatuses(v.Policy, s.Skipped, c.Now())
	for g := range s.Released {
		if g == "" {
			g = api.Everything
		}
		st.Released = append(st.Released, g)
	}
	slices.Sort(st.Released)
	for _, g := range v.Classified.Groups {
		st.Groups = append(st.Groups, groupStatus(c, v, s, g.Path))
	}
	addTraffic(ctx, c, v, st)
	inside := make(map[procfs.ID]bool, len(v.Members))
	for _, m := range v.Members {
		inside[m.Process.ID] = true
	}
	st.Orphans = classify.Orphans(v.Rules, v.Classified.Skips, func(id procfs.ID) bool { return inside[id] })
	return st, nil
}

// Changing says what became of a change that has no end: it was cut off, or somebody is about it right now.
func Changing(c *transaction.Controller) (pending, underWay string) {
	by, err := c.Store.Quiet(func() (err error) {
		pending, err = transaction.Unfinished(c)
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
	mine := by.Verb == "look" || by.Verb == transaction.SqueezeVerb
	if _, open := c.Store.Pending(); mine && !open {
		return "", "" // the agent, about its everyday work
	}
	underWay = by.Verb
	if by.Who != "" {
		underWay += " by " + by.Who
	}
	return "", fmt.Sprintf("%s since %s; process %d", underWay, by.Since.Local().Format(time.DateTime), by.PID)
}

// groupStatus is the status of one group.
func groupStatus(c *transaction.Controller, v *transaction.View, s *state.Documents, name string) api.GroupStatus {
	g := api.GroupStatus{Group: name, Released: policy.Released(s.Released, name), Members: []api.Member{},
		Limits: []verify.Limit{}}
	for _, group := range v.Classified.Groups {
		if group.Path == name {
			g.Role, g.Instance = group.Role, group.Instance
		}
	}
	for _, f := range s.Freezes {
		if f.Group == name {
			g.Frozen, g.Overdue = f.Until(), f.Ended(time.Now(), procfs.SinceBoot())
		}
	}
	for _, sh := range v.Plan.Shares {
		if sh.Group == name {
			g.Share = sh
		}
	}
	g.Limits = append(g.Limits, Verifiable(v).Limits(name)...)
	for _, p := range v.Members {
		if p.Group != name {
			continue
		}
		held, keeper := layout.Held(v.Layout, &p.Process, name)
		g.Members = append(g.Members, api.Member{
			PID: p.Process.PID, Comm: p.Process.Comm, User: c.Host.Users.UserName(p.Process.UID),
			Placed: held, Kept: keeper, By: p.Rule,
		})
		addTasks(c.Host, &g.Tasks, p.Process)
	}
	addUsage(c, v, &g)
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
func addUsage(c *transaction.Controller, v *transaction.View, g *api.GroupStatus) {
	g.Usage, _ = v.Counted(g.Group).Read(v.Tree)
	g.MemorySource = "cgroup"
	if g.Usage.Memory.Current == nil {
		g.MemorySource = "processes"
		g.Usage.Memory = sumMemory(c.Host, v, g.Group)
	} else if anonymous := g.Usage.Memory.Anonymous; anonymous != nil {
		g.ChargedElsewhere = max(0, largest(c.Host, v, g.Group)-*anonymous)
	}
}

// largest is the anonymous memory of the member that has most, bytes. Sums would count what forked processes share
// more than once.
func largest(h *host.Host, v *transaction.View, group string) int64 {
	var most int64
	for _, p := range v.Members {
		if !policy.Covers([]string{group}, p.Group) {
			continue
		}
		if m, err := h.Proc.Memory(p.Process.PID); err == nil {
			most = max(most, m.Anon)
		}
	}
	return most
}

// sumMemory adds up the members' own figures, where no cgroup counts them.
func sumMemory(h *host.Host, v *transaction.View, group string) metrics.Memory {
	var sum procfs.Memory
	for _, p := range v.Members {
		if !policy.Covers([]string{group}, p.Group) {
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

// ScheduleStatuses says of each schedule whether it is open, and when it switches next.
func ScheduleStatuses(p *policy.Policy, skipped []state.Skipped, now time.Time) []api.ScheduleStatus {
	var all []api.ScheduleStatus
	for _, s := range p.Schedules {
		since, _, open := s.Windows.Open(now)
		st := api.ScheduleStatus{Name: s.Name, Open: open}
		if open {
			st.Since = since
		}
		if k := snapshot.SkippedAt(skipped, s.Name, now); k != nil && open {
			st.Skipped = k.Why
		}
		st.Next, _ = s.Next(now)
		all = append(all, st)
	}
	return all
}
